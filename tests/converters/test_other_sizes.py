"""Files of transformers and timm at other image sizes than their own: each
library resamples the position embeddings in its own way."""

import dataclasses

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
# The files' own size is 32 x 32.
SIZES = ((48, 48), (16, 16), (40, 24), (16, 48))
TOLERANCE = 3e-5


def images(height, width):
    draw = np.random.default_rng(0).normal
    return draw(size=(2, height, width, 3)).astype("float32")


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


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_resamples_so(name, tmp_path, record_error):
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


@pytest.mark.parametrize("name", TIMM)
def test_timm_resamples_so(name, tmp_path, record_error):
    case = TIMM[name]
    options = {**case.options, "dynamic_img_size": True}
    original = originals.build(dataclasses.replace(case, options=options))
    originals.shake(original)
    path = originals.save(case, original, tmp_path)
    model = keras_vit.converters.load(
        path, num_heads=2, input_shape=(None, None, 3), **case.told
    )
    for size in SIZES:
        x = images(*size)
        expected = output_of(original, x)
        assert_alike(model, x, expected, record_error, name)
