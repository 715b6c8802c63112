import collections
import os
import re
import types

import numpy as np
import pytest

import keras_vit
from keras_vit.data import pipeline
from keras_vit.data import tfds as tfds_sets
from keras_vit.data.dataset import Batching
from keras_vit_programs.runs import explain_error
from tests.training.batches import examples
from tests.training.mocked import mocked

pytestmark = pytest.mark.backends("tensorflow")

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

IMAGE = tfds.features.Image(shape=(12, 12, 3))
LABEL = tfds.features.ClassLabel(names=["dark", "bright"])


class _Local(tfds.core.GeneratorBasedBuilder):
    """A dataset that is written to disk here, so that nothing is
    downloaded."""

    VERSION = tfds.core.Version("1.0.0")
    SPLITS = {"train": 20, "validation": 7}
    FEATURES = {"image": IMAGE, "label": LABEL}

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, manager):
        return {k: self._examples(n) for k, n in self.SPLITS.items()}

    def _examples(self, count):
        for i in range(count):
            values = {
                "image": np.full((12, 12, 3), 10 * i, np.uint8),
                "label": i % 2,
                "text": "x",
            }
            yield i, {name: values[name] for name in self.FEATURES}

    def _generate_examples(self):
        raise NotImplementedError


class KvLocalShades(_Local):
    pass


class KvLocalNoTest(_Local):
    SPLITS = {"train": 3, "extra": 2}


class KvLocalNoLabel(_Local):
    FEATURES = {"image": IMAGE, "text": tfds.features.Text()}


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    folder = os.fspath(tmp_path_factory.getbasetemp() / "tfds")
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", folder)


def test_dataset_name_gives_batches():
    data = keras_vit.data.load_dataset("kv_local_shades")
    assert (data.num_train, data.num_test) == (20, 7)
    assert data.class_names == ("dark", "bright")
    assert data.image_size == 12 and data.channels == 3
    np.testing.assert_array_equal(data.class_counts(), [10, 10])
    options = dict(image_size=8, batch_size=4)
    assert shades(data.test(**options)) == list(range(7))
    assert shades(data.train(**options).take(5)) == list(range(20))


def test_start_and_shard_select_the_same_images(monkeypatch):
    """Also for splits that are read by several readers concurrently."""

    def names(count, **options):
        options = Batching(8, **options)
        stream = data.source.train_stream(options).take(count)
        return [(int(p), name) for p, name, *_ in stream.as_numpy_iterator()]

    data = keras_vit.data.load_dataset("kv_local_shades")
    for lanes, many_files in ((4, 2), (4, 1)):
        monkeypatch.setattr(tfds_sets, "NUM_READERS", lanes)
        monkeypatch.setattr(tfds_sets, "MANY_FILES", many_files)
        whole = names(56)
        assert [position for position, _ in whole] == list(range(56))
        counts = collections.Counter(name for _, name in whole)
        # Of 20 images. A lane is in its third pass, others may be too.
        assert len(counts) == 20 and set(counts.values()) <= {2, 3, 4}
        shards = [names(6, start=4, shard=(i, 4)) for i in range(4)]
        assert sorted(sum(shards, [])) == whole[32:]
    assert names(8, seed=1) != whole[:8]


def test_holdout_takes_the_last_training_images():
    """They are the last images, as in `train[:80%]`, and always the same."""
    data = keras_vit.data.load_dataset("kv_local_shades", holdout=0.2)
    assert (data.num_train, data.num_validation, data.num_test) == (16, 4, 7)
    options = dict(image_size=4, batch_size=4)
    validation = set(shades(data.validation(**options)))
    train = set(shades(data.train(**options).take(8)))
    assert (len(validation), len(train)) == (4, 16) and not validation & train
    shards = [shades(data.test(shard=(i, 2), **options)) for i in range(2)]
    assert sorted(sum(shards, [])) == list(range(7))


