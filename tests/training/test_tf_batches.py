"""Batches of encoded images, on a folder of images."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.dataset import Batching
from tests.training.batches import check_order, examples, take
from tests.training.pictures import noise, write_folder

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """19 training images and 7 to test with."""
    root = tmp_path_factory.mktemp("photos")
    for part, count in (("test", 7), ("train", 19)):
        images = {
            f"{'ab'[i % 2]}/{i}.png": noise(12 + i, 30 - i, seed=i + count)
            for i in range(count)
        }
        write_folder(root / part, images)
    return keras_vit.data.load_dataset(str(root))


def test_skipped_images_are_not_read(data, monkeypatch):
    files = []

    def read(path):
        tf.py_function(lambda p: files.append(p.numpy()), [path], [])
        return tf.io.read_file(path)

    source = dataclasses.replace(data.source, read=read)
    data = dataclasses.replace(data, source=source)
    list(data.train(image_size=8, batch_size=4, start=10**12).take(1))
    assert 0 < len(files) < 100


def test_every_image_is_used_once_per_epoch(data):
    """The order and the crops differ, which change the mean little."""
    options = {"protocol": "simple", "flip": False}
    images, _ = take(data.train(image_size=8, batch_size=19, **options), 4)
    assert len({tuple(row) for row in images.mean((2, 3, 4))}) == 4
    stream = data.source.train_stream(Batching(19)).take(57)
    rows = list(stream.as_numpy_iterator())
    assert [position for position, *_ in rows] == list(range(57))
    files = [sorted(name for _, name, *_ in rows[i : i + 19]) for i in (0, 19, 38)]
    assert files[0] == files[1] == files[2] and len(set(files[0])) == 19


def test_evaluation_counts_every_image_once(data):
    """Compare 7 images in batches of 4 with one batch of 7."""
    plain = list(data.test(image_size=8, batch_size=4))
    assert [len(images) for images, _, _ in plain] == [4, 3]
    assert all((weights == 1).numpy().all() for _, _, weights in plain)
    batches = data.test(image_size=8, batch_size=4, pad=True)
    assert len(batches) == 2
    # Runs with autotuning hung when the clock was put back.
    for each in (batches, data.train(image_size=8, batch_size=4)):
        assert each.options().autotune.enabled is False
    images, _, weights = take(batches, 9)
    assert (weights > 0).tolist() == [[True] * 4, [True] * 3 + [False]]
    assert images[1, 3].max() == images[1, 3].min() == 0
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, weighted_metrics=["accuracy"])
    x, y = examples(batches)
    padded = model.evaluate(batches, verbose=0)
    whole = model.evaluate(x, y, batch_size=7, verbose=0)
    np.testing.assert_allclose(padded, whole, rtol=1e-5)
    # Four processes have equally many batches.
    shards = [data.test(image_size=8, batch_size=4, shard=(i, 4)) for i in range(4)]
    assert [len(shard) for shard in shards] == [2] * 4
    together = np.concatenate([examples(shard)[0] for shard in shards])
    np.testing.assert_array_equal(together, x)


@pytest.mark.parametrize("channels", [1, 3])  # a gray channel is repeated
@pytest.mark.parametrize(
    "mode, mean, std",
    [
        ("torch", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (([0.1, 0.2, 0.3], 0.3), [0.1, 0.2, 0.3], 0.3),
    ],
)
def test_modes_normalize_with_mean_and_std(data, channels, mode, mean, std):
    options = dict(image_size=8, batch_size=7)
    data = dataclasses.replace(data, channels=channels)
    tf_images, _, _ = take(data.test(**options), 1)
    images, _, _ = take(data.test(mode=mode, **options), 1)
    expected = ((tf_images + 1) / 2 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert np.abs(tf_images).max() <= 1 < np.abs(images).max()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"protocol": "vit-jax"}, "`protocol` must.*'vit_jax', 'big_vision'"),
        ({"augment": "light"}, "`augment` must.*'none', 'light1'"),
        ({"mode": "caffe"}, r"`mode` must be .*\(mean, std\).*'caffe'"),
        ({"mode": (0.5, 0)}, r"`mode` must be .*\(0.5, 0\)"),
        ({"mixup": 1.5}, "`mixup` must be a number from 0 to 1.*1.5"),
        ({"cutmix": float("nan")}, "`cutmix` must be"),
        ({"start": -1}, "`start` must be 0 or more"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"shard": (0, 3)}, r"`batch_size`.*shard=\(0, 3\), batch_size=4"),
        ({"channels": 1, "augment": "light1"}, "1 channels: use `augment=none`"),
        ({"split": "validation"}, "no validation images; .*holdout"),
    ],
)
def test_wrong_options_raise(data, options, words):
    options = dict(options)
    data = dataclasses.replace(data, channels=options.pop("channels", 3))
    split = getattr(data, options.pop("split", "train"))
    with pytest.raises(ValueError, match=words):
        split(image_size=8, batch_size=4, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "simple"},
        {"protocol": "vit_jax", "mixup": 0.5, "cutmix": 1.0},
        {"protocol": "big_vision", "augment": "medium1"},
    ],
)
def test_batches_depend_on_seed_and_number(data, options):
    """Also in the second and third epoch."""
    options = {"image_size": 8, "batch_size": 4, **options}
    processes = 1 if "mixup" in options else 2
    check_order(functools.partial(data.train, **options), 12, processes)
