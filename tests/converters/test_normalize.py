"""Names and axes of other versions of a code base are read as today's."""

import re

import numpy as np
import pytest

from keras_vit import converters
from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import write
from keras_vit.weights.formats import FORMATS
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

_V5 = (
    (r"attention\.attention\.(\w)\w+\.", r"attention.\1_proj."),
    (r"attention\.output\.dense\.", "attention.o_proj."),
)
_V5_VIT = (
    *_V5,
    (r"encoder\.layer\.", "layers."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
# case, what to write otherwise (pattern, replacement)
OTHER_NAMES = [
    ("vit_jax_token", [("^", "opt/target/")]),
    ("vit_jax_token_linen", [("^", "opt/target/")]),
    ("vit_jax_hybrid_small_stem", [("^", "opt/target/")]),
    ("big_vision_map", [("^params/", "")]),
    ("big_vision_map", [("^params/", "opt/target/")]),
    ("big_vision_map", [("^params/", "params/img/")]),
    ("big_vision_map", [("MAPHead_0/", "")]),
    ("big_vision_map", [("/pos_emb", "/Transformer/pos_emb")]),
    (
        "big_vision_map",
        [
            ("/pos_emb", "/Transformer/posembed_input/pos_emb"),
            ("^params/(MAPHead_0/)?", ""),
        ],
    ),
    ("bit_v1_groupnorm", [("^params/", "")]),
    ("hf_vit", _V5_VIT),
    ("hf_vit_model_pooler", _V5_VIT),
    ("hf_deit_teacher", _V5_VIT),
    ("hf_dinov2_reg", _V5),
    ("hf_dinov2_reg_cls", _V5),
]


@pytest.mark.parametrize("case,names", OTHER_NAMES)
def test_alternative_names_give_the_same_weights(case, names, tmp_path):
    path = golden_data.weights_path(case)
    expected = open_checkpoint(path, num_heads=3)
    arrays = golden_data.arrays(case)
    renamed = {}
    for key, array in arrays.items():
        for pattern, replacement in names:
            key = re.sub(pattern, replacement, key)
        renamed[key] = array
    assert len(renamed) == len(arrays)
    assert renamed.keys() != arrays.keys()
    write(renamed, tmp_path / "a.npz")
    found = open_checkpoint(tmp_path / "a.npz", num_heads=3)
    assert found.weight_map == expected.weight_map
    golden_data.assert_same(found.weights, expected.weights)
    # Every array of the model is known by its key in the file.
    assert set(found.file_keys.values()) == renamed.keys()
    normalized = FORMATS[found.format].normalize(renamed)
    for key, array in normalized.items():
        in_file = renamed[found.file_keys[key]]
        assert in_file.tobytes() == array.tobytes()


def rename(arrays, pattern, replacement):
    return {re.sub(pattern, replacement, k): a for k, a in arrays.items()}


def error_of(arrays, path):
    write(arrays, path)
    with pytest.raises(ValueError, match="Arrays") as caught:
        converters.load(path, num_heads=3)
    path.unlink()
    return str(caught.value)


def test_errors_name_the_keys_of_the_file(tmp_path):
    path = tmp_path / "a.npz"
    arrays = rename(golden_data.arrays("vit_jax_token"), "^", "opt/target/")
    extra = {**arrays, "opt/target/what": np.ones(2, "float32")}
    assert "no place for:\n  opt/target/what" in error_of(extra, path)
    key = "opt/target/Transformer/encoder_norm/scale"
    wrong = {**arrays, key: np.ones(5, "float32")}
    assert f"than the model's:\n  {key}: (5,)" in error_of(wrong, path)

    # MLP layers as named before torchvision 0.14.
    arrays = rename(
        golden_data.arrays("torchvision_vit"), r"\.mlp\.0\.", ".mlp.linear_1."
    )
    key = "encoder.layers.encoder_layer_0.mlp.linear_1.weight"
    wrong = {**arrays, key: np.ones((1, 2, 3), "float32")}
    assert f"wrong shape:\n  {key}: (1, 2, 3)" in error_of(wrong, path)


def test_swiglu_weights_of_transformers_5(tmp_path):
    arrays = golden_data.arrays("hf_dinov2_reg")
    joined, separate = {}, {}
    for key, array in arrays.items():
        if ".mlp.fc1." in key:
            key = key.replace("fc1", "weights_in")
            other = np.flip(array)
            joined[key] = np.concatenate([array, other])
            separate[key.replace("weights_in", "gate_proj")] = array
            separate[key.replace("weights_in", "up_proj")] = other
            continue
        joined[key.replace("fc2", "weights_out")] = array
        separate[key.replace("fc2", "down_proj")] = array
    found = []
    for name, content in (("a.npz", joined), ("b.npz", separate)):
        write(content, tmp_path / name)
        found.append(open_checkpoint(tmp_path / name, num_heads=3))
    assert found[0].weight_map == found[1].weight_map
    golden_data.assert_same(found[0].weights, found[1].weights)


@pytest.mark.parametrize(
    "case,key,extra",
    [
        (
            "big_vision_map",
            "params/pos_embedding",
            "params/Transformer/pos_embedding",
        ),
        ("big_vision_map", "params/cls", "opt/target/cls"),
        (
            "torchvision_vit",
            "encoder.layers.encoder_layer_0.mlp.0.weight",
            "encoder.layers.encoder_layer_0.mlp.linear_1.weight",
        ),
    ],
)
def test_duplicate_array_is_refused(case, key, extra, tmp_path):
    arrays = golden_data.arrays(case)
    key = key if key in arrays else next(iter(arrays))
    write({**arrays, extra: arrays[key]}, tmp_path / "a.npz")
    with pytest.raises(ValueError, match=re.escape(extra)):
        open_checkpoint(tmp_path / "a.npz", num_heads=3)
