"""Files of transformers and timm at other image sizes than their own: each
library resamples the position embeddings in its own way."""

import dataclasses
import json

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.files import read
from tests import golden_data
from tests import originals
from tests.harness import numpy
from tests.markers import on_all
from tests.small import randomize
from tests.small import tiny

# "deit" has a distillation token that its head does not read.
CASES = originals.CASES | {
    f"transformers-{name}": case for name, case in originals.ENCODERS.items()
}
# Of each way of resampling one on every backend.
ON_ALL_BACKENDS = (
    *("transformers-vit", "transformers-dinov2"),
    *("timm-token", "timm-registers-positioned"),
)

# The files' own size is 32 x 32.
SIZES = ((32, 32), (48, 48), (16, 16), (40, 24), (16, 48))
TOLERANCE = 3e-5
# At its own size, rounding makes up to 3e-6, and the other GELU 1.4e-5.
OWN_TOLERANCE = 1e-5


def assert_alike(model, x, expected, record_error, name):
    found = numpy(model(x, training=False))
    assert np.ptp(expected, axis=0).max() > 0.01
    assert found.shape == expected.shape
    error = np.abs(found - expected).max()
    size = x.shape[1:3]
    tolerance = OWN_TOLERANCE if size == SIZES[0] else TOLERANCE
    record_error("other sizes", f"{name} {size}", error, tolerance)


@pytest.mark.parametrize("name", on_all(CASES, ON_ALL_BACKENDS))
def test_outputs_match_the_original_at_any_size(name, tmp_path, record_error):
    case, options = CASES[name], {}
    library = name.partition("-")[0]
    given = {"num_heads": 2, **case.load_arguments}
    if library == "timm":
        dynamic = {**case.options, "dynamic_img_size": True}
        case = dataclasses.replace(case, options=dynamic)
    original = originals.build(case)
    originals.shake(original)
    path = originals.save(case, original, tmp_path)
    if library == "transformers":
        given = {}
        if "dinov2" not in name:  # which always does
            options["interpolate_pos_encoding"] = True
        if not originals.has_head(original):
            options["field"] = "last_hidden_state"
            given = {"pooling": None}
            original = getattr(original, "vit", original)
    model = keras_vit.converters.load(
        path, input_shape=(None, None, 3), **given
    )
    for size in SIZES if library != "torchvision" else SIZES[:1]:
        x = originals.images(*size)
        expected = originals.run(original, x, **options)
        assert_alike(model, x, expected, record_error, name)
    # The last size again, with positions resampled while loading.
    model = keras_vit.converters.load(path, input_shape=(*size, 3), **given)
    assert_alike(model, x, expected, record_error, f"{name}, loaded so,")
    # At its own size it is written back with the same bits.
    if given.get("pooling", True):
        model = keras_vit.converters.load(path, **given)
        back = tmp_path / "back"
        if library != "transformers":
            back = back.with_suffix(path.suffix)
        keras_vit.converters.save(model, back, case.layout)
        golden_data.assert_same(read(back), read(path))


@pytest.mark.backends("torch")
def test_deit3_layout_writes_gamma_names(tmp_path):
    """Meta's own files use the name gamma_1; timm renames it when it reads
    them."""
    original = originals.build(originals.CASES["timm-deit3"])
    model = tiny(
        hidden_size=32,
        num_heads=2,
        mlp_dim=64,
        patch_size=8,
        input_shape=(32, 32, 3),
        **originals.CASES["timm-deit3"].arguments,
    )
    randomize(model, 0.1)
    path = tmp_path / "model.safetensors"
    keras_vit.converters.save(model, path, "timm:deit3")
    module = pytest.importorskip("timm").models.vision_transformer
    arrays = originals.read(path)
    assert "blocks.0.gamma_1" in arrays
    renamed = module.checkpoint_filter_fn(
        arrays, original, adapt_layer_scale=True
    )
    original.load_state_dict(renamed, strict=True)
    x = originals.images(32, 32)
    for ours in (model, keras_vit.converters.load(path, num_heads=2)):
        found = numpy(ours(x))
        np.testing.assert_allclose(
            found, originals.run(original, x), rtol=0, atol=OWN_TOLERANCE
        )


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
    return path, originals.run(model, originals.images(*img_size))


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
    found = numpy(model(originals.images(32, 32)))
    expected = originals.run(original, originals.images(32, 32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.backends("torch")
def test_positions_that_fit_two_grids_raise(tmp_path):
    path, expected = timm_file(
        tmp_path, (24, 24), reg_tokens=4, no_embed_class=True
    )
    with pytest.raises(ValueError, match="read in two ways"):
        keras_vit.converters.load(path, num_heads=2)
    model = keras_vit.converters.load(path, num_heads=2, position_prefix="none")
    found = numpy(model(originals.images(24, 24)))
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
    found = numpy(model(originals.images(24, 64)))
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
    found = numpy(model(originals.images(24, 24)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["max", "avgmax", ["avg"]])
def test_unsupported_timm_pooling_is_refused(pooling, tmp_path):
    path, _ = timm_file(tmp_path, (32, 32))
    config = {"architecture": "vit_tiny", "global_pool": pooling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'global_pool' in its config.json"):
        keras_vit.converters.load(path, num_heads=2)
