"""Distillation: losses, one step, resuming; against timm and NumPy."""

import shutil

import keras
import numpy as np
import pytest
from scipy import special

import keras_vit
from keras_vit import distillation, evaluation, losses
from keras_vit_programs import sizes
from keras_vit_programs.console import UserError
from tests import small
from tests.harness import numpy
from tests.markers import on_all
from tests.recipes import programs, runs

RNG = np.random.default_rng(0)
TEACHER, STUDENT = RNG.normal(0, 4, (2, 6, 5)).astype("float32")
# Sure predictions, which Keras's `KLDivergence` clips.
TEACHER[0] *= 20
STUDENT[1] *= 20


def soft(teacher, student, temperature=1.0):
    t, s = (special.log_softmax(x / temperature, -1) for x in (teacher, student))
    return (np.exp(t) * (t - s)).sum(-1) * temperature**2


def hard(teacher, student):
    rows = np.arange(len(teacher)), teacher.argmax(-1)
    return -special.log_softmax(student, -1)[rows]


def cosine(teacher, student):
    norms = [np.linalg.norm(x, axis=-1) for x in (teacher, student)]
    return 1 - (teacher * student).sum(-1) / np.prod(norms, axis=0)


LOSSES = {
    "soft": (("soft",), soft),
    "soft 3": (("soft", 3.0), soft),
    "soft 0.5": (("soft", 0.5), soft),
    "hard": (("hard",), hard),
    "cosine": (("cosine",), cosine),
    "smooth_l1": (
        ("smooth_l1",),
        lambda t, s: special.huber(1, t - s).mean(-1),
    ),
    "mse": (("mse",), lambda t, s: ((t - s) ** 2).mean(-1)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_their_definitions(name, record_error):
    (kind, *numbers), reference = LOSSES[name]
    expected = reference(TEACHER.astype(float), STUDENT.astype(float), *numbers)
    loss = keras.losses.deserialize(
        keras.losses.serialize(
            losses.DistillationLoss(kind, *numbers, reduction="none")
        )
    )
    found = keras.ops.convert_to_numpy(loss(TEACHER, STUDENT))
    error = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    record_error("distillation losses", name, error.max(), 1e-6)
    # The mean over images with their weights, in half precision too.
    weights = np.array([2, 0, 1, 1, 0.5, 1.5], "float32")
    half = [keras.ops.cast(x, "bfloat16") for x in (TEACHER / 8, STUDENT / 8)]
    rounded = [keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in half]
    expected = reference(*(x.astype(float) for x in rounded), *numbers)
    loss = losses.DistillationLoss(kind, *numbers)
    found = float(loss(*half, sample_weight=weights))
    assert found == pytest.approx((weights * expected).mean(), rel=1e-5)


@pytest.mark.backends("torch")
def test_losses_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="above 0. Received: temperature=0"):
        losses.DistillationLoss("soft", 0)
    with pytest.raises(ValueError, match="one of 'soft'"):
        losses.DistillationLoss("l2")


# One step of timm's tasks and of ours, from the same weights and images.
SIZES = {"img_size": 16, "patch_size": 8, "depth": 1, "num_heads": 2}
RATE = 0.5
STEPS = {
    # name: (class of the task, its arguments, width of the teacher, our loss)
    "token-soft": ("Token", {"temperature": 3.0}, 24, "soft 3"),
    "token-hard": ("Token", {"distill_type": "hard"}, 24, "hard"),
    "logits": ("Logit", {"temperature": 0.5}, 24, "soft 0.5"),
    "features": ("Feature", {}, 24, "mse"),
    "features-same-width": ("Feature", {}, 16, "mse"),
}


def original(kind, width, **options):
    """Returns a model of timm with random weights, for 3 classes."""
    import timm
    import torch

    torch.manual_seed(width)
    modules = timm.models.deit, timm.models.vision_transformer
    make = next(getattr(m, kind) for m in modules if hasattr(m, kind))
    model = make(embed_dim=width, num_classes=3, **SIZES, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    model.in_chans = 3
    return model


def ours(model, path, **options):
    """Returns our model of the weights of a model of timm."""
    import torch

    torch.save(model.state_dict(), path)
    return keras_vit.converters.load(path, "timm", num_heads=2, **options)


@pytest.mark.parametrize(
    "name, alpha",
    [("token-hard", 0.0), *((x, 0.3) for x in STEPS), ("logits", 1)],
)
def test_one_step_equals_timm(name, alpha, tmp_path, record_error, eager):
    torch = pytest.importorskip("torch")
    task = pytest.importorskip("timm.task")
    kind, options, width, loss = STEPS[name]
    target = name.partition("-")[0]
    arguments, _ = LOSSES[loss]
    distilled = target == "token"
    theirs = original("VisionTransformer" + "Distilled" * distilled, 16)
    theirs.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    their_teacher = original("VisionTransformer", width)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    their_teacher.pretrained_cfg = {"mean": mean, "std": std}
    theirs = getattr(task, f"{kind}DistillationTask")(
        theirs,
        their_teacher,
        torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        task_loss_weight=1 - alpha,
        distill_loss_weight=alpha,
        verbose=False,
        **options,
    )
    module = getattr(theirs.trainable_module, "student", theirs.trainable_module)
    student = ours(module, tmp_path / "student.pth")
    file = tmp_path / "teacher.keras"
    ours(their_teacher, tmp_path / "teacher.pth").save(file)
    teacher = distillation.as_teacher(
        evaluation.load_classifier(str(file), mode="torch"), target == "features"
    )
    model = distillation.Distillation(
        student,
        teacher,
        target,
        losses.DistillationLoss(*arguments),
        alpha,
    )
    if model.projection is not None:
        weight, bias = theirs.trainable_module.projection.parameters()
        model.projection.set_weights(
            [x.detach().numpy().T.copy() for x in (weight, bias)]
        )
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    labels = np.array([0, 2, 1, 1])
    optimizer = torch.optim.SGD(theirs.trainable_module.parameters(), RATE)
    theirs.train()
    expected = theirs(
        torch.from_numpy(images.transpose(0, 3, 1, 2)), torch.tensor(labels)
    )["loss"]
    expected.backward()
    optimizer.step()
    model.compile(
        keras.optimizers.SGD(RATE),
        keras_vit.losses.get_loss("softmax", True, 0.1),
        metrics=["accuracy"],
    )
    before = model.teacher_digest()
    found = model.train_on_batch(images, np.eye(3)[labels])[0]
    error = abs(found - expected.item()) / max(1, expected.item())
    record_error("one step of timm, loss", name, error, 1e-6)
    after = ours(module, tmp_path / "after.pth")
    for weight, other in zip(student.weights, after.weights, strict=True):
        error = np.abs(numpy(weight) - numpy(other)).max()
        record_error("one step of timm", weight.path, error, 3e-6)
    assert model.teacher_digest() == before
    assert not {id(x) for x in model.trainable_variables} & {
        id(x) for x in teacher.weights
    }


@pytest.mark.parametrize("target", on_all(distillation.TARGETS, ["token"]))
def test_images_of_several_sizes_and_regularization(target, eager):
    """The loss is that of images of one size, plus all of that of a kernel."""
    images, y = small.images(4, 8, 12, 3), np.array([0, 2, 1, 1])
    found = []
    for is_mixed, factor in ((False, 0.0), (True, 0.0), (False, 2.0)):
        keras.utils.set_random_seed(0)
        student = small.tiny(distillation=target == "token")
        teacher = small.tiny()
        if target == "features":
            teacher = keras_vit.feature_extractor(teacher, "pooling")
        for scale, model in ((0.2, student), (0.3, teacher)):
            small.randomize(model, scale)
        x, kernel = images, student.get_layer("head").kernel
        if is_mixed:
            student, teacher = map(keras_vit.mixed_sizes, (student, teacher))
            x = keras_vit.data.pack_images(images, 4, 9)
        kernel.regularizer = keras.regularizers.L2(factor)
        model = distillation.Distillation(student, teacher, target, alpha=0.3)
        model.compile("sgd", keras_vit.losses.get_loss("softmax", False))
        penalty = factor * (numpy(kernel) ** 2).sum()
        found.append(model.train_on_batch(x, y) - penalty)
        assert np.isfinite(model.predict(x, verbose=0)).all()
    np.testing.assert_allclose(found, found[0], rtol=1e-5)


finetune = programs.load("finetune_cifar")


@pytest.fixture(scope="module")
def digits_teacher(tmp_path_factory):
    """The file of a BiT for the digits, of other images than the student."""
    path = tmp_path_factory.mktemp("teacher") / "teacher.keras"
    model = small.bit(input_shape=(16, 16, 1), classes=10)
    small.randomize(model)
    model.save(path)
    return path


def train(**settings):
    small = {"steps": 3, "batch_size": 16, "image_size": 8}
    settings = {**small, "evaluate_every": 2, **settings}
    with pytest.MonkeyPatch.context() as patch, runs.few_files():
        patch.setitem(sizes.COMPACT, "compact-vit", programs.SMALL)
        finetune.main(finetune.Config(**settings))


@pytest.mark.slow
@pytest.mark.suite("torch")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("target", ["token", "features"])
def test_interrupted_run_resumes_bit_for_bit(target, digits_teacher, tmp_path):
    """With micro-batches, averages and, for features, half precision."""
    teacher = tmp_path / "teacher.keras"
    shutil.copy(digits_teacher, teacher)
    settings = {
        "teacher": str(teacher),
        "distill": target,
        "mixed_precision": target == "features",
        "accumulate": 2,
        "average": 0.5,
        "checkpoint_every": 1,
    }
    train(**settings, output=str(tmp_path / "straight"))
    with programs.interrupted(2):
        train(**settings, output=str(tmp_path / "crashed"))
    (file,) = (tmp_path / "crashed" / "checkpoints").glob("*1.npz")
    saved = {x.shape for x in np.load(file).values()}
    assert (7, 7, 1, 32) not in saved  # the root of the BiT
    assert ((16, 256) in saved) == (target == "features")  # the projection
    other = keras.models.load_model(teacher)
    small.randomize(other, 0.1)
    other.save(teacher)
    with pytest.raises(UserError, match="is of another run: teacher_digest"):
        train(**settings, output=str(tmp_path / "crashed"))
    shutil.copy(digits_teacher, teacher)
    train(**settings, output=str(tmp_path / "crashed"))
    programs.assert_same_runs(tmp_path / "crashed", tmp_path / "straight")
    found = keras.models.load_model(tmp_path / "straight" / "model.keras")
    names = {layer.name for layer in found.layers}
    assert ("distillation_head" in names) == (target == "token")
    assert not names & {"teacher", "projection"}


REFUSED = {
    "8 classes": ({"classes": 8}, {}, "has 8 classes with no names"),
    "3 channels": ({"input_shape": (16, 16, 3)}, {}, None),  # are repeated
    "softmax": ({"classifier_activation": "softmax"}, {}, None),
    "no head": ({"include_top": False}, {}, "has no classification head"),
    "loss": ({}, {"distill_loss": "cosine"}, "--distill-loss cosine does not"),
    "hard": (
        {},
        {"distill_loss": "hard", "temperature": 2.0},
        "--temperature does not go with --distill logits",
    ),
    "sigmoid": ({}, {"loss": "sigmoid"}, "--loss sigmoid does not go with"),
    "BiT": (
        {},
        {"distill": "token", "model": "compact-bit"},
        "--distill token is for Vision Transformers",
    ),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_wrong_numbers_is_refused(name, tmp_path):
    options, settings, message = REFUSED[name]
    file, output = tmp_path / "teacher.keras", tmp_path / "output"
    sizes = {"input_shape": (16, 16, 1), "classes": 10, **options}
    small.bit(**sizes).save(file)
    settings = {"teacher": str(file), "output": str(output), **settings}
    if message is None:
        train(**{**settings, "steps": 1})
        assert (output / "model.keras").exists()
        return
    with pytest.raises(UserError, match=message):
        train(**settings)
    assert not list(output.glob("*.npz"))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "target, message", [("logits", "in 'softmax'"), ("features", "shares")]
)
def test_models_that_would_learn_nothing_are_refused(target, message):
    student, teacher = small.tiny(), small.tiny(classifier_activation="softmax")
    if target == "features":
        teacher = keras.Model(student.input, student.get_layer("head").input)
    with pytest.raises(ValueError, match=message):
        distillation.Distillation(student, teacher, target)
    assert student.trainable and teacher.trainable
