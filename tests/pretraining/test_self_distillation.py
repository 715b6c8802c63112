"""Losses, heads and updates of DINO and MoCo v3, compared with lightly's.

`tests/golden/make_lightly.py` made the arrays.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from keras_vit.pretraining import losses
from tests import golden_data
from tests.harness import numpy

TOLERANCE = {"rtol": 0, "atol": 1e-6}
MOCO_TEMPERATURE = 0.2  # of make_lightly.py


@pytest.fixture(scope="module")
def golden():
    with np.load(golden_data.FOLDER / "lightly.npz") as file:
        arrays = {name: file[name] for name in file.files}

    def part(prefix):
        start = f"{prefix}/"
        return {
            name.removeprefix(start): array
            for name, array in arrays.items()
            if name.startswith(start)
        }

    return part


def value_and_gradient(function, x):
    """Returns a scalar function's value and gradient on any backend."""
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        value, gradient = jax.value_and_grad(function)(x)
    elif backend == "tensorflow":
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        gradient = tape.gradient(value, x)
    else:
        x = ops.convert_to_tensor(x).requires_grad_()
        value = function(x)
        value.backward()
        value, gradient = value.detach(), x.grad
    return numpy(value), numpy(gradient)


def by_image(x):
    """Moves lightly's axis of crops behind that of images."""
    return np.ascontiguousarray(np.swapaxes(x, 0, 1))


@pytest.mark.parametrize("step", [0, 1])
def test_dino_matches_lightly(golden, step):
    case = golden(f"dino_{step}")
    teacher = by_image(case["teacher"])

    def loss(student):
        values = losses.dino_losses(
            student, teacher, case["center"], float(case["temperature"])
        )
        return ops.mean(values)

    value, gradient = value_and_gradient(loss, by_image(case["student"]))
    # The loss is up to 18, of which the last bit of float32 is 1.9e-6.
    np.testing.assert_allclose(value, case["loss"], rtol=2e-7, atol=1e-6)
    np.testing.assert_allclose(by_image(gradient), case["gradient"], **TOLERANCE)
    center = losses.updated_center(case["center"], ops.convert_to_tensor(teacher))
    np.testing.assert_allclose(numpy(center), case["new_center"], **TOLERANCE)


def test_moco_matches_lightly(golden):
    case = golden("moco")

    def loss(queries):
        values = losses.contrastive_losses(
            queries,
            case["keys"],
            np.arange(len(case["keys"])),
            MOCO_TEMPERATURE,
        )
        return ops.mean(values)

    value, gradient = value_and_gradient(loss, case["queries"])
    np.testing.assert_allclose(value, case["loss"], **TOLERANCE)
    np.testing.assert_allclose(gradient, case["gradient"], **TOLERANCE)


def test_koleo_matches_lightly(golden):
    case = golden("koleo")
    value, gradient = value_and_gradient(losses.koleo_loss, case["features"])
    np.testing.assert_allclose(value, case["loss"], **TOLERANCE)
    np.testing.assert_allclose(gradient, case["gradient"], **TOLERANCE)


def test_ibot_matches_lightly(golden):
    """lightly takes the masked patches only; here the others are random."""
    case = golden("ibot")
    mask = case["mask"].astype(bool).reshape(len(case["mask"]), -1)
    rng = np.random.default_rng(2)
    shape = (*mask.shape, case["student"].shape[-1])
    student, teacher = rng.normal(size=(2, *shape)).astype("float32")
    student[mask], teacher[mask] = case["student"], case["teacher"]
    center = np.zeros(shape[-1], "float32")

    def loss(x):
        return ops.mean(losses.ibot_losses(x, teacher, mask, center, 0.05))

    value, gradient = value_and_gradient(loss, student)
    # The spacing of float32 is more than 1e-6 at this loss.
    assert case["loss"] > 8
    np.testing.assert_allclose(value, case["loss"], rtol=1e-6, atol=0)
    np.testing.assert_allclose(gradient[mask], case["gradient"], **TOLERANCE)
    assert not gradient[~mask].any()


def test_dino_head_matches_lightly(golden):
    case = golden("dino_head")
    head = pretraining.DINOHead(9, hidden_dim=10, bottleneck_dim=5)
    head.build((None, 6))
    for i, layer in ((0, head.dense_1), (2, head.dense_2), (4, head.dense_3)):
        layer.kernel.assign(case[f"layers-{i}-weight"].T)
        layer.bias.assign(case[f"layers-{i}-bias"])
    np.testing.assert_array_equal(case["last_layer-weight_g"], 1)
    head.last_layer.kernel.assign(case["last_layer-weight_v"].T)
    found = numpy(head(case["inputs"]))
    assert head.compute_output_shape(case["inputs"].shape) == found.shape
    np.testing.assert_allclose(found, case["outputs"], **TOLERANCE)


@pytest.mark.parametrize("name,layers", [("projection", 3), ("prediction", 2)])
def test_moco_heads_match_lightly(golden, name, layers):
    """lightly's last batch norm has a scale of 1 and an offset of 0."""
    case = golden(f"moco_{name}")
    head = pretraining.MoCoHead(9, hidden_dim=10, num_layers=layers)
    head.build((None, 6))
    for i, layer in enumerate(head.linear):
        layer.kernel.assign(case[f"layers-{3 * i}-weight"].T)
    found = numpy(head(case["inputs"], training=True))
    assert head.compute_output_shape(case["inputs"].shape) == found.shape
    # Rounding of batch statistics: 1.5e-6 under TensorFlow, of 1.7.
    np.testing.assert_allclose(found, case["outputs"], rtol=0, atol=3e-6)


def test_momentum_update_matches_lightly(golden):
    case = golden("momentum")
    teacher = keras.Variable(case["before"])
    student = keras.Variable(case["student"])
    losses.update_momentum([teacher], [student], 0.996)
    np.testing.assert_allclose(numpy(teacher), case["after"], **TOLERANCE)
