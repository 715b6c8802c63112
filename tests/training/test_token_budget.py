"""Images that keep their aspect: sizes, batches, and resuming."""

import keras
import numpy as np
import pytest

from keras_vit.data import TokenBudget, load_dataset, pack_images
from tests.training.batches import check_order, take
from tests.training.pictures import noise, write_folder

pytestmark = pytest.mark.backends("torch")
SIZES = ((40, 24), (16, 64), (30, 30), (12, 90), (64, 20), (8, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for split in ("train", "test"):
        images = {
            f"{'ab'[i % 2]}/{i}.png": noise(*size, seed=len(split) + i)
            for i, size in enumerate(SIZES)
        }
        write_folder(root / split, images)
    return root


def test_sizes_are_those_of_transformers():
    processing = pytest.importorskip(
        "transformers.models.siglip2.image_processing_siglip2"
    )
    rng = np.random.default_rng(0)
    for _ in range(300):
        height, width = (int(n) for n in rng.integers(1, 4000, 2))
        patch, count = int(rng.choice([4, 14, 16])), int(rng.integers(1, 1025))
        found = TokenBudget(count, patch).image_size(height, width)
        assert found == processing.get_image_size_for_max_num_patches(
            height, width, patch, count
        )
        assert found[0] * found[1] <= count * patch**2


def test_batches_hold_whole_images_of_their_aspect(folder):
    data, budget = load_dataset(str(folder)), TokenBudget(20, (4, 6))
    batches = list(data.test(image_size=budget, batch_size=4, pad=True))
    assert [len(labels) for _, labels, _ in batches] == [4, 4]
    columns = zip(*map(keras.tree.flatten, batches), strict=True)
    *images, _, weights = (np.concatenate(column) for column in columns)
    assert (weights > 0).sum() == len(SIZES)
    assert not images[2][weights == 0].any()
    for i, (patches, coordinates, valid) in enumerate(zip(*images, strict=True)):
        if not weights[i]:
            continue
        shape = data.read("test", i)[0].shape
        rows, columns = coordinates[valid].max(0) + 1
        assert (rows * 4, columns * 6) == budget.image_size(*shape[:2])
        # The same arrays as those of NumPy.
        pixels = patches[valid].reshape(rows, columns, 4, 6, 3)
        pixels = pixels.swapaxes(1, 2).reshape(rows * 4, columns * 6, 3)
        packed = pack_images([pixels], (4, 6), 20)
        for found, expected in zip(packed, (patches, coordinates, valid), strict=True):
            np.testing.assert_array_equal(found[0], expected)


def test_training_depends_on_the_step_alone(folder):
    """The run with `--max-tokens` in tests/recipes has another protocol."""
    data = load_dataset(str(folder))
    options = {"image_size": TokenBudget(12, 8), "batch_size": 4}
    options["protocol"] = "vit_jax"

    def train(**more):
        return data.train(**options, **more)

    patches, *_ = check_order(train, 5)
    assert len({x.tobytes() for x in patches}) == 5
    halves, *_ = take(train(seed=3, micro_batches=2), 2)
    np.testing.assert_array_equal(patches[0], np.concatenate(halves))


@pytest.mark.parametrize(
    "options, match",
    [
        ({"mixup": 0.2}, "TokenBudget.*mixup=0.2"),
        ({"augment": "light1"}, "TokenBudget.*augment='light1'"),
        ({"erase": 0.2}, "TokenBudget.*erase"),
        ({"protocol": "mae"}, "`protocol` must be .*'mae'"),
    ],
)
def test_what_needs_images_of_one_size_is_refused(folder, options, match):
    budget = TokenBudget(16, 8)
    with pytest.raises(ValueError, match=match):
        load_dataset(str(folder)).train(image_size=budget, batch_size=2, **options)
    with pytest.raises(ValueError, match="`image_size` must .*TokenBudget"):
        load_dataset("digits").train(image_size=budget, batch_size=2)
