"""What a run trains, and what its saved model can train."""

import keras
import pytest

from keras_vit import converters
from keras_vit.segmentation import LinearSegmenter
from keras_vit.training.models import freeze_weights
from keras_vit.training.models import set_trainable
from keras_vit.training.training_run import save_model
from keras_vit.training.training_run import write_model
from tests.small import vit

HEAD = {"head/kernel", "head/bias"}
LORA = {
    f"block_0/attention/{name}/lora_kernel_{x}"
    for name in ("query", "value")
    for x in "ab"
}


def paths(model):
    return {variable.path for variable in model.trainable_variables}


@pytest.mark.parametrize(
    "train, options, expected",
    [
        ("head", {}, HEAD),
        ("lora", {"pooling": "map"}, HEAD | LORA),  # of the blocks alone
    ],
)
def test_all_weights_of_a_saved_classifier_are_trainable(
    train, options, expected, tmp_path
):
    model = vit(**options)
    names = paths(model)
    set_trainable(model, train)
    assert paths(model) == expected
    save_model(model, tmp_path)
    assert paths(model) == expected
    file = tmp_path / "model.keras"
    for loaded in (keras.models.load_model(file), converters.load(file)):
        assert paths(loaded) == names
        assert all(layer.trainable for layer in loaded.layers)


@pytest.mark.backends("torch")
def test_all_weights_of_a_saved_segmenter_are_trainable(tmp_path):
    encoder = vit()
    freeze_weights(encoder)
    model = LinearSegmenter(encoder, 3)
    assert len(model.trainable_weights) == 4  # batch norm and convolution
    write_model(model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    statistics = 2  # of the batch norm
    assert len(loaded.trainable_weights) == len(loaded.weights) - statistics


@pytest.mark.backends("torch")
def test_an_unused_mask_token_stays_frozen(tmp_path):
    model = vit(mask_token=True)
    names = paths(model)
    set_trainable(model, "head")
    write_model(model, tmp_path / "model.keras")
    assert paths(keras.models.load_model(tmp_path / "model.keras")) == names