# From the published metadata: splits, the number of classes, and the names of
# the first and the last.
IMAGENET = (1000, "n01440764", "n15075141")
PUBLISHED = {
    "cifar10": ({"train": 50_000, "test": 10_000}, 10, "airplane", "truck"),
    "oxford_flowers102": (
        {"train": 1_020, "test": 6_149, "validation": 1_020},
        *(102, "pink primrose", "blackberry lily"),
    ),
    # Version 5.1.0. The test images have no labels.
    "imagenet2012": (
        {"test": 100_000, "train": 1_281_167, "validation": 50_000},
        *IMAGENET,
    ),
    "imagenet2012_real": ({"validation": 50_000}, *IMAGENET),
    "imagenet_v2": ({"test": 10_000}, *IMAGENET),
    # Not in TFDS, but in the folder where prepared sets are looked for:
    # divided as in big_vision/configs/vit_i21k.py.
    "imagenet21k": (
        {"train": 14_145_922, "test": 25_600},
        *(21_843, "n00000000", "n00021842"),
    ),
}


class Imagenet21k(_Local, skip_registration=True):
    """A user's own dataset: TFDS finds its files by their name."""

    FEATURES = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(names=[f"n{i:08d}" for i in range(21_843)]),
    }


def builder_of(name, folder):
    if name == "imagenet21k":
        return Imagenet21k(data_dir=folder)
    return tfds.builder(name, data_dir=folder)


