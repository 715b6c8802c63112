import importlib.resources
import importlib.util
import os
import sys

import numpy as np
import pytest

from keras_vit import training

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

IMAGE = tfds.features.Image(shape=(12, 12, 3))
LABEL = tfds.features.ClassLabel(names=["dark", "bright"])


class _Local(tfds.core.GeneratorBasedBuilder):
    """Written to disk here, so that nothing is downloaded."""

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
    # TFDS 4.9.10 imports this package without declaring it.
    if importlib.util.find_spec("importlib_resources") is None:
        monkeypatch.setitem(
            sys.modules, "importlib_resources", importlib.resources
        )


def arrays(batches):
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def test_a_name_gives_batches():
    data = training.find_data("kv_local_shades")
    assert (data.num_train, data.num_test) == (20, 7)
    assert data.class_names == ("dark", "bright")
    assert data.image_size == 12 and data.channels == 3
    train, test = data.batches(8, 4, 0, True)
    images, labels = arrays(test)
    assert images.shape == (7, 8, 8, 3)
    shades = np.round((images[:, 0, 0, 0] + 1) * 12.75).astype(int)
    assert sorted(shades) == list(range(7))
    assert np.array_equal(shades % 2, labels)
    images, labels = arrays(train.take(5))
    shades = np.round((images[:, 0, 0, 0] + 1) * 12.75).astype(int)
    assert sorted(shades) == list(range(20))
    assert np.array_equal(shades % 2, labels)


def test_no_test_set():
    with pytest.raises(ValueError, match="It has: .*extra"):
        training.find_data("kv_local_no_test")


def test_no_labels():
    with pytest.raises(ValueError, match="It has: 'image', 'text'"):
        training.find_data("kv_local_no_label")


def test_unknown_name_says_what_is_close():
    with pytest.raises(ValueError, match="no folder 'cifar11'") as error:
        training.find_data("cifar11")
    assert "TFDS has no dataset" in str(error.value)
    assert "'cifar10'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["eurosat/none", "cifar10:9.9.9", "a/b/c"])
def test_wrong_names_are_one_line(name):
    with pytest.raises(ValueError, match=name) as error:
        training.find_data(name)
    assert "\n" not in str(error.value)
