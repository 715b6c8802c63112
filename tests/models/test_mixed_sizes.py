"""Images of several sizes in one batch equal the images alone."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.data import pack_images
from keras_vit.models import with_any_size
from tests.harness import copies, numpy
from tests.markers import on_all
from tests.small import randomize, tiny

# Rows and columns of patches of ten images, of which one has the grid of the
# learned positions, and some have fewer or more rows or columns.
GRIDS = ((1, 1), (1, 7), (9, 2), (2, 3), (5, 4), (4, 5), (6, 6), (13, 1))
GRIDS += ((3, 8), (2, 2))
ROPE = {"position_embedding": "rope", "num_heads": 2}
ALL = {
    "learned": {"num_registers": 2, "resampling": "bicubic_antialias"},
    "rope": {**ROPE, "pooling": "gap", "input_shape": (20, 16, 1)},
    "map": {"pooling": "map", "resampling": "bilinear_antialias"},
}
CASES = {
    **ALL,
    "rope token": ROPE,
    "registers": {"num_registers": 3, "position_prefix": "class"},
    "distillation": {"distillation": True},
    "head norm": {"pooling": "gap", "final_norm": "after_pooling"},
    "token_gap": {"pooling": "token_gap"},
    "first_patch": {"pooling": "first_patch"},
    "all tokens": {"include_top": False, "classes": None},
    "rectangles": {"patch_size": (4, 6), "input_shape": (20, 24, 1)},
    "pre_norm": {"pre_norm": True, "qk_norm": True, "remat": True},
    "learned_2d": {"position_embedding": "learned_2d"},
    "factorized": {
        "position_embedding": "factorized",
        "resampling": "bilinear_square",
        "num_registers": 1,
        "position_prefix": "class",
    },
    "square": {"resampling": "bicubic_antialias_square"},
    "sincos2d": {"position_embedding": "sincos2d"},
    "none": {"position_embedding": "none"},
    "every_layer": {"position_placement": "every_layer"},
    "shared": {"position_placement": "every_layer_shared"},
    "bicubic": {"resampling": "bicubic"},
    "bicubic_offset": {"resampling": "bicubic_offset"},
    "align_corners": {"resampling": "bicubic_align_corners"},
}


def model_of(**options):
    keras.utils.set_random_seed(0)
    model = tiny(**{"input_shape": (20, 16, 3), **options})
    randomize(model, 0.2)
    return model


def pictures(model, grids=GRIDS):
    rng = np.random.default_rng(1)
    p, q = model.get_layer("patch_embedding").patch_size
    channels = model.input_shape[-1]
    return [
        rng.uniform(-1, 1, (rows * p, columns * q, channels)).astype("float32")
        for rows, columns in grids
    ]


def packed(model, images, length=40, order="first"):
    """Patches whose padding, after, before or among them, is NaN and far
    away."""
    patch_size = model.get_layer("patch_embedding").patch_size
    arrays = pack_images(images, patch_size, length)
    patches, coordinates, valid = arrays
    patches[~valid], coordinates[~valid] = np.nan, 99
    index = np.tile(np.arange(length), (len(images), 1))
    if order == "last":
        index = np.argsort(valid, axis=1, kind="stable")
    elif order == "any":
        index = np.random.default_rng(2).permuted(index, axis=1)
    rows = np.arange(len(images))[:, None]
    return [each[rows, index] for each in arrays]


def alone(model, images):
    any_size = with_any_size(model)
    return [numpy(any_size(image[None]))[0] for image in images]


@pytest.mark.parametrize("name", on_all(CASES, ALL))
def test_each_image_is_as_alone(name):
    model = model_of(**CASES[name])
    mixed, images = keras_vit.mixed_sizes(model), pictures(model)
    expected = alone(model, images)
    for order in ("first", "last", "any"):
        outputs = numpy(mixed(packed(model, images, order=order)))
        if name == "all tokens":  # padding has no output to compare
            if order != "first":
                continue
            outputs = [x[: len(y)] for x, y in zip(outputs, expected, strict=True)]
        for output, of_one in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, of_one, rtol=0, atol=1e-5)


@pytest.mark.backends("torch")
def test_first_patch_is_the_first_valid_one_without_places():
    tokens = np.arange(12, dtype="float32").reshape(2, 3, 2)
    valid = np.array([[False, True, True], [True, False, True]])
    pooled = keras_vit.layers.Pooling("first_patch")(tokens, valid)
    np.testing.assert_array_equal(numpy(pooled), [[2, 3], [6, 7]])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.backends("torch")
def test_half_precision(dtype):
    model = model_of(pooling="map")
    expected = alone(model, images := pictures(model))
    keras.config.set_dtype_policy(dtype)
    try:
        half = model_of(pooling="map")
    finally:
        keras.config.set_dtype_policy("float32")
    # On a CPU with AMX, torch 2.13's own bfloat16 convolution of such images is wrong
    # where oneDNN computes it: `torch.nn.functional.conv2d` alone shows it.
    with pytest.importorskip("torch").backends.mkldnn.flags(enabled=False):
        outputs = numpy(keras_vit.mixed_sizes(half)(packed(half, images)))
    scale = np.abs(expected).max()
    assert np.abs(outputs - expected).max() < scale * (
        0.01 if "float16" == dtype[6:] else 0.05
    )


def test_training_ignores_padding():
    """`fit` moves the shared weights as it does on images of one size, and an
    image that is padding alone has finite outputs."""
    weights = []
    for is_mixed in (False, True):
        keras.utils.set_random_seed(0)
        model = model_of(pooling="gap")
        images = pictures(model, ((5, 4),) * 4)
        trained = keras_vit.mixed_sizes(model) if is_mixed else model
        x = packed(model, images) if is_mixed else np.stack(images)
        trained.compile("sgd", "mse")
        history = trained.fit(x, np.ones((4, 5)), batch_size=2, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
        weights.append([numpy(w) for w in model.weights])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    x[2][:] = False
    assert np.isfinite(numpy(trained(x))).all()


@pytest.mark.backends("torch")
def test_copies_and_files(tmp_path):
    model = model_of(num_registers=1, position_prefix="none")
    model.class_names = [str(i) for i in range(model.output_shape[-1])]
    mixed, images = keras_vit.mixed_sizes(model), pictures(model)
    assert mixed.class_names == model.class_names
    x = packed(model, images)
    expected = numpy(mixed(x))
    for way, copy in copies(mixed, tmp_path).items():
        np.testing.assert_array_equal(numpy(copy(x)), expected, err_msg=way)
    mixed.save(tmp_path / "mixed.keras")
    other = keras_vit.converters.load(tmp_path / "mixed.keras", classes=7)
    assert other(x).shape == (len(images), 7)
    block, loaded = (m.get_layer("block_1") for m in (mixed, other))
    for one, two in zip(block.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(two))
    keras_vit.converters.save(mixed, tmp_path / "a.safetensors", format="timm")
    keras_vit.converters.save(model, tmp_path / "b.safetensors", format="timm")
    files = [(tmp_path / f"{x}.safetensors").read_bytes() for x in "ab"]
    assert files[0] == files[1]
    features = keras_vit.feature_extractor(model, ["pooling", "block_0"])
    outputs = keras_vit.mixed_sizes(features)(x)
    np.testing.assert_allclose(
        numpy(outputs["pooling"]),
        np.stack(
            [numpy(with_any_size(features)(i[None])["pooling"])[0] for i in images]
        ),
        rtol=0,
        atol=1e-5,
    )


def test_wrong_models_and_images():
    model = model_of(position_embedding="relative")
    with pytest.raises(ValueError, match="relative positions. Received"):
        keras_vit.mixed_sizes(model)
    mixed = keras_vit.mixed_sizes(model_of())
    x = pack_images([np.zeros((8, 8, 3))], 4)
    with pytest.raises(ValueError, match="must have one input, images"):
        keras_vit.inspection.relevance(mixed, x[0])
    with pytest.raises(ValueError, match="1 to 40 whole patches of 4 x 4"):
        pack_images([np.zeros((8, 10, 3))], 4, 40)
    with pytest.raises(ValueError, match="1 to 3 whole patches"):
        pack_images([np.zeros((8, 8, 3))], 4, 3)
    with pytest.raises(ValueError, match=r"length, 4 \* 4 \* channels"):
        keras_vit.layers.MixedSizes(4)(
            ops.zeros((1, 2, 50)), ops.zeros((1, 2, 2)), ops.ones((1, 2))
        )
