"""Encoders that pre-training saves can be fine-tuned."""

import keras
import pytest

import keras_vit
from keras_vit import converters
from keras_vit import pretraining
from keras_vit.training.pretraining import save_masked
from tests.pretraining import small

ON_TORCH = pytest.mark.backends("torch")
HEADS = {"output_dim": 6, "hidden_dim": 10}
MODELS = {
    "dino": lambda e: pretraining.DINO(e, bottleneck_dim=5, **HEADS),
    "mocov3": lambda e: pretraining.MoCoV3(e, **HEADS),
    **small.MODELS,
}


@pytest.mark.parametrize(
    "kind",
    [
        *("mocov3", "mae"),
        *(pytest.param(x, marks=ON_TORCH) for x in ("dino", "mim", "mpp")),
    ],
)
def test_all_weights_of_a_saved_encoder_are_trainable(kind, tmp_path):
    model = MODELS[kind](small.encoder(num_layers=1))
    trained = {v.path for v in model.trainable_variables}
    save_masked(model, tmp_path)
    # Saving does not change what the pre-training model trains.
    assert {v.path for v in model.trainable_variables} == trained
    path = tmp_path / "encoder.keras"
    getattr(model, "teacher", model.encoder).save(tmp_path / "direct.keras")
    loaded = [
        keras.models.load_model(path),
        converters.load(path),
        keras.models.load_model(tmp_path / "direct.keras"),
    ]
    for encoder in loaded:
        assert len(encoder.trainable_weights) == len(encoder.weights) == 22
    again = pretraining.DINO(loaded[0], bottleneck_dim=5, **HEADS)
    assert len(again.encoder.trainable_weights) == 22


@ON_TORCH
def test_pre_training_trains_the_same_weights_as_before():
    def frozen(model):
        encoders = (model.encoder, getattr(model, "teacher", None))
        return [
            None
            if e is None
            else {v.path.split("/")[0] for v in e.weights}
            - {v.path.split("/")[0] for v in e.trainable_weights}
            for e in encoders
        ]

    dino, moco, mae = (
        MODELS[kind](small.encoder(num_layers=1))
        for kind in ("dino", "mocov3", "mae")
    )
    assert frozen(dino)[0] == set() and not dino.teacher.trainable_weights
    fixed = {"patch_embedding", "position_embedding"}
    assert frozen(moco)[0] == fixed and not moco.teacher.trainable_weights
    assert frozen(mae)[0] == {"position_embedding"}


@ON_TORCH
def test_frozen_models_with_several_outputs_load_as_saved(tmp_path):
    encoder = small.encoder(num_layers=1)
    encoder.get_layer("position_embedding").trainable = False
    model = keras_vit.feature_extractor(encoder, ["block_0", "encoder_norm"])
    model.save(tmp_path / "features.keras")
    loaded = converters.load(tmp_path / "features.keras")
    assert not loaded.get_layer("position_embedding").trainable
