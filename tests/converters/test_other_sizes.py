"""Files of transformers and timm at other image sizes than their own: each
library resamples the position embeddings in its own way."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import keras_vit
from tests import originals

# "deit" has a distillation token that its head does not read.
TRANSFORMERS = {
    name: originals.HUGGINGFACE[name]
    for name in ("vit", "deit", "deit-teacher", "dinov2", "dinov2-registers")
}
TRANSFORMERS["vit-model"] = originals.Case(
    "huggingface:vit", {}, {}, "ViTModel"
)
TRANSFORMERS["deit-model"] = originals.Case(
    "huggingface:vit", {}, {}, "DeiTModel"
)
TRANSFORMERS["deit-pooler"] = originals.Case(
    "huggingface:vit", {}, {}, "DeiTModel"
)
TRANSFORMERS["vit-mim"] = originals.Case(
    "huggingface:mim", {}, {}, "ViTForMaskedImageModeling"
)
TRANSFORMERS["dinov2-bare"] = originals.Case(
    "huggingface:dinov2-bare", {}, {}, "Dinov2Model"
)
TRANSFORMERS["dinov2-registers-bare"] = originals.Case(
    "huggingface:dinov2-bare", {}, {}, "Dinov2WithRegistersModel"
)
TIMM = {
    name: originals.TIMM[name]
    for name in (
        "token",
        "registers-scale-qknorm",
        "registers-positioned",
        "deit3",
        "deit-distilled",
    )
}
# Of each way of resampling one on every backend.
ON_ALL_BACKENDS = ("vit", "dinov2", "token", "registers-positioned")


def marked(names):
    return [
        name
        if name in ON_ALL_BACKENDS
        else pytest.param(name, marks=pytest.mark.backends("torch"))
        for name in names
    ]


# The files' own size is 32 x 32.
SIZES = ((48, 48), (16, 16), (40, 24), (16, 48))
TOLERANCE = 3e-5


def images(height, width):
    sample = np.random.default_rng(0).normal
    return sample(size=(2, height, width, 3)).astype("float32")


def output_of(model, x, field="logits", **options):
    import torch

    batch = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad(), torch.device("cpu"):
        found = model(batch, **options)
    return getattr(found, field, found).numpy()


def assert_alike(model, x, expected, record_error, name):
    found = keras.ops.convert_to_numpy(model(x, training=False))
    assert np.ptp(expected, axis=0).max() > 0.01
    assert found.shape == expected.shape
    error = np.abs(found - expected).max()
    record_error("other sizes", f"{name} {x.shape[1:3]}", error, TOLERANCE)


@pytest.mark.parametrize("name", marked(TRANSFORMERS))
def test_other_sizes_match_transformers(name, tmp_path, record_error):
    original = originals.build(TRANSFORMERS[name])
    originals.shake(original)
    original.save_pretrained(tmp_path)
    options = {"interpolate_pos_encoding": True}
    if name.startswith("dinov2"):
        options = {}  # it always does
    given = {}
    if not originals.has_head(original):
        options["field"] = "last_hidden_state"
        given = {"pooling": None}
    model = keras_vit.converters.load(
        tmp_path, input_shape=(None, None, 3), **given
    )
    original = getattr(original, "vit", original) if given else original
    for size in SIZES:
        x = images(*size)
        expected = output_of(original, x, **options)
        assert_alike(model, x, expected, record_error, name)
    # The last size again, with positions resampled while loading.
    model = keras_vit.converters.load(tmp_path, input_shape=(*size, 3), **given)
    assert_alike(model, x, expected, record_error, f"{name}, loaded so,")


@pytest.mark.parametrize("name", marked(TIMM))
def test_other_sizes_match_timm(name, tmp_path, record_error):
    case = TIMM[name]
    options = {**case.options, "dynamic_img_size": True}
    original = originals.build(dataclasses.replace(case, options=options))
    originals.shake(original)
    path = originals.save(case, original, tmp_path)
    model = keras_vit.converters.load(
        path, num_heads=2, input_shape=(None, None, 3), **case.load_arguments
    )
    for size in SIZES:
        x = images(*size)
        expected = output_of(original, x)
        assert_alike(model, x, expected, record_error, name)


def timm_file(folder, img_size, **options):
    """Returns a file of timm for images of this size, and timm's own
    output."""
    timm = pytest.importorskip("timm")
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=img_size,
        patch_size=8,
        embed_dim=32,
        depth=1,
        num_heads=2,
        num_classes=5,
        **options,
    )
    model = model.cpu().eval()
    originals.shake(model)
    path = originals.save(originals.TIMM["token"], model, folder)
    return path, output_of(model, images(*img_size))


@pytest.mark.backends("torch")
def test_epsilon_of_timm_clip_models(tmp_path):
    import torch

    timm = pytest.importorskip("timm")
    original = timm.models.vision_transformer.vit_xsmall_patch16_clip_224(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2
    )
    original = original.cpu().eval()
    originals.shake(original)
    with torch.no_grad():  # the norm's input is small: its epsilon matters
        for weight in (
            original.patch_embed.proj.weight,
            original.pos_embed,
            original.cls_token,
        ):
            weight.mul_(0.01)
    path = originals.save(originals.TIMM["token"], original, tmp_path)
    config = {"architecture": "vit_xsmall_patch16_clip_224"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = keras_vit.converters.load(path, num_heads=2)
    found = keras.ops.convert_to_numpy(model(images(32, 32)))
    expected = output_of(original, images(32, 32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.backends("torch")
def test_positions_that_fit_two_grids_raise(tmp_path):
    path, expected = timm_file(
        tmp_path, (24, 24), reg_tokens=4, no_embed_class=True
    )
    with pytest.raises(ValueError, match="read in two ways"):
        keras_vit.converters.load(path, num_heads=2)
    model = keras_vit.converters.load(path, num_heads=2, position_prefix="none")
    found = keras.ops.convert_to_numpy(model(images(24, 24)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("torch")
def test_layer_scale_with_ambiguous_positions_warns(tmp_path):
    """24 patches and a class token are 25 positions, as 5 x 5 patches are."""
    path, expected = timm_file(tmp_path, (24, 64), init_values=0.1)
    with pytest.warns(UserWarning, match="position_prefix='all'"):
        model = keras_vit.converters.load(path, num_heads=2)
    assert model.input_shape == (None, 40, 40, 3)
    model = keras_vit.converters.load(
        path, num_heads=2, position_prefix="all", input_shape=(24, 64, 3)
    )
    found = keras.ops.convert_to_numpy(model(images(24, 64)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "architecture,prefix",
    [
        ("vit_small_patch14_dinov2", "all"),
        ("deit3_small_patch16_224", "none"),
        ("vit_medium_patch16_reg4_gap_256", "none"),
    ],
)
def test_position_prefix_is_inferred_from_a_timm_config(
    architecture, prefix, tmp_path
):
    path, expected = timm_file(
        tmp_path,
        (24, 24),
        init_values=0.1,
        reg_tokens=4 * ("reg4" in architecture),
        no_embed_class=prefix == "none",
    )
    config = {"architecture": architecture}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = keras_vit.converters.load(path, num_heads=2)
    assert model.input_shape == (None, 24, 24, 3)
    found = keras.ops.convert_to_numpy(model(images(24, 24)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["max", "avgmax", ["avg"]])
def test_unsupported_timm_pooling_is_refused(pooling, tmp_path):
    path, _ = timm_file(tmp_path, (32, 32))
    config = {"architecture": "vit_tiny", "global_pool": pooling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'global_pool' in its config.json"):
        keras_vit.converters.load(path, num_heads=2)
