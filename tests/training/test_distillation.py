"""Distillation: losses, one step, resuming; against timm and NumPy."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import distillation
from keras_vit import losses
from tests.harness import numpy

RNG = np.random.default_rng(0)
TEACHER, STUDENT = RNG.normal(0, 4, (2, 6, 5)).astype("float32")
# Sure predictions, which Keras's `KLDivergence` clips.
TEACHER[0] *= 20
STUDENT[1] *= 20


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def soft(teacher, student, temperature=1.0):
    t, s = (log_softmax(x / temperature) for x in (teacher, student))
    return (np.exp(t) * (t - s)).sum(-1) * temperature**2


def hard(teacher, student):
    rows = np.arange(len(teacher)), teacher.argmax(-1)
    return -log_softmax(student)[rows]


def cosine(teacher, student):
    norms = [np.linalg.norm(x, axis=-1) for x in (teacher, student)]
    return 1 - (teacher * student).sum(-1) / np.prod(norms, axis=0)


def smooth_l1(teacher, student):
    d = np.abs(teacher - student)
    return np.where(d < 1, d**2 / 2, d - 0.5).mean(-1)


LOSSES = {
    "soft": (losses.SoftDistillation, (), soft),
    "soft 3": (losses.SoftDistillation, (3.0,), soft),
    "soft 0.5": (losses.SoftDistillation, (0.5,), soft),
    "hard": (losses.HardDistillation, (), hard),
    "cosine": (losses.FeatureDistillation, ("cosine",), cosine),
    "smooth_l1": (losses.FeatureDistillation, ("smooth_l1",), smooth_l1),
    "mse": (
        losses.FeatureDistillation,
        ("mse",),
        lambda t, s: ((t - s) ** 2).mean(-1),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_their_definitions(name, record_error):
    make, arguments, reference = LOSSES[name]
    numbers = arguments if isinstance((*arguments, "")[0], float) else ()
    expected = reference(TEACHER.astype(float), STUDENT.astype(float), *numbers)
    loss = keras.losses.deserialize(
        keras.losses.serialize(make(*arguments, reduction="none"))
    )
    found = keras.ops.convert_to_numpy(loss(TEACHER, STUDENT))
    error = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    record_error("distillation losses", name, error.max(), 1e-6)
    # The mean over images with their weights, in half precision too.
    weights = np.array([2, 0, 1, 1, 0.5, 1.5], "float32")
    half = [keras.ops.cast(x, "bfloat16") for x in (TEACHER / 8, STUDENT / 8)]
    rounded = [
        keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in half
    ]
    expected = reference(*(x.astype(float) for x in rounded), *numbers)
    found = float(make(*arguments)(*half, sample_weight=weights))
    assert found == pytest.approx((weights * expected).mean(), rel=1e-5)


@pytest.mark.backends("torch")
def test_losses_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="above 0. Received: temperature=0"):
        losses.SoftDistillation(0)
    with pytest.raises(ValueError, match="one of 'cosine'"):
        losses.FeatureDistillation("l2")


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


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", STEPS)
def test_one_step_equals_timm(name, alpha, tmp_path, record_error, eager):
    torch = pytest.importorskip("torch")
    task = pytest.importorskip("timm.task")
    kind, options, width, loss = STEPS[name]
    target = name.partition("-")[0]
    make, arguments, _ = LOSSES[loss]
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
    module = getattr(
        theirs.trainable_module, "student", theirs.trainable_module
    )
    student = ours(module, tmp_path / "student.pth")
    file = tmp_path / "teacher.keras"
    ours(their_teacher, tmp_path / "teacher.pth").save(file)
    teacher = distillation.load_teacher(
        str(file), target == "features", mode="torch"
    )
    model = distillation.Distillation(
        student, teacher, target, make(*arguments), alpha
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
