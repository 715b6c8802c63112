"""Files of hybrids and BiT; `test_golden.py` has their outputs."""

import re

import numpy as np
import pytest

from keras_vit.converters import load, open_checkpoint
from keras_vit.weights.files import read, write
from keras_vit_programs import convert as _cli
from tests import golden_data
from tests.golden_data import RESNET_TOLERANCE, RESNETS

# The formats that hold each case, but its own.
HELD = {
    "bit_paper": "timm:bit bit:bit_paper",
    "timm_bit": "bit: bit:bit_paper",
    "timm_hybrid_root": "vit_jax: vit_jax:current timm:hybrid",
    "timm_hybrid_symmetric": "vit_jax: vit_jax:current",
    "vit_jax_hybrid_small": "vit_jax:current timm:hybrid",
    "vit_jax_hybrid_small_stem": "vit_jax:current timm:root timm:hybrid",
}


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", RESNETS)
def test_round_trips(case, tmp_path, record_error):
    """To .keras, from there to all formats that hold it, and back."""
    format, variant, settings = RESNETS[case]
    golden = golden_data.io(case)
    path, middle = golden_data.weights_path(case), tmp_path / "model.keras"
    checkpoint = open_checkpoint(path, num_heads=3)
    assert checkpoint.format == format
    assert checkpoint.weight_map.variant == variant
    settings = {**settings, "input_shape": golden["image"].shape[1:]}
    _cli.convert(path, middle, settings=settings)
    found = load(middle).predict(golden["image"], verbose=0)
    error = np.abs(found - golden["logits"]).max()
    record_error(case, "by .keras", error, RESNET_TOLERANCE)
    arrays, own = read(path), f"{format}:{variant}"
    for number, to in enumerate((format, *HELD.get(case, "").split(), own)):
        there = tmp_path / f"{number}{path.suffix}"
        _cli.convert(middle, there, to=to)
        checkpoint = open_checkpoint(there, num_heads=3)
        found = f"{checkpoint.format}:{checkpoint.weight_map.variant}"
        assert found == (to if ":" in to else own)
        back = tmp_path / f"{number}-back{path.suffix}"
        _cli.convert(there, back, to=own, settings={"num_heads": 3})
        golden_data.assert_same(read(back), arrays)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "case,shape",
    [("vit_jax_hybrid_small_stem", (-1,)), ("bit_v1_groupnorm", (1, 1, 1, -1))],
)
def test_group_norm_shapes_of_other_versions(case, shape, tmp_path):
    """Arrays with one axis and with four are equivalent."""
    path = golden_data.weights_path(case)
    arrays = {
        key: array.reshape(shape) if re.search(r"(^|/)gn", key) else array
        for key, array in read(path).items()
    }
    assert any(a.shape != read(path)[key].shape for key, a in arrays.items())
    write(arrays, tmp_path / "other.npz")
    found, expected = map(open_checkpoint, (tmp_path / "other.npz", path))
    golden_data.assert_same(found.weights, expected.weights)


@pytest.mark.backends("torch")
def test_numbered_tensorflow_names_are_read(tmp_path):
    path = golden_data.weights_path("bit_paper")
    arrays = read(path)
    counted = {
        key.replace("conv2d/", f"conv2d_{number}/") if "unit" in key else key: array
        for number, (key, array) in enumerate(arrays.items())
    }
    assert len(counted.keys() - arrays.keys()) == 19
    write(counted, tmp_path / "counted.npz")
    found = open_checkpoint(tmp_path / "counted.npz")
    expected = open_checkpoint(path)
    assert (found.format, found.weight_map.variant) == ("bit", "")
    golden_data.assert_same(found.weights, expected.weights)


@pytest.mark.backends("torch")
def test_duplicate_numbered_names_raise(tmp_path):
    arrays = {
        f"resnet/root_block/standardized_conv2d{n}/kernel": np.zeros((7, 7))
        for n in ("", "_1")
    }
    write(arrays, tmp_path / "twice.npz")
    with pytest.raises(ValueError, match="no place for:\n  resnet/.*_1/kernel"):
        open_checkpoint(tmp_path / "twice.npz")


# One constant changed at a time, to what another of the codes has.
_OTHER = {
    "group_norm_epsilon": 1e-5,
    "std_epsilon": 1e-10,
    "std_epsilon_place": "variance",
    "conv_padding": "symmetric",
    "pool_padding": "symmetric",
}
_STD = {
    **_OTHER,
    "group_norm_epsilon": 1e-6,
    "std_epsilon_place": "std",
    "conv_padding": "same",
}
_STEM = ("group_norm_epsilon", "conv_padding", "pool_padding")
CHANGES = [
    (case, {name: value})
    for case, constants in {
        "vit_jax_hybrid_small_stem": {name: _OTHER[name] for name in _STEM},
        "vit_jax_hybrid_small": _OTHER,
        "bit_v1_groupnorm": _OTHER,
        "bit_paper": {**_STD, "std_epsilon": 1e-8},
        "timm_hybrid_symmetric": {**_STD, "pool_padding": "same"},
        "timm_bit": _STD,
    }.items()
    for name, value in constants.items()
]


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("case,change", CHANGES, ids=str)
def test_every_constant_affects_the_output(case, change):
    given = {**golden_data.load_arguments(case), **change}
    model = load(golden_data.weights_path(case), **given)
    golden = golden_data.io(case)
    found = model.predict(golden["image"], verbose=0)
    moved = np.abs(found - golden["logits"]).max()
    assert moved > 10 * RESNET_TOLERANCE, moved
