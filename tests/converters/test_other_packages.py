"""Models of vit-keras and zeromodels: what docs/convert-keras.md shows.

Variables have the paths and shapes of vit-keras 0.2.0 and zeromodels 1.3.6,
whose outputs were within 1e-7 of this package's (2026-11-23); neither is
installed here.
"""

import pathlib
import re
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.files import read
from tests import golden_data
from tests.small import vit

pytestmark = pytest.mark.backends("torch")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "convert-keras.md"
BLOCKS = [
    re.sub(r"^    ", "", block, flags=re.MULTILINE)
    for block in re.findall(
        r"^    import re, keras.*?(?=^\S)",
        PAGE.read_text(),
        re.DOTALL | re.MULTILINE,
    )
]


class Variable(np.ndarray):
    """An array with the path of a variable."""


def of_vit_keras(key, array):
    """Returns the path and the array of vit-keras for Google's."""
    if key == "cls":
        return "class_token/cls", array
    heads = "MultiHeadDotProductAttention" in key
    if heads and re.search("(query|key|value)/kernel", key):
        array = array.reshape(len(array), -1)
    elif heads and re.search("(query|key|value)/bias", key):
        array = array.ravel()
    elif key.endswith("out/kernel"):
        array = array.reshape(-1, array.shape[-1])
    key = key.replace("Transformer/", "Transformer_")
    key = re.sub(r"(.*)/MlpBlock_3/", r"\1/MlpBlock_3/\1_", key)
    if "LayerNorm" in key or "encoder_norm" in key:
        key = key.replace("scale", "gamma").replace("bias", "beta")
    return key, array


def of_zeromodels(key, array):
    """Returns the path and the array of zeromodels for timm's."""
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    array = array.T if array.ndim == 2 else array
    if key in ("cls_token", "pos_embed"):
        return f"{key}/{key}", array
    layer, _, kind = key.rpartition(".")
    if "norm" in layer:
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    kind = "kernel" if kind == "weight" else kind
    layer = {
        "patch_embed.proj": "conv1",
        "norm": "final_layernorm",
        "head": "predictions",
    }.get(layer, layer)
    layer = re.sub(r"^blocks\.(\d+)\.", r"blocks_\1_", layer)
    layer = layer.replace("_norm", "_layernorm_").replace("mlp.fc", "dense_")
    if "attn." in layer:
        layer = layer.replace("attn.", "attn_")
        layer = f"vi_t_multi_head_self_attention_3/{layer}"
    elif layer == "final_layernorm_":
        layer = "final_layernorm"
    return f"{layer}/{kind}", array


@pytest.mark.parametrize("package", ["vit-keras", "zeromodels"])
def test_their_variables_become_a_file(package, tmp_path, monkeypatch):
    format, renamed, block = {
        "vit-keras": ("vit_jax", of_vit_keras, BLOCKS[0]),
        "zeromodels": ("timm", of_zeromodels, BLOCKS[1]),
    }[package]
    model = vit(num_layers=2, activation="gelu")
    for variable in model.weights:
        variable.assign(keras.random.normal(variable.shape, seed=0))
    keras_vit.converters.save(model, tmp_path / "expected.npz", format)
    expected = read(tmp_path / "expected.npz")
    theirs = types.SimpleNamespace(weights=[])
    for key, array in expected.items():
        path, array = renamed(key, array)
        theirs.weights.append(array.view(Variable))
        theirs.weights[-1].path = path
    monkeypatch.chdir(tmp_path)
    exec(block, {"model": theirs, "num_heads": 2})
    name = {"vit_jax": "google.npz", "timm": "timm.npz"}[format]
    golden_data.assert_same(read(tmp_path / name), expected)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("vit-keras", "Transformer_encoderblock_0"),
        ("zeromodels", "blocks_0_dense_1"),
    ],
)
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_their_files_are_refused(package, name, suffix, tmp_path):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(2, name=name)(inputs)
    path = tmp_path / f"model{suffix}"
    model = keras.Model(inputs, outputs)
    if suffix == ".keras":
        model.save(path)
    else:
        model.save_weights(path)
    with pytest.raises(ValueError, match=f"a model of {package}, whose"):
        keras_vit.converters.load(path)
