"""Errors for the argument names of other packages."""

import multiprocessing
import pickle

import pytest

import keras_vit
from keras_vit.models import BIT_VARIANTS
from keras_vit.models import VARIANTS

pytestmark = pytest.mark.backends("torch")


def test_weights_by_position_raise():
    """The first argument is `include_top`: weights in its place gave a random
    model."""
    for given in ("imagenet", 224):
        with pytest.raises(ValueError, match=f"include_top={given!r}. Give"):
            keras_vit.ViTTi16(given)


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("num_labels", "classes"),
        ("pretrained_top", "classes"),
        ("dynamic_img_size", "input_shape"),
        ("in_channels", "input_shape"),
        ("preset", "weights"),
    ],
)
def test_argument_names_of_other_libraries_are_suggested(theirs, ours):
    with pytest.raises(TypeError, match=f"{theirs!r}. Did you mean {ours!r}"):
        keras_vit.ViTTi16(**{theirs: 1})


def test_error_for_a_file_of_another_size_is_short(tmp_path):
    sizes = {"input_shape": (16, 16, 3), "num_layers": 2, "classes": 2}
    keras_vit.converters.save(keras_vit.ViTTi16(**sizes), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="does not fit") as error:
        keras_vit.ViTS16(weights=tmp_path / "a.npz", **sizes)
    message = str(error.value)
    assert "and " in message and " more" in message and message.count("\n") < 30


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", [*VARIANTS, *BIT_VARIANTS])
def test_functions_can_be_pickled(name):
    function = getattr(keras_vit, name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_functions_can_be_sent_to_a_new_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        name = pool.apply(getattr, (keras_vit.ViTB16, "__name__"))
    assert name == "ViTB16"