@pytest.fixture
def published(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    splits, _, *ends = PUBLISHED[name]
    # The names of CIFAR-10 are not in TFDS, but come with the data.
    names = [ends[0], *map(str, range(8)), ends[1]]
    names = {name: names} if name == "cifar10" else {}
    sets = {name: splits}
    with mocked(tmp_path, sets, class_names=names, builder_of=builder_of):
        yield


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_datasets_load_with_their_splits(name, published):
    splits, classes, *ends = PUBLISHED[name]
    data = keras_vit.data.load_dataset(name, holdout="paper")
    assert len(data.class_names) == classes and data.channels == 3
    assert [data.class_names[0], data.class_names[-1]] == ends
    assert data.image_size == (32 if name == "cifar10" else None)
    test = "validation" if name == "imagenet2012" else "test"
    assert data.num_test == splits.get(test, splits.get("validation"))
    total = splits.get("train", 0)
    fractions = {"cifar10": 0.02, "imagenet2012": 0.01}
    fraction = fractions.get(name, 0.1)
    assert data.num_validation == round(fraction * total)
    assert data.num_train == total - data.num_validation
    if name not in ("cifar10", "imagenet2012_real", "imagenet21k"):
        return  # their images and labels are like those of these
    options = dict(image_size=24, batch_size=3, protocol="big_vision")
    images, labels, weights = next(iter(data.test(**options)))
    assert images.shape == (3, 24, 24, 3) and np.abs(images).max() <= 1
    assert labels.shape == ((3, 1000) if "real" in name else (3,))
    if not total:
        with pytest.raises(ValueError, match="no training images"):
            data.train(**options)
        return
    images, labels = next(iter(data.train(**options)))
    assert images.shape == (3, 24, 24, 3)
    assert 0 <= np.min(labels) and np.max(labels) < classes


class KvLocalUnlabeled(_Local):
    """A dataset like ImageNet in TFDS, which the table of such datasets
    lacks."""

    SPLITS = {"train": 6, "test": 5, "validation": 4}

    def _examples(self, count):
        wrong = {"label": -1} if count == self.SPLITS["test"] else {}
        return ((k, x | wrong) for k, x in super()._examples(count))


@pytest.mark.parametrize("label", [5, [1, 5]])
def test_labels_above_the_last_class_raise(label):
    batches = tf.data.Dataset.from_tensors(tf.constant(label, "int64")).map(
        lambda x: pipeline.check_label(x, 5, "name", "test")
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(batches)
    assert "from 0 to 4" in str(pipeline.find_data_error(error.value))


def test_a_download_says_where_and_how_it_failed(monkeypatch, tmp_path):
    def fail():
        raise ConnectionError("no route to host")

    builder = types.SimpleNamespace(
        is_prepared=lambda: False,
        download_and_prepare=fail,
        data_dir=tmp_path / "cats",
        data_dir_root=tmp_path,
        MANUAL_DOWNLOAD_INSTRUCTIONS=None,
    )
    said = []
    monkeypatch.setattr(tfds_sets.logger, "warning", said.append)
    with pytest.raises(ValueError, match="prepare 'cats': no route to host"):
        tfds_sets.download(builder, "cats")
    assert len(said) == 1 and str(tmp_path / "cats") in said[0]
    builder.is_prepared, builder.download_and_prepare = lambda: True, lambda: None
    tfds_sets.download(builder, "cats")
    assert len(said) == 1


def test_labels_of_minus_one_raise():
    data = keras_vit.data.load_dataset("kv_local_unlabeled")
    assert data.num_test == 5
    options = dict(image_size=8, batch_size=2)
    named = "split test of kv_local_unlabeled/1.0.0 .* 0 to 1.*"
    remedy = "`test_split=validation`. Received: -1"

    def model_is_not_run(images):
        raise AssertionError

    model = types.SimpleNamespace(predict_on_batch=model_is_not_run)
    with pytest.raises(ValueError, match=named + remedy) as error:
        keras_vit.evaluation.predict_dataset(model, data.test(**options), 5)
    assert "\n" not in str(error.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(data.test(**options))
    checkpoints = types.SimpleNamespace(step=7, last="Go on.")
    text = explain_error(error.value, None, checkpoints)
    assert re.search(named + remedy, text)
    labeled = keras_vit.data.load_dataset("kv_local_unlabeled", test_split="validation")
    assert labeled.num_test == 4
    _, labels = examples(labeled.test(**options))
    assert sorted(labels.tolist()) == [0, 0, 1, 1]
    assert len(list(data.train(**options).take(3))) == 3


def test_real_labels_become_multi_label_rows():
    for members, row, weight in (
        ([1, 3], [0, 1, 0, 1, 0], 1),
        ([], [0] * 5, 0),
    ):
        found = tfds_sets._multi_label_row(5, tf.constant(members, tf.int32))
        assert found[0].numpy().tolist() == row and float(found[1]) == weight


class KvLocalDeep(_Local):
    FEATURES = {
        "image": tfds.features.Image(shape=(12, 12, 3), dtype=np.uint16),
        "label": LABEL,
    }


def shades(batches):
    """Returns the number of each image, sorted, after checking its label."""
    images, labels = examples(batches)
    found = np.round((images[:, 0, 0, 0] + 1) * 12.75).astype(int)
    np.testing.assert_array_equal(found % 2, labels)
    return sorted(found)


@pytest.mark.parametrize(
    "name, words",
    [
        ("kv_local_no_test", "splits are: .*extra"),
        ("kv_local_no_label", "It has: 'image', 'text'"),
        ("kv_local_deep", "dtype uint16. Expected .*uint8"),
        (
            "cifar11",
            "no folder or file 'cifar11'.*TFDS has no dataset.*'cifar10'",
        ),
        ("imagenet21k", "not in TFDS: give a folder.*TFDS_DATA_DIR"),
        ("eurosat/none", "eurosat/none"),
        ("cifar10:9.9.9", "cifar10:9.9.9"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_wrong_names_give_a_one_line_error(name, words):
    with pytest.raises(ValueError, match=words) as error:
        keras_vit.data.load_dataset(name)
    assert "\n" not in str(error.value)


# Sets whose split "test" has no labels: the splits of the published metadata,
# and the one to evaluate on.
@pytest.mark.parametrize(
    "name, splits, expected",
    [
        ("i_naturalist2021", ("train", "mini", "val", "test"), "val"),
        ("pet_finder", ("train", "test"), None),
        *(
            (name, ("train", "test", "validation"), "validation")
            for name in (
                "i_naturalist2017",
                "i_naturalist2018",
                "imagenet2012",
                "places365_small",
                "visual_domain_decathlon",
            )
        ),
    ],
)
def test_unlabeled_splits_are_not_evaluated(name, splits, expected):
    def choose(split):
        return tfds_sets.choose_test_split(name, name, splits, split)

    if expected is None:
        with pytest.raises(ValueError, match="`test_split`.*have no label"):
            choose(None)
    else:
        assert choose(None) == expected
    assert choose("train") == "train"
    for split, words in (
        ("test", "have no label"),
        ("dev", "split 'dev' .*'train'"),
    ):
        with pytest.raises(ValueError, match=words):
            choose(split)
    with pytest.raises(ValueError, match="`test_split` is for datasets"):
        keras_vit.data.load_dataset("digits", test_split="validation")
