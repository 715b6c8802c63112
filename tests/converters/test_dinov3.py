"""DINOv3 under Meta's names, and its rotary positions; `test_originals.py` has
the files of transformers and timm."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load
from keras_vit.utils.published import rotary_periods
from keras_vit.weights.files import read, write
from keras_vit_programs import convert as _cli
from keras_vit_programs.verification import verify
from tests import golden_data, originals
from tests.harness import numpy

TOLERANCE = 3e-5
# The files' own size is 32 x 32, patches are 8 x 8.
SIZES = ((32, 32), (48, 48), (40, 16))
HEADS = {"num_heads": 2}


def build(name, **options):
    return originals.build(originals.CASES[name], **options)


def save(name, folder, **options):
    case = originals.CASES[name]
    return originals.save(case, build(name, **options), folder)[0]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "image_size, patch_size, expected, written",
    [
        (48, 8, (48, 48), 48),
        ((32, 48), 8, (32, 48), [32, 48]),
        # Patches need not divide the size of a file, or the default.
        (32, 6, (30, 30), 30),
        (None, 6, (222, 222), 222),
    ],
)
def test_image_size_of_a_config(image_size, patch_size, expected, written, tmp_path):
    size = {} if image_size is None else {"image_size": image_size}
    path = save("transformers-dinov3", tmp_path, patch_size=patch_size, **size)
    if image_size is None:
        config = json.loads((path / "config.json").read_text())
        del config["image_size"]
        (path / "config.json").write_text(json.dumps(config))
    model = load(path)
    assert model.input_shape == (None, *expected, 3)
    built = keras_vit.VisionTransformer(weights=path, include_top=False)
    assert built.input_shape == model.input_shape
    model.save(tmp_path / "model.keras")
    for source in (model, load(tmp_path / "model.keras")):
        keras_vit.converters.save(source, tmp_path / "back", overwrite=True)
        config = json.loads((tmp_path / "back/config.json").read_text())
        assert config["image_size"] == written
        assert load(tmp_path / "back").input_shape == model.input_shape
    any_size = load(path, input_shape=(None, None, 3))
    keras_vit.converters.save(any_size, tmp_path / "back", overwrite=True)
    assert load(tmp_path / "back").input_shape == model.input_shape


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "model_args, expected", [({}, (256, 256)), ({"img_size": 64}, (64, 64))]
)
def test_image_size_of_timm(model_args, expected, tmp_path):
    path = save("timm-dinov3", tmp_path)
    config = {
        "architecture": "vit_small_patch8_dinov3",
        "model_args": model_args,
        "pretrained_cfg": {"input_size": [3, 256, 256]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(path, num_heads=2).input_shape == (None, *expected, 3)


def to_meta(original):
    """A model of timm under Meta's names."""
    state = {k: v.numpy() for k, v in original.state_dict().items()}
    renamed = {"mask_token": np.full((1, 32), 0.5, "float32")}
    renamed["rope_embed.periods"] = rotary_periods(100, 16)
    for key, array in state.items():
        prefix = key.rpartition(".")[0]
        if key.endswith("q_bias"):
            value = state[key.replace("q_bias", "v_bias")]
            zeros, ones = np.zeros_like(array), np.ones_like(array)
            bias = np.concatenate([array, zeros, value])
            renamed[f"{prefix}.qkv.bias"] = bias
            mask = np.concatenate([ones, zeros, ones])
            renamed[f"{prefix}.qkv.bias_mask"] = mask
        elif not key.endswith("v_bias"):
            for old, new in (
                ("reg_token", "storage_tokens"),
                ("gamma_", "ls"),
                ("fc1_g", "w1"),
                ("fc1_x", "w2"),
            ):
                key = key.replace(old, new)
            if "swiglu" in type(original.blocks[0].mlp).__name__.lower():
                key = key.replace("fc2", "w3")
            key += ".gamma" if ".ls" in key else ""
            renamed[key] = array
    return renamed


@pytest.mark.parametrize("name", ["timm-dinov3", "timm-dinov3-gated"])
@pytest.mark.backends("torch")
def test_metas_names(name, tmp_path, record_error):
    original = build(name, qkv_bias=True)
    path = tmp_path / "meta.safetensors"
    arrays = to_meta(original)
    arrays["local_cls_norm.weight"] = np.full(32, 2, "float32")
    arrays["local_cls_norm.bias"] = np.full(32, 3, "float32")
    write(arrays, path)
    # Heads are inferred from the periods.
    model = keras_vit.load(path, input_shape=(None, None, 3))
    assert model.get_layer("block_0").num_heads == 2
    for size in SIZES:
        x = originals.images(*size)
        expected = originals.output(originals.CASES[name], original, x)
        error = np.abs(numpy(model(x, training=False)) - expected).max()
        record_error("dinov3", f"Meta {size}", error, TOLERANCE)
    # A training may have another epsilon than the released models.
    write({f"teacher.backbone.{k}": x for k, x in arrays.items()}, path, True)
    with pytest.warns(UserWarning, match="norm_epsilon.* 1e-5, as in .* is 1e-6"):
        assert keras_vit.load(path).config.norm_epsilon == 1e-5
    _cli.convert(path, tmp_path / "again.safetensors")
    golden_data.assert_same(read(tmp_path / "again.safetensors"), arrays)
    # Through a model, without what only pre-training uses.
    middle, target = tmp_path / "model.keras", tmp_path / "back.safetensors"
    _cli.convert(path, middle)
    _cli.convert(middle, target, to="dinov3")
    kept = {k: a for k, a in arrays.items() if "local_cls_norm" not in k}
    golden_data.assert_same(read(target), kept)


