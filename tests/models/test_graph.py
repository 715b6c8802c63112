"""Names and outputs of layers, for models that are parts of other models."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import segmentation
from tests import small
from tests.harness import copies
from tests.markers import on_all
from tests.small import bit, images

ON_TORCH = pytest.mark.backends("torch")
SIZE = (16, 24, 3)
IMAGES = images(2, *SIZE)
tiny = functools.partial(small.tiny, input_shape=SIZE, patch_size=8)
SMALL = {"include_top": False, "pooling": "token"}


def predict(model):
    return keras.ops.convert_to_numpy(model(IMAGES, training=False))


@ON_TORCH
def test_unnamed_layers_fit_on_a_backbone(tmp_path):
    keras.utils.clear_session()
    # Some of them exist before the backbone.
    dropout, pooling = keras.layers.Dropout(0.2), keras_vit.layers.Pooling()
    base = tiny(include_top=False)
    x = keras_vit.layers.ClassToken()(base.output)
    x = keras_vit.layers.MaskToken()(x)
    x = dropout(pooling(x))
    model = keras.Model(base.input, keras.layers.Dense(5)(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded), predict(model), atol=1e-6)
    images = keras.Input((16, 16, 3))
    maps = keras_vit.layers.PatchEmbedding(24, 4)(images)
    assert keras.Model(images, maps).output_shape[1:] == (4, 4, 24)


@pytest.mark.parametrize(
    "build",
    [
        lambda: tiny(**SMALL),
        lambda: bit(include_top=False, pooling="gap"),
        lambda: keras_vit.feature_extractor(tiny(), "pooling"),
        lambda: keras_vit.dense_features(tiny()),
        lambda: segmentation.LinearSegmenter(tiny(), 3),
    ],
)
@ON_TORCH
def test_two_models_are_called_in_one(build, tmp_path):
    keras.utils.clear_session()
    pair = build(), build()
    assert not pair[0].name.endswith("_1")
    images = keras.Input(SIZE)
    outputs = keras.layers.Concatenate()([model(images) for model in pair])
    both = keras.Model(images, outputs)
    both.save(tmp_path / "both.keras")
    loaded = keras.models.load_model(tmp_path / "both.keras")
    expected = np.concatenate([predict(model) for model in pair], -1)
    np.testing.assert_allclose(predict(loaded), expected, atol=1e-6)
    given = tiny(name="vision_transformer")
    assert given.name == "vision_transformer"


def gradient(model, name):
    """Returns the gradient of a logit by a layer's output, as in keras.io's
    Grad-CAM."""
    backend = keras.config.backend()
    output = model.get_layer(name).output
    if backend == "jax":
        import jax

        rest = keras.Model(output, model.output)
        x = keras.Model(model.inputs, output)(IMAGES)
        return jax.grad(lambda x: rest(x)[:, 0].sum())(x)
    both = keras.Model(model.inputs, [output, model.output])
    if backend == "torch":
        import torch

        x, logits = both(torch.tensor(IMAGES))
        return torch.autograd.grad(logits[:, 0].sum(), x, allow_unused=True)[0]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        x, logits = both(tf.constant(IMAGES))
        logit = logits[:, 0]
    return tape.gradient(logit, x)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", on_all(["block_1", "encoder_norm"], ["block_1"]))
def test_outputs_of_layers_are_those_of_the_model(name, tmp_path):
    model = tiny(distillation=name == "block_1")
    small.randomize(model)
    extracted = predict(keras_vit.feature_extractor(model, name))
    found = copies(model, tmp_path)
    for other in (model, found["load_model"], found["clone_model"]):
        part = keras.Model(other.input, other.get_layer(name).output)
        np.testing.assert_allclose(predict(part), extracted, atol=1e-6)
        slope = gradient(other, name)
        assert tuple(slope.shape) == extracted.shape
        assert np.abs(keras.ops.convert_to_numpy(slope)).max() > 0
