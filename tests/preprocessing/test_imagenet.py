import hashlib
import json

import numpy as np
import pytest

from keras_vit import downloads
from keras_vit.preprocessing import _imagenet
from keras_vit.preprocessing import decode_predictions
from tests import server as web

pytestmark = pytest.mark.backends("torch")


def index_1k(classes=1000):
    index = {str(i): [f"n{i:08d}", f"name_{i}"] for i in range(classes)}
    return json.dumps(index).encode()


def lines(text, count=21843):
    return "".join(text.format(i) + "\n" for i in range(count)).encode()


def files():
    return {
        _imagenet.INDEX_1K: index_1k(),
        _imagenet.IDS_21K: lines("n{:08d}"),
        _imagenet.NAMES_21K: lines("name {0}, other name {0}"),
    }


@pytest.fixture
def labels(server, home, monkeypatch):
    """A server of labels, in place of the true one."""
    server.files.update(files())
    for name in _imagenet.SOURCES:
        source = downloads.Source(server.url + name)
        monkeypatch.setitem(_imagenet.SOURCES, name, source)
    return server


def best(classes, index):
    predictions = np.zeros((1, classes))
    predictions[0, index] = 1
    return predictions


def contents(home):
    kept = (path.name for path in (home / "labels").glob("*"))
    return sorted(name for name in kept if name in _imagenet.SOURCES)


def check_refused(labels, home, *words, name=_imagenet.INDEX_1K):
    """The error says all that is needed, and nothing bad is left behind."""
    with pytest.raises(OSError) as error:
        decode_predictions(
            best(1000 if name == _imagenet.INDEX_1K else 21843, 0)
        )
    folder = str(home / "labels")
    for word in (*words, labels.url + name, folder, "`labels`"):
        assert word in str(error.value)
    fetched = [_imagenet.IDS_21K] if name == _imagenet.NAMES_21K else []
    assert contents(home) == fetched


def test_imagenet_2012(labels, home):
    for _ in range(3):
        ((found,),) = decode_predictions(best(1000, 207), top=1)
        assert found == ("n00000207", "name_207", 1.0)
    assert labels.paths() == [_imagenet.INDEX_1K]
    assert contents(home) == [_imagenet.INDEX_1K]


def test_imagenet_21k(labels, home):
    for _ in range(2):
        ((found,),) = decode_predictions(best(21843, 21842), top=1)
        assert found == (
            "n00021842",
            "name 21842, other name 21842",
            1.0,
        )
    assert labels.paths() == [_imagenet.IDS_21K, _imagenet.NAMES_21K]
    assert contents(home) == sorted(labels.paths())


def test_own_labels_of_1000_classes_fetch_nothing(labels):
    names = [str(i) for i in range(1000)]
    ((found,),) = decode_predictions(best(1000, 5), 1, names)
    assert found == (None, "5", 1.0)
    assert labels.paths() == []


def test_digest(labels, home, monkeypatch):
    name = _imagenet.INDEX_1K
    digest = hashlib.md5(labels.files[name]).hexdigest()
    for known in ("0" * 32, digest):
        source = downloads.Source(labels.url + name, f"md5:{known}")
        monkeypatch.setitem(_imagenet.SOURCES, name, source)
        if known != digest:
            check_refused(labels, home, digest, known)
    assert len(decode_predictions(best(1000, 0))[0]) == 5


@pytest.mark.parametrize("status", [404, 403])
def test_error_status(labels, home, status):
    labels.behave[_imagenet.INDEX_1K] = web.status(status)
    check_refused(labels, home, str(status))


PAGE = b"<!DOCTYPE html>\n<html><body>Sign in to the network</body></html>\n"


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        (_imagenet.INDEX_1K, PAGE, "cannot be read as JSON"),
        (_imagenet.INDEX_1K, index_1k(999), "must hold 1000 labels"),
        (_imagenet.INDEX_1K, b'{"error": "quota"}', "must be an id and a name"),
        (_imagenet.IDS_21K, PAGE, "must hold 21843 labels. Received: 2,"),
        (_imagenet.IDS_21K, lines("{}"), "must hold WordNet ids"),
        (_imagenet.IDS_21K, lines("n{:08d}", 21841), "Received: 21841"),
        (_imagenet.NAMES_21K, PAGE, "must hold 21843 labels"),
        (_imagenet.NAMES_21K, b"", "is empty"),
        (_imagenet.NAMES_21K, b"\xff\xfe" * 99, "not text in UTF-8"),
    ],
)
def test_another_file_under_the_name(labels, home, name, body, word):
    labels.files[name] = body
    check_refused(labels, home, word, name=name)


def test_files_put_there_by_hand(labels, home):
    (home / "labels").mkdir(parents=True)
    for name, body in files().items():
        (home / "labels" / name).write_bytes(body.replace(b"name", b"own"))
    ((found,),) = decode_predictions(best(1000, 3), 1)
    assert found == ("n00000003", "own_3", 1.0)
    ((found,),) = decode_predictions(best(21843, 3), 1)
    assert found == ("n00000003", "own 3, other own 3", 1.0)
    assert labels.paths() == []


def test_bad_file_put_there_by_hand_is_kept(labels, home):
    (home / "labels").mkdir(parents=True)
    (home / "labels" / _imagenet.INDEX_1K).write_bytes(PAGE)
    with pytest.raises(OSError, match="Replace it, or delete it"):
        decode_predictions(best(1000, 3), 1)
    assert labels.paths() == []
    assert (home / "labels" / _imagenet.INDEX_1K).read_bytes() == PAGE


def test_sources():
    assert list(_imagenet.SOURCES) == [
        _imagenet.INDEX_1K,
        _imagenet.IDS_21K,
        _imagenet.NAMES_21K,
    ]
    for name, source in _imagenet.SOURCES.items():
        url = source.address
        assert url.startswith("https://storage.googleapis.com/")
        assert url.endswith("/" + name)


@pytest.mark.network
@pytest.mark.parametrize("classes", [1000, 21843])
def test_real_files(home, classes):
    ((found,),) = decode_predictions(best(classes, 0), 1)
    assert found[0] == {1000: "n01440764", 21843: "n00004475"}[classes]
