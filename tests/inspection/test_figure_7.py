"""Figure 7: filters, similarity of positions, attention distance."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.inspection import models
from tests.small import hybrid

pytestmark = pytest.mark.backends("torch")

GRID, PATCH = models.GRID, models.PATCH
CORNERS = [(row * PATCH, column * PATCH) for row, column in np.ndindex(GRID)]


@pytest.mark.parametrize(
    "patch, registers",
    [
        (None, 0),
        pytest.param(*(0, 2), marks=pytest.mark.backends("jax", "tensorflow", "torch")),
        (4, 0),
    ],
)
def test_attention_distance_of_known_attention(patch, registers):
    model = models.looking_at(patch, num_registers=registers)
    found = inspection.attention_distance(
        model, models.images(3), layers=0, batch_size=2
    )
    seen = CORNERS if patch is None else [CORNERS[patch]]
    expected = np.mean(
        [
            np.hypot(row - other_row, column - other_column)
            for row, column in CORNERS
            for other_row, other_column in seen
        ]
    )
    assert found.shape == (1, 2)
    # Softmax leaves other patches a little.
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_attention_distance_is_in_pixels():
    model = hybrid(input_shape=(64, 96, 3), patch_size=(1, 2))
    layout = inspection.token_layout(model)
    assert (layout.grid, layout.patch_size) == ((8, 6), (8, 16))
    assert inspection.embedding_filters(model, 5).shape == (5, 7, 7, 3)
    images = np.zeros((1, 64, 96, 3), "float32")
    kernel = model.get_layer("block_0").attention.query.kernel
    kernel.assign(np.zeros(kernel.shape))
    found = inspection.attention_distance(model, images)
    down, right = np.indices((8, 6)).reshape(2, -1) * [[8], [16]]
    apart = np.hypot(*(x[:, None] - x for x in (down, right)))
    np.testing.assert_allclose(found, apart.mean(), rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_embedding_filters_are_principal_components(channels):
    model = models.looking_at(None, input_shape=(16, 24, channels), hidden_size=256)
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(8, 8, channels, 256))
    kernel *= np.geomspace(1, 0.01, 64 * channels).reshape(8, 8, channels, 1)
    model.get_layer("patch_embedding").kernel.assign(kernel)
    found = inspection.embedding_filters(model)
    assert found.shape == (28, 8, 8, channels)
    covariance = np.cov(kernel.reshape(-1, 256))
    values, vectors = np.linalg.eigh(covariance)
    for index, one in enumerate(found[:5]):
        assert (one.min(), one.max()) == (0, 1)
        expected = vectors[:, -1 - index]
        match = np.corrcoef(one.ravel(), expected)[0, 1]
        assert abs(match) > 0.999
    # There are no more components than the hidden size.
    narrow = models.looking_at(None, hidden_size=8)
    narrow.get_layer("patch_embedding").kernel.assign(rng.normal(size=(8, 8, 3, 8)))
    assert inspection.embedding_filters(narrow).shape == (8, 8, 8, 3)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_position_similarity_is_the_cosine(policy):
    keras.config.set_dtype_policy(policy)
    model = models.looking_at(None, num_registers=1, position_prefix="all")
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(1, 8, 16))
    model.get_layer("position_embedding").embedding.assign(embedding)
    found = inspection.position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    for row, column, i, j in np.ndindex(found.shape):
        one, other = (embedding[0, 2 + r * 3 + c] for r, c in ((row, column), (i, j)))
        cosine = one @ other / np.sqrt((one @ one) * (other @ other))
        np.testing.assert_allclose(found[row, column, i, j], cosine, atol=1e-6)
    assert inspection.position_similarity(model, (4, 2)).shape == (4, 2, 4, 2)


def test_position_similarity_uses_the_first_block():
    model = models.looking_at(
        None,
        num_registers=1,
        position_prefix="class",
        position_embedding="learned_2d",
        position_placement="every_layer",
    )
    columns = np.zeros((3, 8))
    columns[[0, 1, 2], [0, 0, 1]] = 1  # two alike, one apart
    model.get_layer("position_embedding_0").columns.assign(columns)
    found = inspection.position_similarity(model)
    alike = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    for row, other in np.ndindex(2, 2):
        np.testing.assert_allclose(found[row, :, other], alike, atol=1e-6)
    model = models.looking_at(None, position_embedding="relative")
    with pytest.raises(ValueError, match="adds no position embeddings"):
        inspection.position_similarity(model)


def test_position_similarity_of_sincos2d():
    images = keras.Input((None, None, 3))
    grid = keras_vit.layers.PatchEmbedding(16, 8)(images)
    tokens = keras.layers.Reshape((-1, 16))(grid)
    tokens = keras_vit.layers.AddPositionEmbs("sincos2d")(tokens, grid)
    model = keras.Model(images, tokens)
    with pytest.raises(ValueError, match="give `grid_size"):
        inspection.position_similarity(model)
    found = inspection.position_similarity(model, (4, 5))
    np.testing.assert_allclose(found, found.transpose(2, 3, 0, 1), atol=1e-6)
    assert found[0, 0, 0, 1] > found[0, 0, 0, 2] > found[0, 0, 3, 4]
    model = models.looking_at(None, position_embedding="none")
    with pytest.raises(ValueError, match="adds no position embeddings"):
        inspection.position_similarity(model)
