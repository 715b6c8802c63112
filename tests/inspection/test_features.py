"""Principal components of feature maps against scikit-learn's, on its two
photographs."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.data.steps.places import resize_image
from tests.harness import numpy
from tests.small import tiny

ON_TORCH = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def photos():
    datasets = pytest.importorskip("sklearn.datasets")
    images = [resize_image(x, (96, 144)) for x in datasets.load_sample_images().images]
    return keras_vit.preprocess_input(np.stack(images))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return tiny(input_shape=(32, 32, 3), patch_size=8, hidden_size=48, num_registers=2)


def alike(found, expected):
    """Up to the sign of each component."""
    sign = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * sign, expected, atol=1e-4)


def test_components_are_scikit_learns(model, photos):
    pca = pytest.importorskip("sklearn.decomposition").PCA
    maps = numpy(keras_vit.dense_features(model, -1)(photos, training=False))
    features = maps.reshape(-1, 48).astype("float64")
    found = inspection.feature_pca(model, photos, foreground=False)
    expected = pca(3, svd_solver="full").fit(features)
    alike(
        np.concatenate([x.reshape(-1, 3) for x in found.components]),
        expected.transform(features),
    )
    np.testing.assert_allclose(
        found.explained, expected.explained_variance_ratio_, atol=1e-6
    )

    features = maps[0].reshape(-1, 48).astype("float64")
    first = pca(1, svd_solver="full").fit_transform(features)[:, 0]
    first = first.reshape(1, 12, 18) > 0
    border = np.ones((12, 18), bool)
    border[1:-1, 1:-1] = False
    if first[:, border].mean() > 0.5:
        first = ~first
    found = inspection.feature_pca(model, photos[:1])
    np.testing.assert_array_equal(np.stack(found.foreground), first)
    assert 0 < first.mean() < 1
    kept = features[first.ravel()]
    components = np.stack(found.components)
    assert np.isnan(components[~first]).all()
    alike(components[first], pca(3, svd_solver="full").fit_transform(kept))


@ON_TORCH
def test_all_patches_are_kept_where_an_image_has_no_foreground(model, photos):
    """The first component separates a bright image and a dark one."""
    photos = np.stack([photos[0] / 9 + 0.8, photos[0] / 9 - 0.8])
    features = numpy(keras_vit.dense_features(model, -1)(photos))
    first = inspection.features.principal_components(features.reshape(-1, 48), 1)[
        0
    ].reshape(2, -1)
    assert sorted((first > 0).mean(1)) == [0, 1]
    found = inspection.feature_pca(model, photos)
    assert np.isfinite(found.components).all()
    assert np.all(found.foreground)


@ON_TORCH
def test_batches_of_several_sizes_and_the_plot(model, photos):
    batches = [photos, photos[:1, :64]]
    found = inspection.feature_pca(model, batches)
    assert [x.shape for x in found.components] == [
        (12, 18, 3),
        (12, 18, 3),
        (8, 18, 3),
    ]
    images = [*photos, photos[0, :64]]
    figure = inspection.plot_feature_pca(images, found, ["a", "b", "c"])
    assert len(figure.axes) == 6
    drawn = figure.axes[1].images[0].get_array()
    assert drawn.shape == (12, 18, 3) and 0 <= drawn.min() < drawn.max() <= 1
    dark = ~found.foreground[0]
    assert (np.asarray(drawn)[dark] < 0.1).all()


@ON_TORCH
def test_components_of_each_image(model, photos):
    """Each image has the components and colors that it has alone."""
    found = inspection.feature_pca(model, photos, joint=False)
    assert found.explained.shape == (2, 3)
    colors = inspection.plots.pca_colors(found)
    for index in range(2):
        alone = inspection.feature_pca(model, photos[index : index + 1])
        np.testing.assert_allclose(
            found.components[index], alone.components[0], atol=1e-4
        )
        np.testing.assert_allclose(found.explained[index], alone.explained, atol=1e-6)
        np.testing.assert_allclose(
            colors[index], inspection.plots.pca_colors(alone)[0], atol=1e-4
        )
    together = inspection.feature_pca(model, photos)
    assert not np.allclose(together.components, found.components)
