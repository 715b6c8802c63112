"""Files to Keras, to other formats and back: no bit is lost."""

import functools

import keras
import numpy as np
import pytest

from keras_vit.converters import open_checkpoint
from keras_vit.weights.detect import detect_format
from keras_vit.weights.files import read
from keras_vit.weights.formats import (
    FORMATS,
    check_representable,
    get_weight_map,
    naflex,
)
from keras_vit.weights.infer import infer_num_heads
from keras_vit.weights.weight_map import from_checkpoint, to_checkpoint
from keras_vit_programs import convert as _cli
from tests import golden_data

pytestmark = pytest.mark.backends("torch")
EVERY_BACKEND = pytest.mark.backends("jax", "tensorflow", "torch")
CASES = (*golden_data.LOADED, "vit_jax_load_resized")


def test_every_golden_case_is_covered():
    folders = {p.name for p in golden_data.FOLDER.iterdir() if p.is_dir()}
    folders -= {*golden_data.NO_MODEL}
    # Those with a ResNet have a file of their own.
    known = {*CASES, *golden_data.RESNETS, *golden_data.PRETRAINING}
    known |= {*golden_data.KERAS_HUB, *golden_data.OPEN_CLIP}
    assert known - folders <= {*golden_data.DERIVED, *golden_data.LARGE}
    assert not folders - known


# The golden tests compare all cases on every backend.
ON_ALL_BACKENDS = ("big_vision_map", "hf_vit_bf16", "timm_reg_ls_qknorm")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=EVERY_BACKEND)
        if case in ON_ALL_BACKENDS
        else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_keras_file_round_trip(case, tmp_path, record_error):
    """convert.py to .keras gives the original's outputs, and back the same
    bits."""
    middle = tmp_path / "model.keras"
    source = golden_data.load_path(case)
    given = golden_data.load_arguments(case)
    _cli.convert(source, middle, settings=given)
    if case != "vit_jax_load_resized":  # its head is new: see test_golden
        golden = golden_data.io(case)
        model = keras.models.load_model(middle, safe_mode=True)
        found = model.predict(golden["image"], verbose=0)
        error = np.abs(_main_output(case, golden, found)).max()
        record_error(case, "by convert.py", error, golden_data.TOLERANCE)

    if case in golden_data.RESIZED:  # positions for the file's own size
        middle = tmp_path / "own_size.keras"
        del given["input_shape"]
        _cli.convert(source, middle, settings=given)
    arrays = golden_data.normalized(case)
    half = {str(a.dtype) for a in arrays.values()} == {"bfloat16"}
    target = tmp_path / ("back" + golden_data.weights_path(case).suffix)
    _cli.convert(
        middle,
        target,
        to=golden_data.open_format(case),
        dtype="bfloat16" if half else None,
    )
    golden_data.assert_same(read(target), arrays)


def _main_output(case, golden, found):
    """Returns the model's output minus the original's."""
    expected = golden.get("logits", golden.get("pooler_output"))
    if expected is None:  # Meta's DINOv2 gives tokens
        expected = golden["x_norm_patchtokens"]
        found = found[:, -expected.shape[1] :]
    elif case == "hf_dinov2_reg":
        found = found[:, 0]  # its pooler takes the class token as it is
    assert found.shape == expected.shape
    return found - expected


# Which formats hold which cases: a new refusal, or a file that no program
# reads, is a change of this table.
_PLAIN = "vit_jax big_vision timm huggingface torchvision mae"
_EXACT = f"{_PLAIN} keras_hub"  # which has the exact GELU only
HELD = {
    "big_vision_bf16": "vit_jax big_vision timm huggingface",
    "big_vision_gap": "big_vision",  # sincos2d is nowhere else
    "big_vision_gap_scan": "vit_jax big_vision timm huggingface",
    "big_vision_map": "big_vision timm",
    "big_vision_old_map_layout": "big_vision timm",
    "big_vision_siglip_img": "big_vision timm huggingface",
    "big_vision_tok": "big_vision timm",
    "big_vision_very_old_layout": _PLAIN,
    "facebook_dinov2": "huggingface dinov2",
    "facebook_dinov2_reg": "huggingface dinov2",
    "facebook_mae_finetuned_gap": "timm mae",
    "hf_deit_teacher": "timm huggingface",
    "hf_dinov2_reg": "huggingface dinov2",
    "hf_dinov2_reg_cls": "huggingface",
    "hf_vit": _EXACT,
    "hf_vit_bf16": _EXACT,
    "hf_vit_interpolate": _EXACT,
    # A pooler without a head is one of their `pre_logits`.
    "hf_vit_model_pooler": "vit_jax big_vision huggingface torchvision",
    "timm_avg": "timm mae",
    "timm_base": _EXACT,
    "timm_base_pth": _EXACT,
    "timm_deit_distilled": "timm huggingface",
    "timm_dynamic": _EXACT,
    "timm_map": "big_vision timm open_clip",
    "timm_pre_norm": "timm open_clip",
    "timm_reg_ls_qknorm": "timm",
    "torchvision_vit": _EXACT,
    "torchvision_vit_old_names": _EXACT,
    "vit_jax_gap": "vit_jax big_vision timm huggingface",
    "vit_jax_load_resized": _PLAIN,
    "vit_jax_token": _PLAIN,
    "vit_jax_token_linen": _PLAIN,
    "vit_jax_token_prelogits": "vit_jax big_vision torchvision",
}


