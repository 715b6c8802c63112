"""Layers that were frozen stay frozen in saved, loaded and cloned models."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers

pytestmark = pytest.mark.backends("torch")

SMALL = {"input_shape": (16, 16, 3), "classes": 3}


def vit(**arguments):
    return keras_vit.VisionTransformer(
        patch_size=8,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        **{**SMALL, "qk_norm": True, "layer_scale": 0.1, **arguments},
    )


def map_pooled():
    return vit(pooling="map")


def hybrid():
    return keras_vit.HybridVisionTransformer(
        resnet_layers=(1,),
        width_factor=0.5,
        patch_size=1,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        **SMALL,
    )


def batch():
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    return images, np.array([0, 1, 2, 0])


def compiled(model):
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def trainable(model):
    paths = {v.path for v in model.trainable_variables}
    assert paths == {v.path for v in model.variables if v.trainable}
    return paths


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def copies(model, tmp_path):
    """Returns the copies of the model by each method of Keras."""
    config = json.loads(json.dumps(model.get_config()))
    return {
        "load_model": saved_and_loaded(model, tmp_path),
        "clone_model": keras.models.clone_model(model),
        "from_config": type(model).from_config(config),
        "model_from_json": keras.models.model_from_json(model.to_json()),
    }


def flags(model):
    return {x.path: x.trainable for x in model._flatten_layers() if x.weights}


def freeze_backbone(model):
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert trainable(model) == {"head/kernel", "head/bias"}


def freeze_sublayers(model):
    model.get_layer("block_0").attention.trainable = False
    model.get_layer("block_1").mlp.dense_1.trainable = False
    model.get_layer("block_0").norm_2.trainable = False


def train_sublayers_of_a_frozen_block(model):
    block = model.get_layer("block_0")
    block.trainable = False
    block.mlp.trainable = True
    block.attention.query.trainable = True
    expected = trainable(model)
    assert "block_0/attention/query/kernel" in expected
    assert "block_0/attention/key/kernel" not in expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, freeze",
    [
        (map_pooled, freeze_backbone),
        (hybrid, freeze_backbone),
        (vit, freeze_sublayers),
        (vit, train_sublayers_of_a_frozen_block),
    ],
)
def test_frozen_layers_stay_frozen_in_copies(build, freeze, tmp_path):
    model = build()
    freeze(model)
    for way, copy in copies(model, tmp_path).items():
        assert trainable(copy) == trainable(model), way
        assert flags(copy) == flags(model), way


def test_nested_frozen_backbone_stays_frozen_in_copies(tmp_path):
    backbone = vit(include_top=False)
    backbone.trainable = False
    inputs = keras.Input((16, 16, 3))
    outputs = keras.layers.Dense(3, name="new_head")(backbone(inputs))
    model = keras.Model(inputs, outputs)
    assert trainable(model) == {"new_head/kernel", "new_head/bias"}
    for way, copy in copies(model, tmp_path).items():
        assert trainable(copy) == trainable(model), way


@pytest.mark.suite("jax", "torch")
@pytest.mark.backends("jax", "tensorflow", "torch")
def test_training_resumes_with_the_optimizer_state(tmp_path):
    model = compiled(vit())
    for layer in model.layers[:-1]:
        layer.trainable = False
    model.get_layer("block_1").mlp.trainable = True
    model.train_on_batch(*batch())
    loaded = saved_and_loaded(model, tmp_path)
    before = [np.array(v) for v in model.optimizer.variables]
    after = [np.array(v) for v in loaded.optimizer.variables]
    assert len(after) == 2 + 2 * len(model.trainable_variables)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    for _ in range(2):
        losses = [m.train_on_batch(*batch()) for m in (model, loaded)]
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
