"""Hybrids and BiT against outputs of the original implementations."""

import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import convert as _cli
from keras_vit.converters import load
from keras_vit.converters import open_checkpoint
from keras_vit.weights.files import read
from keras_vit.weights.files import write
from keras_vit.weights.report import report
from tests import golden_data
from tests.golden_data import RESNET_TOLERANCE
from tests.golden_data import RESNETS
from tests.golden_data import resnet_tolerance


def build(case, **changes):
    golden = golden_data.io(case)
    arguments = {"input_shape": golden["image"].shape[1:], **RESNETS[case][2]}
    model = load(golden_data.weights_path(case), **{**arguments, **changes})
    return model, golden


@pytest.mark.backends("torch")
def test_golden_cases_exist():
    there = set(RESNETS) - set(golden_data.LARGE)
    assert len(there) == 7
    assert all(golden_data.folder(case).is_dir() for case in there)


@pytest.mark.parametrize("case", RESNETS)
def test_every_array_matches_the_original(case, record_error):
    model, golden = build(case)
    layers = {layer.name for layer in model.layers}
    image = golden.pop("image")
    other_pooling = golden.pop("logits_big_vision_minus_inf_pool", None)
    ours = {**golden_data.LAYERS, "logits": "head"}
    names = {name: ours.get(name, name) for name in golden}
    assert set(names.values()) <= layers
    extract = keras_vit.feature_extractor(model, list(names.values()))
    found = extract.predict(image, verbose=0)
    for name, expected in golden.items():
        array = found[names[name]].reshape(expected.shape)
        error = np.abs(array - expected).max()
        record_error(case, name, error, resnet_tolerance(expected))
    if other_pooling is not None:
        found = build(case, pool_padding="symmetric")[0].predict(
            image, verbose=0
        )
        error = np.abs(found - other_pooling).max()
        record_error(case, "-inf pool", error, RESNET_TOLERANCE)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", RESNETS)
def test_layout_and_variant_are_detected(case):
    layout, variant, _ = RESNETS[case]
    checkpoint = open_checkpoint(golden_data.weights_path(case), num_heads=3)
    assert (checkpoint.layout, checkpoint.weight_map.variant) == (
        layout,
        variant,
    )


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", RESNETS)
def test_command_line_round_trip(case, tmp_path, record_error):
    layout, variant, settings = RESNETS[case]
    golden = golden_data.io(case)
    path, middle = golden_data.weights_path(case), tmp_path / "model.keras"
    settings = {**settings, "input_shape": golden["image"].shape[1:]}
    _cli.convert(path, middle, settings=settings)
    model = keras.models.load_model(middle)
    found = model.predict(golden["image"], verbose=0)
    error = np.abs(found - golden["logits"]).max()
    record_error(case, "by .keras", error, RESNET_TOLERANCE)
    arrays = read(path)
    for number, to in enumerate((layout, f"{layout}:{variant}")):
        target = tmp_path / f"{number}{path.suffix}"
        _cli.convert(middle, target, to=to)
        assert_same(read(target), arrays)


def assert_same(found, expected):
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "case,to",
    [
        ("vit_jax_hybrid_small_stem", "vit_jax:current"),
        ("vit_jax_hybrid_small_stem", "timm:root"),
        ("vit_jax_hybrid_small", "vit_jax:current"),
        ("vit_jax_hybrid_small", "timm:hybrid"),
        ("timm_hybrid_symmetric", "vit_jax"),
        ("bit_v1_groupnorm", "bit:v1"),
        ("bit_paper", "bit:bit_paper"),
        ("bit_paper", "timm"),
        ("timm_bit", "bit"),
    ],
)
def test_layout_round_trip(case, to, tmp_path):
    """Convert to another layout and back."""
    layout, variant, _ = RESNETS[case]
    path = golden_data.weights_path(case)
    there, back = tmp_path / "there.npz", tmp_path / "back.npz"
    _cli.convert(path, there, to=to, settings={"num_heads": 3})
    wanted = to if ":" in to else f"{to}:{VARIANTS.get((case, to), '')}"
    checkpoint = open_checkpoint(there, num_heads=3)
    assert f"{checkpoint.layout}:{checkpoint.weight_map.variant}" == wanted
    to = f"{layout}:{variant}"
    _cli.convert(there, back, to=to, settings={"num_heads": 3})
    assert_same(read(back), read(path))


VARIANTS = {("bit_paper", "timm"): "bit"}


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
    assert_same(found.weights, expected.weights)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", ["vit_jax_hybrid_small_stem", "bit_paper"])
def test_inspect_reports_the_constants(case):
    text = report(golden_data.weights_path(case))
    epsilon = 1e-6 if "hybrid" in case else 1e-5
    assert f"group_norm_epsilon   {epsilon}" in text
    assert "resnet_layers" in text
    kernel = "conv_root/kernel" if "hybrid" in case else "unit01/a/proj"
    assert kernel in text


@pytest.mark.backends("torch")
def test_numbered_tensorflow_names_are_read(tmp_path):
    path = golden_data.weights_path("bit_paper")
    arrays = read(path)
    counted = {
        key.replace("conv2d/", f"conv2d_{number}/")
        if "unit" in key
        else key: array
        for number, (key, array) in enumerate(arrays.items())
    }
    assert len(counted.keys() - arrays.keys()) == 19
    write(counted, tmp_path / "counted.npz")
    found = open_checkpoint(tmp_path / "counted.npz")
    expected = open_checkpoint(path)
    assert (found.layout, found.weight_map.variant) == ("bit", "")
    assert_same(found.weights, expected.weights)


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
CHANGES = [
    (case, {name: value})
    for case, rules in {
        "vit_jax_hybrid_small_stem": {
            "group_norm_epsilon": 1e-5,
            "conv_padding": "symmetric",
            "pool_padding": "symmetric",
        },
        "vit_jax_hybrid_small": {
            "group_norm_epsilon": 1e-5,
            "std_epsilon": 1e-10,
            "std_epsilon_place": "variance",
            "conv_padding": "symmetric",
            "pool_padding": "symmetric",
        },
        "bit_v1_groupnorm": {
            "group_norm_epsilon": 1e-5,
            "std_epsilon": 1e-10,
            "std_epsilon_place": "variance",
            "conv_padding": "symmetric",
            "pool_padding": "symmetric",
        },
        "bit_paper": {
            "group_norm_epsilon": 1e-6,
            "std_epsilon": 1e-8,
            "std_epsilon_place": "std",
            "conv_padding": "same",
            "pool_padding": "symmetric",
        },
        "timm_hybrid_symmetric": {
            "group_norm_epsilon": 1e-6,
            "std_epsilon": 1e-10,
            "std_epsilon_place": "std",
            "conv_padding": "same",
            "pool_padding": "same",
        },
        "timm_bit": {
            "group_norm_epsilon": 1e-6,
            "std_epsilon": 1e-10,
            "std_epsilon_place": "std",
            "conv_padding": "same",
            "pool_padding": "symmetric",
        },
    }.items()
    for name, value in rules.items()
]


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("case,change", CHANGES, ids=str)
def test_every_constant_affects_the_output(case, change):
    model, golden = build(case, **change)
    found = model.predict(golden["image"], verbose=0)
    moved = np.abs(found - golden["logits"]).max()
    assert moved > 10 * RESNET_TOLERANCE, moved
