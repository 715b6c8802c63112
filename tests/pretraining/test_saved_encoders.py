"""Encoders that pre-training saves can be fine-tuned."""

import keras
import pytest

import keras_vit
from keras_vit import converters, pretraining
from keras_vit_programs.label_free import save_masked
from tests.pretraining import small

ON_TORCH = pytest.mark.backends("torch")
HEADS = {"output_dim": 6, "hidden_dim": 10}
MODELS = {
    "dino": lambda e: pretraining.DINO(e, bottleneck_dim=5, **HEADS),
    "mocov3": lambda e: pretraining.MoCoV3(e, **HEADS),
    **small.MODELS,
}


@pytest.mark.parametrize(
    "kind, frozen",
    [
        ("mocov3", {"patch_embedding", "position_embedding"}),
        pytest.param("mae", {"position_embedding"}, marks=ON_TORCH),
        pytest.param("dino", set(), marks=ON_TORCH),
    ],
)
def test_all_weights_of_a_saved_encoder_are_trainable(kind, frozen, tmp_path):
    model = MODELS[kind](small.encoder(num_layers=1))
    teacher = getattr(model, "teacher", None)
    trained = {v.path for v in model.trainable_variables}
    save_masked(model, tmp_path)
    # Saving does not change what the pre-training model trains.
    assert {v.path for v in model.trainable_variables} == trained
    all_, left = (
        {v.path.partition("/")[0] for v in weights}
        for weights in (model.encoder.weights, model.encoder.trainable_weights)
    )
    assert all_ - left == frozen
    assert teacher is None or not teacher.trainable_weights
    path = tmp_path / "encoder.keras"
    (teacher or model.encoder).save(tmp_path / "direct.keras")
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
def test_frozen_models_with_several_outputs_load_as_saved(tmp_path):
    encoder = small.encoder(num_layers=1)
    encoder.get_layer("position_embedding").trainable = False
    model = keras_vit.feature_extractor(encoder, ["block_0", "encoder_norm"])
    model.save(tmp_path / "features.keras")
    loaded = converters.load(tmp_path / "features.keras")
    assert not loaded.get_layer("position_embedding").trainable
