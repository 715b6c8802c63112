"""Models trained here run in timm, transformers and torchvision, and theirs
here: the libraries themselves compute the expected outputs."""

import keras
import numpy as np
import pytest

import keras_vit
from tests import originals

# Rounding makes up to 3e-6 here, the other GELU 1.4e-5 and more.
TOLERANCE = 1e-5
SIZES = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 64,
    "patch_size": 8,
    "input_shape": (32, 32, 3),
    "classes": 5,
}


def images(count=4, height=32, width=32):
    sample = np.random.default_rng(0).normal
    return sample(size=(count, height, width, 3)).astype("float32")


# Compiling takes seconds under JAX and TensorFlow: there, one of each library
# is compared. PyTorch compares all; that the backends agree on every
# architecture is what the golden cases show.
TRAINED = (
    "timm-registers-scale-qknorm",
    "transformers-dinov2-registers-swiglu",
    "torchvision-pre-logits",
)
NAMES = [
    name
    if name in TRAINED
    else pytest.param(name, marks=pytest.mark.backends("torch"))
    for name in originals.CASES
]


def made(name):
    """A model after three steps of training, or with random weights."""
    arguments = originals.CASES[name].arguments
    model = keras_vit.VisionTransformer(**{**SIZES, **arguments})
    if name not in TRAINED and keras.backend.backend() != "torch":
        sample = np.random.default_rng(1).normal
        for weight in model.weights:
            weight.assign(weight + sample(size=weight.shape, scale=0.1))
        return model
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = images(12), np.arange(12) % 5
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    return model


def logits(model, x=None):
    x = images() if x is None else x
    return keras.ops.convert_to_numpy(model(x, training=False))


def assert_alike(found, expected):
    assert np.ptp(expected, axis=0).max() > 0.01, (
        "the images make no difference"
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("eager")
def test_exported_model_matches_in_the_original_library(name, tmp_path):
    case = originals.CASES[name]
    original = originals.build(case)
    model = made(name)
    path = tmp_path / "model.safetensors"
    keras_vit.converters.save(model, path, case.layout)
    original = originals.load(case, original, path)
    assert_alike(originals.run(original, images()), logits(model))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", NAMES)
def test_original_model_matches_after_loading(name, tmp_path):
    case = originals.CASES[name]
    original = originals.build(case)
    originals.shake(original)
    path = originals.save(case, original, tmp_path)
    arguments = {
        "num_heads": 2,
        "input_shape": (32, 32, 3),
        **case.load_arguments,
    }
    model = keras_vit.converters.load(path, **arguments)
    assert_alike(logits(model), originals.run(original, images()))


@pytest.mark.backends("torch")
def test_deit3_layout_writes_gamma_names(tmp_path):
    """Meta's own files use the name gamma_1; timm renames it when it reads
    them."""
    case = originals.CASES["timm-deit3"]
    original = originals.build(case)
    model = made("timm-deit3")
    path = tmp_path / "model.safetensors"
    keras_vit.converters.save(model, path, "timm:deit3")
    module = pytest.importorskip("timm").models.vision_transformer
    arrays = originals.read(path)
    assert "blocks.0.gamma_1" in arrays
    renamed = module.checkpoint_filter_fn(
        arrays, original, adapt_layer_scale=True
    )
    original.load_state_dict(renamed, strict=True)
    assert_alike(originals.run(original, images()), logits(model))
    model = keras_vit.converters.load(path, num_heads=2)
    assert_alike(logits(model), originals.run(original, images()))
