"""Training, saving and layouts of DINO and MoCo v3."""

import argparse

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import converters, pretraining, schedules
from tests import harness
from tests.harness import numpy
from tests.pretraining import small

HEADS = {"output_dim": 6, "hidden_dim": 10}
ON_TORCH = pytest.mark.backends("torch")


def dino(**arguments):
    options = {"bottleneck_dim": 5, **HEADS, **arguments}
    return pretraining.DINO(small.encoder(num_layers=1), **options)


def moco(**arguments):
    encoder = small.encoder(num_layers=1)
    return pretraining.MoCoV3(encoder, **HEADS, **arguments)


MODELS = {
    "dino": dino,
    "ibot": lambda **a: dino(ibot_weight=1.0, koleo_weight=0.1, seed=0, **a),
    "mocov3": moco,
}


def crops(count=4, local=True):
    rng = np.random.default_rng(0)
    found = {"global": rng.uniform(-1, 1, (count, 2, 16, 16, 3))}
    if local:
        found["local"] = rng.uniform(-1, 1, (count, 3, 8, 8, 3))
    return {name: x.astype("float32") for name, x in found.items()}


@pytest.mark.slow
@pytest.mark.suite("torch")
@pytest.mark.parametrize(
    "kind", ["dino", pytest.param("ibot", marks=ON_TORCH), "mocov3"]
)
def test_model_trains_and_is_saved(kind, tmp_path):
    model = MODELS[kind](teacher_momentum=schedules.CosineSchedule(0.5, 1, 9))
    inputs = crops(local=kind != "mocov3")
    model.compile(keras.optimizers.Adam(3e-3))
    before = [numpy(v) for v in model.trainable_variables]
    teacher = numpy(model.teacher.get_layer("block_0").mlp.dense_1.kernel)
    with harness.eager():
        history = model.fit(inputs, batch_size=4, epochs=6, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert 0 < history["teacher_diversity"][-1] <= 1.5
    assert int(numpy(model.step)) == 6
    for variable, old in zip(model.trainable_variables, before, strict=True):
        name = variable.path
        if "/key/bias" not in name:  # cancels in the softmax
            assert np.abs(numpy(variable) - old).max() > 0, name
    changed = numpy(model.teacher.get_layer("block_0").mlp.dense_1.kernel)
    assert np.abs(changed - teacher).max() > 0

    model.save(tmp_path / "model.keras")
    again = pretraining.load(tmp_path / "model.keras")
    assert again.get_config().keys() == model.get_config().keys()
    for variable, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(numpy(variable), numpy(other))
    assert callable(again.teacher_momentum)
    # Readers of encoders take the one to use after training.
    encoder = converters.load(tmp_path / "model.keras")
    expected = model.pretrained_encoder
    assert (expected is model.teacher) == (kind != "mocov3")
    images = small.images(2)
    np.testing.assert_array_equal(numpy(encoder(images)), numpy(expected(images)))


@ON_TORCH
def test_a_step_is_that_of_its_definition():
    """The teacher follows the student after the step, with the momentum of
    this step; the center uses the teacher's outputs of before."""
    model = dino(teacher_momentum=schedules.CosineSchedule(0.9, 1.0, 4))
    model.compile(keras.optimizers.SGD(0.1))
    inputs = crops()
    weights = [numpy(x) for x in model.teacher.weights]
    for step in range(3):
        outputs = numpy(model(inputs)["teacher"])
        center = numpy(model.center)
        student = [numpy(x) for x in model.encoder.weights]
        momentum = float(numpy(model.teacher_momentum(max(0, step - 1))))
        weights = [
            momentum * x + (1 - momentum) * y
            for x, y in zip(weights, student, strict=True)
        ]
        model.train_on_batch(inputs)
        for found, expected in zip(model.teacher.weights, weights, strict=True):
            np.testing.assert_allclose(numpy(found), expected, atol=1e-6)
        if step == 0:  # before, the teacher was the student
            expected = 0.9 * center + 0.1 * outputs.mean((0, 1))
            np.testing.assert_allclose(numpy(model.center), expected, atol=1e-6)


@ON_TORCH
def test_last_layer_is_frozen_at_first():
    model = dino(frozen_steps=2)
    model.compile(keras.optimizers.SGD(0.1))
    kernel = model.projection.last_layer.kernel
    before = numpy(kernel).copy()
    for _ in range(2):
        model.train_on_batch(crops())
        np.testing.assert_array_equal(numpy(kernel), before)
    model.train_on_batch(crops())
    assert np.abs(numpy(kernel) - before).max() > 0


@ON_TORCH
def test_positions_of_mocov3():
    """vits.py: the first half of the channels is of the row."""
    embedding = numpy(moco().stages.positions.embedding)[0]
    np.testing.assert_array_equal(embedding[0], 0)  # the class token
    np.testing.assert_array_equal(embedding[1, :8], embedding[2, :8])
    assert np.abs(embedding[1, 8:] - embedding[2, 8:]).max() > 0
    angle = np.arange(4) / 10_000 ** (0 / 4)
    np.testing.assert_allclose(embedding[1::4, 0], np.sin(angle), atol=1e-6)
    learned = moco(frozen_patches=False, positions="learned")
    paths = {v.path for v in learned.trainable_variables}
    assert any("patch_embedding" in path for path in paths)
    assert any("position_embedding" in path for path in paths)


@ON_TORCH
def test_diversity_is_zero_if_outputs_do_not_depend_on_the_image():
    from keras_vit.pretraining.losses import entropy_and_diversity

    uniform = np.full((8, 4), 0.25, "float32")
    one_class = np.tile(np.eye(4, dtype="float32")[2], (8, 1))
    spread = np.eye(4, dtype="float32")[np.arange(8) % 4]
    for p, entropy, diversity in (
        (uniform, np.log(4), 0),
        (one_class, 0, 0),
        (spread, 0, 1),
    ):
        p = ops.convert_to_tensor(p)
        found = [float(numpy(x)) for x in entropy_and_diversity(p)]
        np.testing.assert_allclose(found, (entropy, diversity), atol=1e-6)


@ON_TORCH
@pytest.mark.parametrize("make", [dino, moco])
def test_the_teacher_moves_in_half_precision(make):
    """In bfloat16, a momentum of 0.999 is rounded to 1."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = make(teacher_momentum=0.999)
    finally:
        keras.config.set_dtype_policy(policy)
    student, teacher = (
        next(w for w in layer.weights if w.path.endswith("dense_1/kernel"))
        for layer in (model.encoder, model.teacher)
    )
    student.assign(ops.zeros_like(student))
    teacher.assign(ops.ones_like(teacher))
    for _ in range(10):
        model.update_teacher(0)
    assert student.dtype == "bfloat16"
    np.testing.assert_allclose(numpy(teacher), 0.999**10, rtol=1e-5)


# Keys that main_dino.py and main_moco.py write, by the parts of their files.
ORIGINAL = {
    "dino": {
        "student": "module.backbone.cls_token",
        "teacher": "backbone.blocks.0.attn.qkv.weight",
        "dino_loss": "center",
    },
    "mocov3": {"state_dict": "module.base_encoder.head.7.running_mean"},
}


@ON_TORCH
@pytest.mark.parametrize("kind", ORIGINAL)
def test_training_checkpoints_are_read_and_written(kind, tmp_path):
    """Also with the settings of the program and the state of the optimizer."""
    torch = pytest.importorskip("torch")
    encoder = small.encoder(num_layers=1, activation="gelu")
    make = pretraining.DINO if kind == "dino" else pretraining.MoCoV3
    bottleneck = {"bottleneck_dim": 5} if kind == "dino" else {}
    model = make(encoder, **bottleneck, **HEADS)
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if variable is not model.step:
            value = rng.uniform(0.1, 1, variable.shape)
            variable.assign(value.astype("float32"))
    paths = [tmp_path / f"checkpoint{x}" for x in (".safetensors", ".pth")]
    for path in paths:
        converters.save(model, path, kind)
    saved = torch.load(paths[1], weights_only=True)
    assert saved.keys() == ORIGINAL[kind].keys()
    for part, key in ORIGINAL[kind].items():
        assert key in saved[part]
    if kind == "dino":
        shape = saved["teacher"]["head.last_layer.weight_g"].shape
        assert tuple(shape) == (HEADS["output_dim"], 1)
        saved |= {"args": argparse.Namespace(lr=0.1), "epoch": 100}
    else:
        weights = saved["state_dict"]
        assert "module.momentum_encoder.head.0.weight" in weights
        assert "module.predictor.3.weight" in weights
        name = "module.predictor.1.num_batches_tracked"
        weights[name] = torch.tensor(7)
        saved |= {"arch": "vit_small"}
    group = {"lr": np.float64(1.5), "params": [0]}
    state = {0: {"exp_avg": torch.ones(2)}}
    saved["optimizer"] = {"state": state, "param_groups": [group]}
    torch.save(saved, tmp_path / "original.pth.tar")
    for path in (*paths, tmp_path / "original.pth.tar"):
        again = pretraining.load(path, num_heads=2)
        assert type(again) is type(model)
        found = again.variables_by_path()
        for name, variable in model.variables_by_path().items():
            np.testing.assert_array_equal(numpy(found[name]), numpy(variable))
    images = small.images(2)
    expected = numpy(model.pretrained_encoder(images))
    for path in paths:
        alone = numpy(converters.load(path, num_heads=2)(images))
        np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


@ON_TORCH
def test_averages_before_the_batch_norms_of_mocov3_are_refused():
    model = moco()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True))
    with pytest.raises(ValueError, match="statistics of the batch norm"):
        model.fit(crops(local=False), verbose=0)