# Where the first variant is another model's.
_SIGLIP = "huggingface:siglip-classifier"
VARIANTS = {
    ("big_vision_bf16", "huggingface"): _SIGLIP,
    ("big_vision_gap_scan", "huggingface"): _SIGLIP,
    ("big_vision_siglip_img", "huggingface"): "huggingface:tower",
    ("vit_jax_gap", "huggingface"): _SIGLIP,
    ("facebook_dinov2", "huggingface"): "huggingface:dinov2-bare",
    ("facebook_dinov2_reg", "huggingface"): "huggingface:dinov2-bare",
    ("hf_deit_teacher", "huggingface"): "huggingface:deit-teacher",
    ("hf_dinov2_reg", "huggingface"): "huggingface:dinov2-bare",
    ("hf_dinov2_reg_cls", "huggingface"): "huggingface:dinov2-reg",
    ("hf_vit_model_pooler", "huggingface"): "huggingface:vit",
    ("timm_deit_distilled", "huggingface"): "huggingface:deit-teacher",
    ("timm_map", "open_clip"): "open_clip:trunk",
}


@functools.cache
def opened(case):
    """The case's checkpoint and the arguments of its model."""
    checkpoint = open_checkpoint(golden_data.load_path(case), num_heads=3)
    given = {"grid_size": _grid(case, checkpoint)}
    return checkpoint, checkpoint.arguments(given)


def _grid(case, checkpoint):
    """Returns the grid of the positions: that of the image, if it is not
    square."""
    if case in golden_data.RESIZED:
        return None
    rows, columns, _ = golden_data.io(case)["image"].shape[1:]
    patch = checkpoint.patch_size
    return rows // patch[0], columns // patch[1]


@pytest.mark.parametrize("case", CASES)
def test_supported_formats_match_the_table(case):
    held = []
    for format in FORMATS:
        try:
            _written(case, format)
        except ValueError as error:
            assert "cannot hold" in str(error) or "no place" in str(error)
        else:
            held.append(format)
    assert held == HELD[case].split()


def _written(case, format):
    checkpoint, arguments = opened(case)
    check_representable(arguments, format)
    weight_map = get_weight_map(VARIANTS.get((case, format), format))
    return to_checkpoint(checkpoint.weights, weight_map, arguments["num_heads"])


@pytest.mark.parametrize(
    "case,format", [(c, format) for c in CASES for format in HELD[c].split()]
)
def test_format_round_trip(case, format):
    """Convert from A to B and back to A with only what B stores."""
    checkpoint, arguments = opened(case)
    there = _written(case, format)
    weight_map = detect_format(there, format).weight_map
    heads = infer_num_heads(there, weight_map, 3)
    weights = from_checkpoint(there, weight_map, heads)
    golden_data.assert_same(weights, checkpoint.weights)
    check_representable(arguments, checkpoint.format)
    back = to_checkpoint(weights, checkpoint.weight_map, arguments["num_heads"])
    golden_data.assert_same(back, golden_data.normalized(case))


@pytest.mark.parametrize("case", ("vit_jax_token", "timm_map"))
def test_variant_round_trip(case):
    checkpoint, arguments = opened(case)
    for format in HELD[case].split():
        for weight_map in FORMATS[format].maps:
            if weight_map.unmapped_paths(checkpoint.weights):
                name = f"{format}:{weight_map.variant}"
                assert name in (
                    *("timm:bit", "timm:root", "timm:hybrid"),
                    *("timm:dinov3", "timm:dinov3-gated"),
                    *("huggingface:dinov3", "huggingface:dinov3-gated"),
                    *("huggingface:tower", "huggingface:siglip2"),
                    *("open_clip:", "open_clip:tower"),
                )
                continue
            code_base, variant = FORMATS[format], weight_map.variant
            if variant in naflex.VARIANTS and arguments["class_token"]:
                continue  # Its positions have no place for one.
            weights = code_base.before_writing(checkpoint.weights, arguments, variant)
            arrays = to_checkpoint(weights, weight_map, heads=3)
            found = detect_format(arrays, f"{format}:{variant}").weight_map
            again = from_checkpoint(arrays, found, heads=3)
            again, _ = code_base.after_reading(again, {}, variant)
            if format == "huggingface" and variant.startswith("dinov2"):
                # Its classifier has weights for the mean of the patches, too.
                again["head/kernel"], zeros = np.split(again["head/kernel"], 2)
                assert not zeros.any()
            golden_data.assert_same(again, checkpoint.weights)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_file_types_keep_bfloat16(suffix, tmp_path):
    there, back = tmp_path / f"there{suffix}", tmp_path / f"back{suffix}"
    given = {"num_heads": 3}
    source, to = golden_data.load_path("hf_vit_bf16"), "vit_jax:current"
    _cli.convert(source, there, to=to, settings=given)
    own = golden_data.open_format("hf_vit_bf16")
    _cli.convert(there, back, format=to, to=own, settings=given)
    golden_data.assert_same(read(back), golden_data.normalized("hf_vit_bf16"))
