"""Layers that were frozen stay frozen in saved, loaded and cloned models."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.harness import copies
from tests.small import hybrid, images, tiny

pytestmark = pytest.mark.backends("torch")


def vit(**options):
    return tiny(qk_norm=True, layer_scale=0.1, **options)


def trainable(model):
    paths = {v.path for v in model.trainable_variables}
    assert paths == {v.path for v in model.variables if v.trainable}
    return paths


def flags(model):
    return {x.path: x.trainable for x in model._flatten_layers() if x.weights}


def frozen_backbone(build, **options):
    model = build(**options)
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert trainable(model) == {"head/kernel", "head/bias"}
    return model


def frozen_sublayers():
    model = vit()
    model.get_layer("block_0").attention.trainable = False
    model.get_layer("block_1").mlp.dense_1.trainable = False
    model.get_layer("block_0").norm_2.trainable = False
    return model


def trained_sublayers_of_a_frozen_block():
    model = vit()
    block = model.get_layer("block_0")
    block.trainable = False
    block.mlp.trainable = True
    block.attention.query.trainable = True
    found = trainable(model)
    assert "block_0/attention/query/kernel" in found
    assert "block_0/attention/key/kernel" not in found
    return model


def nested_backbone():
    backbone = vit(include_top=False, classes=None)
    backbone.trainable = False
    inputs = keras.Input((8, 12, 3))
    outputs = keras.layers.Dense(3, name="new_head")(backbone(inputs))
    model = keras.Model(inputs, outputs)
    assert trainable(model) == {"new_head/kernel", "new_head/bias"}
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: frozen_backbone(vit, pooling="map"),
        lambda: frozen_backbone(hybrid),
        frozen_sublayers,
        trained_sublayers_of_a_frozen_block,
        nested_backbone,
    ],
)
def test_frozen_layers_stay_frozen_in_copies(build, tmp_path):
    model = build()
    for way, copy in copies(model, tmp_path).items():
        assert trainable(copy) == trainable(model), way
        assert flags(copy) == flags(model), way


@pytest.mark.suite("jax", "torch")
@pytest.mark.backends("jax", "tensorflow", "torch")
def test_training_resumes_with_the_optimizer_state(tmp_path):
    model = frozen_backbone(vit)
    model.get_layer("block_1").mlp.trainable = True
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batch = images(4, 8, 12, 3), np.array([0, 1, 2, 0])
    model.train_on_batch(*batch)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    before = [np.array(v) for v in model.optimizer.variables]
    after = [np.array(v) for v in loaded.optimizer.variables]
    assert len(after) == 2 + 2 * len(model.trainable_variables)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    for _ in range(2):
        losses = [m.train_on_batch(*batch) for m in (model, loaded)]
        assert losses[0] == losses[1]
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_config_of_an_unbuilt_block_keeps_trainable_flags():
    block = layers.TransformerBlock(2, 32)
    block.build((None, 4, 16))
    assert "sublayer_trainable" not in block.get_config()
    block.mlp.trainable = False
    config = block.get_config()
    assert config["sublayer_trainable"] == {"mlp": False}
    copy = layers.TransformerBlock.from_config(config)
    assert copy.get_config() == config
    copy.build((None, 4, 16))
    assert copy.get_config() == config
    assert not copy.mlp.trainable_variables and copy.attention.trainable


def test_unknown_sublayers_raise():
    block = layers.TransformerBlock(2, 32, sublayer_trainable={"mpl": False})
    with pytest.raises(ValueError, match="mlp/dense_1.*Received: mpl"):
        block.build((None, 4, 16))
