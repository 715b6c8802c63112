"""Batches of encoded images, on a folder of images."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.dataset import PipelineOptions
from tests.training.pictures import encode
from tests.training.pictures import noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """19 training images and 7 to test with."""
    root = tmp_path_factory.mktemp("photos")
    for part, count in (("test", 7), ("train", 19)):
        for i in range(count):
            name = root / part / "ab"[i % 2] / f"{i}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_bytes(encode(noise(12 + i, 30 - i, seed=i + count)))
    return keras_vit.data.load_dataset(str(root))


def take(batches, count):
    batches = [tuple(np.asarray(x) for x in b) for b in batches.take(count)]
    return [np.stack(x) for x in zip(*batches, strict=True)]


OPTIONS = [
    {"protocol": "simple"},
    {"protocol": "vit_jax", "mixup": 0.5, "cutmix": 1.0},
    {"protocol": "big_vision", "augment": "medium1"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_start_skips_batches(data, options):
    """The batches are equal in the second and third epoch, too."""
    options = {"image_size": 8, "batch_size": 4, **options}
    whole = take(data.train(**options), 12)
    rest = take(data.train(start=7, **options), 5)
    for x, y in zip(whole, rest, strict=True):
        np.testing.assert_array_equal(x[7:], y)
    if options["protocol"] == "simple":
        other = take(data.train(seed=1, **options), 1)
        assert not np.array_equal(whole[0][:1], other[0])


def test_start_skips_file_names(data):
    def names(count, start=0):
        options = PipelineOptions(8, 4, start=start)
        return list(
            data.source.train_stream(options).take(count).as_numpy_iterator()
        )

    whole = names(48)
    assert [position for position, *_ in whole] == list(range(48))
    for start in (1, 4, 5, 11):
        assert names(48 - 4 * start, start) == whole[4 * start :]


def test_skipped_images_are_not_read(data, monkeypatch):
    files = []

    def read(path):
        tf.py_function(lambda p: files.append(p.numpy()), [path], [])
        return tf.io.read_file(path)

    source = dataclasses.replace(data.source, read=read)
    data = dataclasses.replace(data, source=source)
    list(data.train(image_size=8, batch_size=4, start=10**12).take(1))
    assert 0 < len(files) < 100


def test_shards_concatenate_to_the_whole_batch(data):
    count = 4
    options = dict(image_size=8, batch_size=4, protocol="vit_jax")
    whole = take(data.train(start=2, **options), 4)
    shards = [
        take(data.train(start=2, shard=(i, count), **options), 4)
        for i in range(count)
    ]
    for column, x in enumerate(whole):
        together = np.concatenate([shard[column] for shard in shards], axis=1)
        np.testing.assert_array_equal(x, together)


def test_every_image_is_used_once_per_epoch(data):
    images, _ = take(
        data.train(image_size=8, batch_size=19, protocol="simple", flip=False),
        4,
    )
    # The order differs, and so does the crop, which changes the mean little.
    means = images.mean((2, 3, 4))
    assert len({tuple(row) for row in means}) == 4
    files = [
        sorted(name for _, name, *_ in itertools.islice(rows, 19))
        for rows in [
            data.source.train_stream(PipelineOptions(8, 19)).as_numpy_iterator()
        ]
        * 3
    ]
    assert files[0] == files[1] == files[2] and len(set(files[0])) == 19


def test_evaluation_counts_every_image_once(data):
    """Compare 7 images in batches of 4 with one batch of 7."""
    plain = list(data.test(image_size=8, batch_size=4))
    assert [len(images) for images, _, _ in plain] == [4, 3]
    assert all((weights == 1).numpy().all() for _, _, weights in plain)
    batches = data.test(image_size=8, batch_size=4, pad=True)
    assert len(batches) == 2
    images, labels, weights = take(batches, 9)
    assert (weights > 0).tolist() == [[True] * 4, [True] * 3 + [False]]
    assert weights.mean() == pytest.approx(1)
    assert images[1, 3].max() == images[1, 3].min() == 0
    inputs = keras.Input((8, 8, 3))
    logits = keras.layers.Dense(2)(keras.layers.Flatten()(inputs))
    model = keras.Model(inputs, logits)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    padded = model.evaluate(batches, verbose=0, return_dict=True)
    x, y = (a.reshape(8, *a.shape[2:])[:7] for a in (images, labels))
    plain = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    for name, value in plain.items():
        assert padded[name] == pytest.approx(value, rel=1e-5)


def test_evaluation_shards_have_equally_many_batches(data):
    count = 4
    images, _, _ = take(data.test(image_size=8, batch_size=7), 1)
    seen = []
    for i in range(count):
        batches = data.test(image_size=8, batch_size=4, shard=(i, count))
        assert len(batches) == 2
        x, _, weights = take(batches, 9)
        seen += list(x[weights > 0])
    np.testing.assert_array_equal(images[0], np.stack(seen))


def test_mode_torch_normalizes_with_mean_and_std(data):
    options = dict(image_size=8, batch_size=7)
    tf_images, _, _ = take(data.test(**options), 1)
    images, _, _ = take(data.test(mode="torch", **options), 1)
    mean, std = np.array([0.485, 0.456, 0.406]), [0.229, 0.224, 0.225]
    expected = ((tf_images + 1) / 2 - mean) / std
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert np.abs(tf_images).max() <= 1 < np.abs(images).max()


def test_labels_are_classes_or_one_hot_rows(data):
    options = dict(image_size=8, batch_size=4)
    _, labels = take(data.train(**options), 2)
    assert labels.dtype == np.int32
    _, rows = take(data.train(one_hot=True, **options), 2)
    np.testing.assert_array_equal(rows, np.eye(2)[labels])
    _, mixed = take(data.train(mixup=0.8, **options), 2)
    np.testing.assert_allclose(mixed.sum(-1), 1, atol=1e-6)
    assert ((mixed > 0) & (mixed < 1)).any()
    for x in (data.test(one_hot=True, **options), data.test(**options)):
        assert take(x, 1)[1].shape in ((1, 4, 2), (1, 4))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"protocol": "vit-jax"}, "no protocol 'vit-jax'.*vit_jax, big_vision"),
        ({"augment": "light"}, "no augment 'light'.*none, light1"),
        ({"mode": "caffe"}, "no mode 'caffe'"),
        ({"mixup": 1.5}, "`mixup` must be 0 to 1. Received: 1.5"),
        ({"cutmix": float("nan")}, "`cutmix` must be"),
        ({"start": -1}, "`start` must be 0 or more"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"shard": (0, 3)}, r"`batch_size`.*shard=\(0, 3\), batch_size=4"),
    ],
)
def test_wrong_options_raise(data, options, words):
    with pytest.raises(ValueError, match=words):
        data.train(image_size=8, batch_size=4, **options)
    with pytest.raises(ValueError, match="no validation images; .*holdout"):
        data.validation(image_size=8, batch_size=4)


def test_randaugment_needs_three_channels(data):
    grey = dataclasses.replace(data, channels=1)
    with pytest.raises(ValueError, match="3 channels.* has 1: use --augment"):
        grey.train(image_size=8, batch_size=4, augment="light1")