@pytest.mark.backends("torch")
def test_a_classifier_of_metas_hub(tmp_path):
    """Its head reads the class token and the mean of the patches."""
    original = build("timm-dinov3", qkv_bias=True)
    arrays = {f"backbone.{k}": x for k, x in to_meta(original).items()}
    rng = np.random.default_rng(0)
    kernel, bias = (rng.normal(size=s).astype("float32") for s in ((5, 64), 5))
    head = {"linear_head.weight": kernel, "linear_head.bias": bias}
    write(arrays | head, tmp_path / "meta.safetensors")
    with pytest.warns(UserWarning, match="'linear_head.weight'"):
        model = load(tmp_path / "meta.safetensors", input_shape=(32, 32, 3))
    x = originals.images(32, 32)
    tokens = originals.run(original.forward_features, x)
    patches = tokens[:, original.num_prefix_tokens :].mean(axis=1)
    expected = np.concatenate([tokens[:, 0], patches], axis=-1) @ kernel.T + bias
    assert np.abs(numpy(model(x, training=False)) - expected).max() < TOLERANCE


@pytest.mark.backends("torch")
def test_periods_rounded_by_meta_are_kept(tmp_path):
    import ml_dtypes

    arrays = to_meta(build("timm-dinov3"))
    periods = arrays["rope_embed.periods"]
    rounded = periods.astype(ml_dtypes.bfloat16).astype("float32")
    assert not np.array_equal(rounded, periods)
    arrays["rope_embed.periods"] = rounded
    path = tmp_path / "meta.safetensors"
    write(arrays, path)
    model = load(path)
    layer = model.get_layer("position_embedding_shared")
    assert layer.base == 100
    np.testing.assert_array_equal(numpy(layer.periods), rounded)
    with pytest.warns(UserWarning, match="timm computes the periods"):
        keras_vit.converters.save(model, tmp_path / "x.pth", format="timm")
    other = load(path, rope_base=50.0).get_layer("position_embedding_shared")
    np.testing.assert_array_equal(numpy(other.periods), rotary_periods(50, 16))


@pytest.mark.backends("torch")
def test_metas_wrong_files(tmp_path):
    arrays = to_meta(build("timm-dinov3"))
    path = tmp_path / "meta.safetensors"
    key = "blocks.0.attn.qkv.bias_mask"
    write({**arrays, key: np.full_like(arrays[key], 0.5)}, path)
    with pytest.raises(ValueError, match="bias_mask"):
        load(path)
    key = "blocks.1.attn.qkv.bias"
    write({**arrays, key: np.ones_like(arrays[key])}, path, overwrite=True)
    with pytest.warns(UserWarning, match="no effect"):
        load(path)


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["dinov3", "dinov3-gated"])
def test_all_three_originals_run(name, tmp_path):
    path = save(f"transformers-{name}", tmp_path / "source")
    for format, note in (("timm", True), ("dinov3", False)):
        target = tmp_path / f"{format}.safetensors"
        if note:
            with pytest.warns(UserWarning, match="mask token"):
                _cli.convert(path, target, to=format)
        else:
            _cli.convert(path, target, to=format)
        text, same, complete = verify(path, target, to=format, settings=HEADS)
        assert same and complete, text
        assert "not run" not in text, text
        assert " in timm 1" in text and " in transformers 5" in text, text
        # And back to transformers, whose mask token is zero again.
        back = tmp_path / f"from_{format}"
        _cli.convert(target, back, to="huggingface", settings=HEADS)
        arrays, again = read(path), read(back)
        for found in (arrays, again):
            del found["embeddings.mask_token"]
        golden_data.assert_same(again, arrays)
        text, same, _ = verify(target, back, settings=HEADS)
        assert same and "not run" not in text, text


@pytest.mark.backends("torch")
def test_published_heads():
    """Those of H+ and 7B are not what their widths have in other models."""
    from keras_vit.weights.formats import get_weight_map
    from keras_vit.weights.infer import infer_num_heads

    for format in ("timm:dinov3", "huggingface:dinov3", "dinov3"):
        weight_map = get_weight_map(format)
        key = weight_map.key("patch_embedding/kernel")
        for width, heads in ((384, 6), (1024, 16), (1280, 20), (4096, 32)):
            arrays = {key: np.zeros((width, 3, 1, 1))}
            assert infer_num_heads(arrays, weight_map) == heads
