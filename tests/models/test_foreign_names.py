"""Errors of other libraries' names say what to write here."""

import inspect
import pathlib
import pickle
import re

import pytest

import keras_vit
from keras_vit.models import BIT_VARIANTS
from keras_vit.models import VARIANTS
from keras_vit.models.config import FOREIGN_ARGUMENT_NAMES

pytestmark = pytest.mark.backends("torch")


ROOT = pathlib.Path(__file__).parents[2]
ACCEPTED = inspect.signature(keras_vit.VisionTransformer).parameters


def test_suggestions_exist():
    others = {
        "dense_features",
        "inspection.attention_maps",
        "keras.config.set_dtype_policy",
    }
    names = set(FOREIGN_ARGUMENT_NAMES.values())
    assert names <= {*ACCEPTED} | others


def test_table_of_the_documentation_is_what_errors_say():
    text = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
    table = text.partition("\n## ")[0].splitlines()
    found = 0
    for line in table:
        *_, here = cells = line.strip("|").split("|")
        names = set(re.findall(r"(\w+)=", here))
        for name in re.findall(r"`(\w+)=", " ".join(cells[1:-1])):
            if name in ACCEPTED or name in ("pretrained", "pretrained_top"):
                continue
            if name == "dynamic_img_size":  # a size, as `img_size`
                name = "img_size"
            if name == "num_classes" and "include_top" in names:
                continue  # 0 there; `classes=0` is answered with include_top
            with pytest.raises(TypeError) as error:
                keras_vit.ViTTi16(**{name: 1})
            expected = str(error.value).split("'")[-2]
            assert expected in {*names, *re.findall(r"\w+", here)}, line
            found += 1
    assert found > 5


def test_error_for_a_file_of_another_size_is_short(tmp_path):
    sizes = {"input_shape": (16, 16, 3), "num_layers": 2, "classes": 2}
    keras_vit.converters.save(keras_vit.ViTTi16(**sizes), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="does not fit") as error:
        keras_vit.ViTS16(weights=tmp_path / "a.npz", **sizes)
    message = str(error.value)
    assert "and " in message and " more" in message and message.count("\n") < 30


def test_functions_can_be_pickled():
    for name in (*VARIANTS, *BIT_VARIANTS):
        function = getattr(keras_vit, name)
        assert pickle.loads(pickle.dumps(function)) is function
