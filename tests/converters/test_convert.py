"""The weight maps and their engine, in NumPy."""

import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights import open_checkpoint
from keras_vit.weights.formats import FORMATS, naflex
from keras_vit.weights.infer import DENSE
from keras_vit.weights.weight_map import from_checkpoint, to_checkpoint
from keras_vit.weights.writing import write_checkpoint
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

MAPS = {
    f"{name}:{weight_map.variant}": weight_map
    for name, format in FORMATS.items()
    for weight_map in format.maps
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_are_one_to_one(name):
    ours, theirs = [], []
    for mine, yours, pattern in MAPS[name].entries:
        ours += mine
        theirs += yours
        assert len(pattern.split(" -> ")) == 2
    assert len(ours) == len(set(ours))
    assert len(theirs) == len(set(theirs))


BLOCKS = 12  # as text, 10 and 11 come before 2


def numbered(name):
    """Weights of many blocks, each filled with its number."""
    arrays = golden_data.arrays("vit_jax_token")
    weights = from_checkpoint(arrays, MAPS["vit_jax:"])
    for path in [path for path in weights if path.startswith("block_0/")]:
        for i in range(BLOCKS):
            weights[path.replace("block_0", f"block_{i}")] = np.full(
                weights[path].shape, i, np.float32
            )
    no_head = ("dinov2", "dino:", "mocov3", "eomt")
    of_meta = any(part in name.partition("huggingface")[0] for part in no_head)
    if of_meta or name.endswith(("tower", "siglip2")):
        del weights["head/kernel"], weights["head/bias"]
    if MAPS[name].variant in naflex.VARIANTS:  # a matrix of flat patches
        kernel = weights["patch_embedding/kernel"]
        weights["patch_embedding/kernel"] = kernel.reshape(-1, len(kernel.T))
    if "dinov3" in name:  # no positions; no head but in timm
        del weights["position_embedding/embedding"]
        dropped = "key/bias" if name.startswith("timm") else "head/"
        weights = {k: a for k, a in weights.items() if dropped not in k}
    return weights


@pytest.mark.parametrize(
    "name", [name for name in MAPS if "bit" not in name.split(":")]
)
def test_block_numbers_above_ten_are_kept(name):
    weights = numbered(name)
    arrays = to_checkpoint(weights, MAPS[name], heads=3)
    # Their numbers, not only there and back: a mistake could undo itself.
    for key, array in arrays.items():
        number = re.search(r"(?:block|blocks|layer|layers)[._](\d+)", key)
        if number:
            assert (array == int(number[1])).all(), key
        elif "encoderblock/" in key:
            assert array.shape[0] == BLOCKS
            assert all((array[i] == i).all() for i in range(BLOCKS)), key
    again = from_checkpoint(arrays, MAPS[name], heads=3)
    golden_data.assert_same(again, weights)


def test_block_numbers_with_leading_zeros_are_unmapped():
    keys = ["blocks.01.norm1.weight", "blocks.1.norm1.weight"]
    assert MAPS["timm:"].unmapped_keys(keys) == keys[:1]


VIT = {"patch_size": 1, "hidden_size": 8, "num_layers": 12, "num_heads": 2}
MODELS = {
    "root": lambda: keras_vit.HybridVisionTransformer(
        **VIT, resnet_layers=(), width_factor=0.5, input_shape=(8, 8, 3)
    ),
    "hybrid": lambda: keras_vit.HybridVisionTransformer(
        **VIT, resnet_layers=(11, 1), width_factor=0.5, input_shape=(8, 8, 3)
    ),
    "bit": lambda: keras_vit.BiT(resnet_layers=(11, 1), width_factor=0.5),
    "v1": lambda: keras_vit.BiT(
        resnet_layers=(1, 11), width_factor=0.5, preactivation=False
    ),
}
# Formats and the variants that hold each.
HOLD = {
    "root": {"vit_jax": ("", "current"), "timm": ("root", "hybrid")},
    "hybrid": {"vit_jax": ("", "current"), "timm": ("hybrid",)},
    "bit": {"bit": ("", "bit_paper"), "timm": ("bit",)},
    "v1": {
        "vit_jax": ("", "current"),  # by its rows; saving it is refused
        "timm": ("hybrid", "bit"),
        "bit": ("v1",),
    },
}


@pytest.mark.parametrize("kind", MODELS)
def test_unit_numbers_above_ten_are_kept(kind):
    with keras.StatelessScope(initialize_variables=False):
        paths = {w.path: tuple(w.shape) for w in MODELS[kind]().weights}
    keras.utils.clear_session()
    weights = {
        path: np.full(shape, number)
        for number, (path, shape) in enumerate(paths.items())
    }
    held = {}
    for name, weight_map in MAPS.items():
        is_flat = weight_map.variant in naflex.VARIANTS
        if is_flat or weight_map.unmapped_paths(weights):
            continue
        format = name.partition(":")[0]
        held.setdefault(format, []).append(weight_map.variant)
        arrays = to_checkpoint(weights, weight_map, heads=2)
        again = from_checkpoint(arrays, weight_map, heads=2)
        assert weights.keys() == again.keys(), format
        for path, array in weights.items():
            np.testing.assert_array_equal(array, again[path])
    found = {format: tuple(names) for format, names in held.items()}
    assert found == HOLD[kind]


@pytest.mark.backends("torch")
def test_hybrids_are_refused_with_the_formats_that_have_them(tmp_path):
    model = keras_vit.HybridVisionTransformer(
        **{**VIT, "num_layers": 1},
        resnet_layers=(1,),
        width_factor=0.5,
        input_shape=(8, 8, 3),
    )
    hybrids = HOLD["hybrid"].keys()
    for format in FORMATS.keys() - hybrids - DENSE.keys():
        with pytest.raises(ValueError, match="no hybrids") as error:
            keras_vit.converters.save(model, tmp_path / "a.npz", format)
        assert all(repr(name) in str(error.value) for name in hybrids)
    assert not (tmp_path / "a.npz").exists()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.pth", "folder"])
def test_writing_leaves_the_checkpoint_unchanged(name, dtype, tmp_path):
    source = golden_data.load_path("vit_jax_token")
    checkpoint = open_checkpoint(source)
    before = dict(checkpoint.weights)
    format = "huggingface" if name == "folder" else "timm"
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        target, arguments = folder / name, checkpoint.arguments()
        write_checkpoint(checkpoint.weights, arguments, target, format, dtype)
    golden_data.assert_same(checkpoint.weights, before)
    assert {str(a.dtype) for a in checkpoint.weights.values()} == {"float32"}
