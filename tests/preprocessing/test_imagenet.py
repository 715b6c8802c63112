"""ImageNet's labels, which are downloaded; `tests/downloads` has the failures
of servers."""

import hashlib
import json

import numpy as np
import pytest

from keras_vit.preprocessing import decode_predictions
from keras_vit.preprocessing import labels as imagenet
from keras_vit.preprocessing.labels import IMAGENET21K_IDS as IDS
from keras_vit.preprocessing.labels import IMAGENET21K_NAMES as NAMES
from keras_vit.preprocessing.labels import IMAGENET_INDEX as INDEX
from keras_vit.utils import downloads

pytestmark = pytest.mark.backends("torch")


def index_1k(classes=1000):
    index = {str(i): [f"n{i:08d}", f"name_{i}"] for i in range(classes)}
    return json.dumps(index).encode()


def lines(text, count=21843):
    return "".join(text.format(i) + "\n" for i in range(count)).encode()


@pytest.fixture
def labels(server, home, monkeypatch):
    """A server of labels, in place of the true one."""
    server.files[INDEX] = index_1k()
    server.files[IDS] = lines("n{:08d}")
    server.files[NAMES] = lines("name {0}, other name {0}")
    for name in imagenet.SOURCES:
        digest = hashlib.md5(server.files[name]).hexdigest()
        source = downloads.Source(server.url + name, f"md5:{digest}")
        monkeypatch.setitem(imagenet.SOURCES, name, source)
    return server


def decoded(classes, index, *labels):
    predictions = np.zeros((1, classes))
    predictions[0, index] = 1
    ((found,),) = decode_predictions(predictions, 1, *labels)
    return found


def test_labels_are_downloaded_once(labels, home):
    for _ in range(2):
        assert decoded(1000, 207) == ("n00000207", "name_207", 1.0)
    assert labels.paths() == [INDEX]
    for _ in range(2):
        found = decoded(21843, 21842)
        assert found == ("n00021842", "name 21842, other name 21842", 1.0)
    assert labels.paths() == [INDEX, IDS, NAMES]
    names = [str(i) for i in range(1000)]
    assert decoded(1000, 5, names) == (None, "5", 1.0)
    assert labels.paths() == [INDEX, IDS, NAMES]


PAGE = b"<!DOCTYPE html>\n<html><body>Sign in to the network</body></html>\n"


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        (INDEX, None, "expected"),  # the digest
        (INDEX, PAGE, "JSONDecodeError"),
        (INDEX, index_1k(999), "must hold 1000 labels"),
        (INDEX, b'{"error": "quota"}', "KeyError"),
        (IDS, PAGE, "must hold 21843 labels. Received: 2"),
        (NAMES, b"", "line 1"),
        (NAMES, b"\xff\xfe" * 99, "UnicodeDecodeError"),
    ],
)
def test_wrong_files_are_refused(labels, home, monkeypatch, name, body, word):
    """The error says all that is needed, and nothing bad is left behind."""
    if body is not None:
        source = downloads.Source(labels.url + name)
        monkeypatch.setitem(imagenet.SOURCES, name, source)
    labels.files[name] = labels.files[name][:-1] if body is None else body
    with pytest.raises(OSError) as error:
        decoded(1000 if name == INDEX else 21843, 0)
    folder = home / "labels"
    for part in (word, labels.url + name, str(folder)):
        assert part in str(error.value)
    kept = {path.name for path in folder.glob("*")} & set(imagenet.SOURCES)
    assert kept == ({IDS} if name == NAMES else set())


def test_files_that_a_user_added_are_used_and_kept(labels, home, monkeypatch):
    (home / "labels").mkdir(parents=True)
    for name in (INDEX, IDS, NAMES):
        source = downloads.Source(labels.url + name)
        monkeypatch.setitem(imagenet.SOURCES, name, source)
        own = labels.files[name].replace(b"name", b"own")
        (home / "labels" / name).write_bytes(own)
    assert decoded(1000, 3) == ("n00000003", "own_3", 1.0)
    assert decoded(21843, 3) == ("n00000003", "own 3, other own 3", 1.0)
    (home / "labels" / INDEX).write_bytes(PAGE)
    with pytest.raises(OSError, match="Replace it, or delete it"):
        decoded(1000, 3)
    assert labels.paths() == []
    assert (home / "labels" / INDEX).read_bytes() == PAGE


@pytest.mark.network
@pytest.mark.parametrize("classes", [1000, 21843])
def test_released_label_files(home, classes):
    expected = {1000: "n01440764", 21843: "n00004475"}[classes]
    assert decoded(classes, 0)[0] == expected
