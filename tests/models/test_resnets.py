"""Hybrids and BiT: options, files and errors."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, open_checkpoint, save
from tests import golden_data
from tests.harness import copies, numpy
from tests.markers import on_all
from tests.small import bit, hybrid, images, randomize

RNG = np.random.default_rng(0)


def grid_of(model):
    return model.get_layer("patch_embedding").output.shape[1:3]


@pytest.mark.backends("torch")
def test_move_stage_4_gives_four_times_the_tokens():
    """Section 3.1: moving stage 4 gives four times the tokens."""
    sizes = {"resnet_layers": (3, 4, 6, 3), "input_shape": (64, 64, 3)}
    first = hybrid(**sizes)
    second = hybrid(**sizes, move_stage_4=True)
    assert (grid_of(first), grid_of(second)) == ((2, 2), (4, 4))
    names = {layer.name for layer in second.layers}
    assert "stage_3_unit_9" in names and "stage_4" not in names
    assert "stage_4_unit_3" in {layer.name for layer in first.layers}


@pytest.mark.parametrize(
    "layers,patch,size,grid",
    on_all(
        [
            ((1,), 2, (13, 5), (2, 1)),  # feature maps are rounded up
            ((1, 1, 1), (1, 2), (16, 32), (1, 1)),
        ],
        [((1,), 2, (13, 5), (2, 1))],
    ),
)
@pytest.mark.usefixtures("eager")
def test_image_sizes_divisible_by_patch_and_stride(layers, patch, size, grid):
    model = hybrid(resnet_layers=layers, patch_size=patch, input_shape=(*size, 3))
    assert grid_of(model) == grid
    assert model.get_layer("position_embedding").built_grid == grid
    x = RNG.normal(size=(1, *size, 3))
    free = hybrid(
        resnet_layers=layers,
        patch_size=patch,
        input_shape=(None, None, 3),
        grid_size=grid,
    )
    randomize(model, 0.1)
    free.set_weights(model.get_weights())
    np.testing.assert_allclose(
        free.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5
    )


@pytest.mark.backends("torch")
def test_indivisible_feature_map_is_padded():
    model = hybrid(patch_size=2, pad_to_patch=True)
    assert grid_of(model) == (1, 2)


def test_bit_of_unknown_image_size_matches_a_fixed_one():
    fixed = bit()
    randomize(fixed, 0.1)
    free = bit(input_shape=(None, None, 3))
    free.set_weights(fixed.get_weights())
    x = RNG.normal(size=(2, 16, 24, 3))
    np.testing.assert_allclose(
        free.predict(x, verbose=0), fixed.predict(x, verbose=0), atol=1e-5
    )
    other = free.predict(RNG.normal(size=(1, 40, 8, 3)), verbose=0)
    assert other.shape == (1, 4)


@pytest.mark.backends("torch")
def test_positions_resample_over_the_feature_map():
    path = golden_data.weights_path("vit_jax_hybrid_small_stem")
    same = load(path)
    assert same.input_shape == (None, 32, 32, 3)
    larger = load(path, input_shape=(48, 64, 3))
    assert larger.get_layer("position_embedding").built_grid == (6, 8)
    before = same.get_layer("position_embedding").embedding
    after = larger.get_layer("position_embedding").embedding
    assert tuple(after.shape) == (1, 49, 24)
    corners = numpy(after)[:, [1, 8, 41, 48]]  # align_corners keeps them
    np.testing.assert_allclose(corners, numpy(before)[:, [1, 4, 13, 16]], atol=1e-7)


@pytest.mark.backends("torch")
def test_other_classes_and_channels():
    path = golden_data.weights_path("bit_paper")
    model = load(path, classes=3, input_shape=(32, 32, 1))
    assert not numpy(model.get_layer("head").kernel).any()
    kernel = open_checkpoint(path).weights["root_conv/kernel"]
    np.testing.assert_allclose(
        numpy(model.get_layer("root_conv").kernel),
        kernel.sum(2, keepdims=True),
        atol=1e-6,
    )


@pytest.mark.parametrize("make", on_all([hybrid, bit], [hybrid]))
@pytest.mark.usefixtures("eager")
def test_mixed_precision_has_finite_gradients(make):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make()
    randomize(model, 0.1)
    before = [numpy(w) for w in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = RNG.uniform(-1, 1, size=(2, 16, 24, 3)).astype("float32")
    model.fit(x, np.ones((2, 4), "float32"), verbose=0)
    still = []
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert weight.dtype == "float32"
        assert np.isfinite(numpy(weight)).all(), weight.path
        if np.array_equal(numpy(weight), old):
            still.append(weight.path)
    assert all(path.endswith("key/bias") for path in still), still


@pytest.mark.backends("torch")
@pytest.mark.parametrize("preactivation", [True, False])
def test_bit_file_round_trip(preactivation, tmp_path):
    """Channels are last, whatever Keras's default is."""
    keras.config.set_image_data_format("channels_first")
    try:
        model = bit(preactivation=preactivation, std_epsilon=0.01)
    finally:
        keras.config.set_image_data_format("channels_last")
    randomize(model)
    save(model, tmp_path / "model.npz", "bit")
    again = load(tmp_path / "model.npz", input_shape=(16, 24, 3))
    for old, new in zip(model.weights, again.weights, strict=True):
        assert old.path == new.path
        np.testing.assert_array_equal(numpy(old), numpy(new))
    x = images(2, 16, 24, 3)
    for way, copy in copies(model, tmp_path).items():
        assert type(copy) is type(model)
        assert copy.get_layer("root_conv").epsilon == 0.01
        np.testing.assert_array_equal(numpy(copy(x)), numpy(model(x)), err_msg=way)
    with pytest.raises(ValueError, match="'bit' can"):
        save(model, tmp_path / "vit.npz", "vit_jax")
    assert not (tmp_path / "vit.npz").exists()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "build,case,message",
    [
        (
            "VisionTransformer",
            "vit_jax_hybrid_small_stem",
            "HybridVisionTransformer",
        ),
        ("HybridVisionTransformer", "vit_jax_token", "`VisionTransformer`"),
        ("HybridVisionTransformer", "bit_paper", "`BiT` builds"),
        ("BiT_R50x1", "vit_jax_token", "`VisionTransformer` builds"),
    ],
)
def test_error_names_the_right_model_function(build, case, message):
    path = golden_data.weights_path(case)
    with pytest.raises(ValueError, match=message):
        getattr(keras_vit, build)(weights=path)
