"""The split of a folder's files by a hash of their paths."""

import pathlib

import numpy as np
import pytest

from keras_vit.data.splits import split_by_path

pytestmark = pytest.mark.backends("torch")


def paths_of(label, count):
    return [pathlib.PurePath(f"class{label}/{i:05}.jpg") for i in range(count)]


@pytest.mark.parametrize("fraction", [0.02, 0.2, 0.5])
def test_fraction_of_test_images(fraction):
    paths, labels = paths_of(0, 20_000), np.zeros(20_000, int)
    train, test = split_by_path(paths, labels, fraction)
    # Four standard deviations.
    bound = 4 * (fraction * (1 - fraction) / 20_000) ** 0.5
    assert abs(len(test) / 20_000 - fraction) < bound
    assert sorted([*train, *test]) == list(range(20_000))


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.9])
def test_every_class_has_a_training_image(fraction):
    """This holds where all images of a class have hashes below the
    fraction."""
    paths = [path for label in range(500) for path in paths_of(label, 2)]
    labels = np.repeat(np.arange(500), 2)
    train, test = split_by_path(paths, labels, fraction)
    assert set(labels[train]) == set(range(500))
    assert len(test)
    # With 0.2: 500 (0.2 * 0.8 * 2 + 0.2 * 0.2) classes have a test image.
    expected = 500 * (1 - (1 - fraction) ** 2)
    assert abs(len(test) - expected) < 4 * expected**0.5 + 1


@pytest.mark.parametrize("count", [2, 5, 11])
def test_few_images_have_a_test_image(count):
    labels = np.arange(2 * count) % 2
    paths = [pathlib.PurePath(f"{k}/{i}") for i, k in enumerate(labels)]
    train, test = split_by_path(paths, labels)
    assert len(test) and set(labels[train]) == {0, 1}


@pytest.mark.parametrize("per_class, fraction", [(1, 0.9), (30, 0)])
def test_all_images_are_for_training(per_class, fraction):
    """Where a class has one image, or no test images are wanted."""
    labels = np.arange(30) // per_class
    paths = [pathlib.PurePath(f"{k}/{i}") for i, k in enumerate(labels)]
    train, test = split_by_path(paths, labels, fraction)
    assert train.tolist() == list(range(30)) and not len(test)


def test_validation_is_independent_of_the_test_split():
    """A common hash would put all or none of the other images in it."""
    paths, labels = paths_of(0, 5_000), np.zeros(5_000, int)
    train, _ = split_by_path(paths, labels)
    rest = [paths[i] for i in train]
    _, validation = split_by_path(rest, labels[train], 0.2, "validation")
    assert abs(len(validation) / len(rest) - 0.2) < 0.03


def test_split_is_stable_across_versions():
    """Weights are evaluated on images that they were not trained on."""
    _, test = split_by_path(paths_of(0, 30), np.zeros(30, int))
    # Computed once. A change would move images from training to test.
    assert test.tolist() == [0, 6, 7, 10, 15, 20, 27]
