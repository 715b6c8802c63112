"""Loading with another patch size than the file's, as timm does it."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.resampling import resample_patch_kernel
from keras_vit_programs import convert as _cli
from tests import golden_data, originals

SIZES = ((8, 8), (12, 12), (32, 32), (20, 12))
TOLERANCE = 3e-5
RESIZED = "resized from .* by the pseudo-inverse"


@pytest.mark.backends("torch")
def test_big_vision_resizes_bilinearly():
    """Section 3.4 of the paper: products with resized patches are kept when
    patches grow. big_vision resizes bilinearly, without antialiasing."""
    import torch

    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 2))
    patch = np.random.default_rng(1).normal(size=(1, 3, 4, 4))
    larger = torch.nn.functional.interpolate(
        torch.from_numpy(patch), (8, 6), mode="bilinear"
    )
    resized = resample_patch_kernel(kernel, (8, 6), "bilinear")
    np.testing.assert_allclose(
        np.einsum("bcyx,yxcf->bf", larger.numpy(), resized),
        np.einsum("bcyx,yxcf->bf", patch, kernel),
        atol=1e-12,
    )


@pytest.mark.parametrize(
    "size",
    [
        (20, 12),
        *(pytest.param(s, marks=pytest.mark.backends("torch")) for s in SIZES[:3]),
    ],
)
def test_logits_equal_timms(size, tmp_path, record_error):
    timm = pytest.importorskip("timm").models.vision_transformer
    case = originals.TIMM["token"]
    original = originals.build(case, patch_size=16, img_size=48)
    path, _ = originals.save(case, original, tmp_path)
    shape = (size[0] * 4, size[1] * 3)
    options = {"patch_size": size, "img_size": shape}
    resized = originals.build(case, dynamic_img_size=False, **options)
    state = timm.checkpoint_filter_fn(original.state_dict(), resized)
    resized.load_state_dict(state, strict=True)
    x = np.random.default_rng(0).normal(size=(2, *shape, 3)).astype("float32")
    with pytest.warns(UserWarning, match=RESIZED):
        model = keras_vit.VisionTransformer(
            weights=path, num_heads=2, patch_size=size, input_shape=(*shape, 3)
        )
    found = keras.ops.convert_to_numpy(model(x, training=False))
    expected = originals.run(resized, x)
    assert np.ptp(expected) > 0.1
    error = np.abs(found - expected).max()
    record_error("patch sizes", f"16 to {size}, logits", error, TOLERANCE)


@pytest.mark.backends("torch")
def test_the_image_size_is_the_files():
    path = golden_data.weights_path("vit_jax_token")
    with pytest.warns(UserWarning, match=RESIZED) as caught:
        model = keras_vit.converters.load(path, num_heads=3, patch_size=4)
    assert len([x for x in caught if "pseudo-inverse" in str(x.message)]) == 1
    assert "\n" not in str(caught[0].message)
    assert model.input_shape == (None, 32, 32, 3)
    assert model.get_layer("position_embedding").built_grid == (8, 8)
    with pytest.raises(ValueError, match="does not divide an image.*of 32 x 32"):
        keras_vit.converters.load(path, num_heads=3, patch_size=12)


@pytest.mark.backends("torch")
def test_a_file_converted_without_a_model_keeps_its_patch_size(tmp_path):
    path = golden_data.weights_path("vit_jax_token")
    with pytest.raises(ValueError, match=r"patch_size=4"):
        _cli.convert(
            path, tmp_path / "x.npz", settings={"patch_size": 4, "num_heads": 3}
        )
    middle = tmp_path / "x.keras"
    with pytest.warns(UserWarning, match=RESIZED):
        _cli.convert(path, middle, settings={"patch_size": 4, "num_heads": 3})
    _cli.convert(middle, tmp_path / "x.npz", to="vit_jax")
    again = keras_vit.converters.load(tmp_path / "x.npz", num_heads=3)
    assert again.get_layer("patch_embedding").patch_size == (4, 4)
