"""Errors of other libraries' names say what to write here."""

import inspect

import pytest

import keras_vit
from keras_vit.models.config import FOREIGN_ARGUMENT_NAMES

pytestmark = pytest.mark.backends("torch")

ACCEPTED = inspect.signature(keras_vit.VisionTransformer).parameters


@pytest.mark.parametrize("name, here", FOREIGN_ARGUMENT_NAMES.items())
def test_argument_names_what_to_write(name, here):
    with pytest.raises(TypeError) as error:
        keras_vit.ViTTi16(**{name: 1})
    hint = f"Did you mean {here!r}?" if here else f"no argument {name!r}."
    assert str(error.value).endswith(hint)


def test_suggestions_exist():
    others = {
        "dense_features",
        "inspection.attention_maps",
        "keras.config.set_dtype_policy",
    }
    names = set(filter(None, FOREIGN_ARGUMENT_NAMES.values()))
    assert names <= {*ACCEPTED} | others


@pytest.mark.parametrize(
    "name",
    [
        "google/vit-base-patch16-224",
        "timm/vit_tiny_patch16_224.augreg_in21k",
    ],
)
def test_repository_name_is_answered_with_its_address(name):
    with pytest.raises(FileNotFoundError, match=f"'hf://{name}'"):
        keras_vit.ViTTi16(weights=name)
