"""Against outputs of the original implementations, array by array."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.resampling import resample, resample_embedding
from keras_vit_programs import convert as _cli
from tests import golden_data


@pytest.mark.parametrize("case", [*golden_data.MODELS, *golden_data.RESNETS])
def test_every_named_array_matches_the_original(case, record_error):
    golden = golden_data.io(case)
    other_pooling = golden.pop("logits_big_vision_minus_inf_pool", None)
    given = golden_data.load_arguments(case)
    if case == "timm_dynamic":  # positions are resampled at each call
        given["input_shape"] = (None, None, 3)
    model = keras_vit.converters.load(golden_data.load_path(case), **given)
    layers = {layer.name for layer in model.layers}
    ours = golden_data.LAYERS
    if case in golden_data.RESNETS:
        ours = {**ours, "logits": "head"}
    names = {
        name: ours.get(name, name) for name in golden if ours.get(name, name) in layers
    }
    extract = keras_vit.feature_extractor(model, list(set(names.values())))
    found = extract(golden["image"])  # eagerly; the main output is compiled
    found = {
        name: keras.ops.convert_to_numpy(found[layer]) for name, layer in names.items()
    }
    main = "pooler_output" if "pooler_output" in golden else "logits"
    found[main] = model.predict(golden["image"], verbose=0)

    # Half of a case passing unseen would be worse than a failure.
    unseen = {
        name
        for name in golden
        if name not in found
        and not name.startswith(("image", "attention_", "rollout_"))
    }
    assert not unseen or case in golden_data.MODELS
    assert unseen <= {
        "pre_logits_2d",  # big_vision's head on every token
        "logits_2d",
        "sincos2d_posemb",  # has its own test
        "pos_embed_before",  # are among the resampling cases
        "pos_embed_after",
        "encoded",  # of timm_avg: there is no norm before its pooling
        "pre_logits",  # of the distilled DeiT, which has two heads
    }
    for name, array in found.items():
        error = np.abs(array.reshape(golden[name].shape) - golden[name]).max()
        record_error(case, name, error, golden_data.tolerance(case, name))
    if other_pooling is not None:
        model = keras_vit.converters.load(
            golden_data.load_path(case), **given, pool_padding="symmetric"
        )
        error = np.abs(model.predict(golden["image"]) - other_pooling).max()
        record_error(case, "-inf pool", error, golden_data.RESNET_TOLERANCE)


def test_resized_conversion_matches_vit_jax(record_error, tmp_path):
    case = "vit_jax_load_resized"
    golden = golden_data.io(case)
    _cli.convert(
        golden_data.weights_path(case),
        tmp_path / "x.keras",
        settings={"input_shape": (48, 48, 3)},
    )
    model = keras.models.load_model(tmp_path / "x.keras", safe_mode=True)
    positions = model.get_layer("position_embedding").embedding
    record_error(
        case,
        "pos_embedding_after",
        np.abs(
            keras.ops.convert_to_numpy(positions) - golden["pos_embedding_after"]
        ).max(),
        3e-6,  # scipy's zoom computes in float64, then rounds, as we do
    )
    head = model.get_layer("head")
    head.set_weights([golden["head_kernel_new"], golden["head_bias_new"]])
    extract = keras_vit.feature_extractor(
        model, ["patch_embedding", "encoder_norm", "head"]
    )
    found = extract.predict(golden["image"], verbose=0)
    for name, layer in (
        ("embedding", "patch_embedding"),
        ("encoded", "encoder_norm"),
        ("logits", "head"),
    ):
        error = np.abs(found[layer] - golden[name]).max()
        record_error(case, name, error, golden_data.TOLERANCE)


def _resampling_cases():
    for entry in golden_data.config("posemb_resample")["cases"]:
        old, new = (entry["grid_before"],) * 2, (entry["grid_after"],) * 2
        for who in ("vit_jax", "big_vision"):
            prefix = int(who == "vit_jax" and entry["class_token"])
            yield (
                "posemb_resample",
                f"{who}_{entry['tag']}_",
                old,
                new,
                "bilinear_align_corners",
                prefix,
            )
    for entry in golden_data.config("timm_posemb_resample")["cases"]:
        method = entry["interpolation"] + ("_antialias" if entry["antialias"] else "")
        yield (
            "timm_posemb_resample",
            f"{entry['tag']}_",
            entry["grid_before"],
            entry["grid_after"],
            method,
            entry["prefix_tokens"],
        )
    timm = ("bicubic_antialias", 1)
    yield ("timm_dynamic", "pos_embed_", (4, 4), (6, 5), *timm)
    yield (
        "torchvision_posemb_resample",
        "",
        (4, 4),
        (6, 6),
        "bicubic_align_corners",
        1,
    )


@pytest.mark.parametrize(
    "case,tag,old,new,method,prefix",
    list(_resampling_cases()),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_resampling_matches_the_original(
    case, tag, old, new, method, prefix, record_error
):
    golden = golden_data.io(case)
    before, after = golden[f"{tag}before"], golden[f"{tag}after"]

    at_load = resample_embedding(before, old, new, method, prefix)
    error = np.abs(at_load - after).max()
    record_error(case, f"{tag}at load", error, 3e-6)
    np.testing.assert_array_equal(at_load[:, :prefix], before[:, :prefix])

    grid = before[0, prefix:].reshape(*old, -1)
    at_call = resample(keras.ops.convert_to_tensor(grid), new, method)
    at_call = keras.ops.convert_to_numpy(at_call)
    error = np.abs(at_call.reshape(after[0, prefix:].shape) - after[0, prefix:])
    record_error(case, f"{tag}at call", error.max(), 3e-6)


def test_sincos2d_matches_big_vision(record_error):
    golden = golden_data.io("big_vision_gap")
    layer = keras_vit.layers.AddPositionEmbs("sincos2d")
    found = layer(np.zeros((1, 24, 48)), np.zeros((1, 4, 6, 48)))
    error = np.abs(keras.ops.convert_to_numpy(found) - golden["sincos2d_posemb"])
    record_error("big_vision_gap", "sincos2d_posemb", error.max(), 3e-6)
