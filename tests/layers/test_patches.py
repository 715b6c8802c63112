"""Patches and their embedding: properties for any size."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit import layers
from tests import reference
from tests.harness import numpy

size = st.integers(1, 4)
# The other backends compile each example.
count = 12 if keras.config.backend() == "torch" else 4
quick = settings(max_examples=count, deadline=None)


def images_of(rows, columns, patch, channels):
    rng = np.random.default_rng(rows * 100 + columns)
    shape = (2, rows * patch[0], columns * patch[1], channels)
    return rng.normal(size=shape).astype("float32")


@quick
@given(size, size, st.tuples(size, size), st.integers(1, 5))
def test_patches_match_the_reference(rows, columns, patch, channels):
    images = images_of(rows, columns, patch, channels)
    found = numpy(layers.Patches(patch)(images))
    np.testing.assert_array_equal(found, reference.patches(images, patch))


@quick
@given(size, size, st.tuples(size, size), st.integers(1, 5))
def test_embedding_equals_patches_and_dense(rows, columns, patch, channels):
    images = images_of(rows, columns, patch, channels)
    embedding = layers.PatchEmbedding(6, patch)
    found = embedding(images)
    assert tuple(found.shape) == (2, rows, columns, 6)

    dense = keras.layers.Dense(6)
    patches = layers.Patches(patch)(images)
    dense.build(patches.shape)
    kernel = numpy(embedding.kernel).reshape(-1, 6)
    bias = np.arange(6, dtype="float32")
    embedding.bias.assign(bias)
    dense.set_weights([kernel, bias])
    np.testing.assert_allclose(
        numpy(embedding(images)).reshape(2, -1, 6),
        numpy(dense(patches)),
        atol=5e-6,
    )


@quick
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.tuples(size, size),
    st.integers(1, 3),
)
def test_padding_adds_zeros_at_bottom_and_right(height, width, patch, channels):
    rng = np.random.default_rng(height * 10 + width)
    images = rng.normal(size=(1, height, width, 2)).astype("float32")
    below, right = -height % patch[0], -width % patch[1]
    padded = np.pad(images, ((0, 0), (0, below), (0, right), (0, 0)))
    found = layers.Patches(patch, pad_to_patch=True)(images)
    np.testing.assert_array_equal(numpy(found), reference.patches(padded, patch))
    embedding = layers.PatchEmbedding(4, patch, pad_to_patch=True)
    np.testing.assert_allclose(
        numpy(embedding(images)), numpy(embedding(padded)), atol=1e-6
    )


def test_patch_embedding_kernel_is_lecun_normal():
    embedding = layers.PatchEmbedding(512, 16)
    embedding.build((None, 224, 224, 3))
    # lecun_normal: variance 1 / (16 * 16 * 3)
    assert abs(numpy(embedding.kernel).std() * 768**0.5 - 1) < 0.02
    assert not numpy(embedding.bias).any()


def test_image_data_format_is_ignored():
    images = images_of(2, 3, (4, 4), 3)
    embedding = layers.PatchEmbedding(6, 4)
    before = numpy(embedding(images))
    keras.config.set_image_data_format("channels_first")
    try:
        after = numpy(embedding(images))
    finally:
        keras.config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(before, after)
