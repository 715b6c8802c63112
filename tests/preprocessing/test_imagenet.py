import hashlib
import json

import numpy as np
import pytest

from keras_vit import downloads
from keras_vit.preprocessing import decode_predictions
from keras_vit.preprocessing import labels as imagenet
from keras_vit.preprocessing.labels import IMAGENET21K_IDS as IDS
from keras_vit.preprocessing.labels import IMAGENET21K_NAMES as NAMES
from keras_vit.preprocessing.labels import IMAGENET_INDEX as INDEX
from tests import server as web

pytestmark = pytest.mark.backends("torch")


def index_1k(classes=1000):
    index = {str(i): [f"n{i:08d}", f"name_{i}"] for i in range(classes)}
    return json.dumps(index).encode()


def lines(text, count=21843):
    return "".join(text.format(i) + "\n" for i in range(count)).encode()


def files():
    return {
        INDEX: index_1k(),
        IDS: lines("n{:08d}"),
        NAMES: lines("name {0}, other name {0}"),
    }


@pytest.fixture
def labels(server, home, monkeypatch):
    """A server of labels, in place of the true one."""
    server.files.update(files())
    for name in imagenet.SOURCES:
        source = downloads.Source(server.url + name)
        monkeypatch.setitem(imagenet.SOURCES, name, source)
    return server


def best(classes, index):
    predictions = np.zeros((1, classes))
    predictions[0, index] = 1
    return predictions


def contents(home):
    kept = (path.name for path in (home / "labels").glob("*"))
    return sorted(name for name in kept if name in imagenet.SOURCES)


def check_refused(labels, home, *words, name=INDEX):
    """The error says all that is needed, and nothing bad is left behind."""
    with pytest.raises(OSError) as error:
        decode_predictions(best(1000 if name == INDEX else 21843, 0))
    folder = str(home / "labels")
    for word in (*words, labels.url + name, folder):
        assert word in str(error.value)
    fetched = [IDS] if name == NAMES else []
    assert contents(home) == fetched


def test_imagenet_2012_labels_are_downloaded_once(labels, home):
    for _ in range(3):
        ((found,),) = decode_predictions(best(1000, 207), top=1)
        assert found == ("n00000207", "name_207", 1.0)
    assert labels.paths() == [INDEX]
    assert contents(home) == [INDEX]


def test_imagenet_21k_labels_are_downloaded_once(labels, home):
    for _ in range(2):
        ((found,),) = decode_predictions(best(21843, 21842), top=1)
        assert found == (
            "n00021842",
            "name 21842, other name 21842",
            1.0,
        )
    assert labels.paths() == [
        IDS,
        NAMES,
    ]
    assert contents(home) == sorted(labels.paths())


def test_custom_labels_download_nothing(labels):
    names = [str(i) for i in range(1000)]
    ((found,),) = decode_predictions(best(1000, 5), 1, names)
    assert found == (None, "5", 1.0)
    assert labels.paths() == []


def test_wrong_digest_is_refused(labels, home, monkeypatch):
    name = INDEX
    digest = hashlib.md5(labels.files[name]).hexdigest()
    for known in ("0" * 32, digest):
        source = downloads.Source(labels.url + name, f"md5:{known}")
        monkeypatch.setitem(imagenet.SOURCES, name, source)
        if known != digest:
            check_refused(labels, home, digest, known)
    assert len(decode_predictions(best(1000, 0))[0]) == 5


@pytest.mark.parametrize("status", [404, 403])
def test_http_error_is_reported(labels, home, status):
    labels.behave[INDEX] = web.status(status)
    check_refused(labels, home, str(status))


PAGE = b"<!DOCTYPE html>\n<html><body>Sign in to the network</body></html>\n"


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        (INDEX, PAGE, "JSONDecodeError"),
        (INDEX, index_1k(999), "must hold 1000 labels"),
        (INDEX, b'{"error": "quota"}', "KeyError"),
        (IDS, PAGE, "must hold 21843 labels. Received: 2"),
        (NAMES, b"", "line 1"),
        (NAMES, b"\xff\xfe" * 99, "UnicodeDecodeError"),
    ],
)
def test_wrong_file_contents_are_refused(labels, home, name, body, word):
    labels.files[name] = body
    check_refused(labels, home, word, name=name)


def test_manually_added_files_are_used(labels, home):
    (home / "labels").mkdir(parents=True)
    for name, body in files().items():
        (home / "labels" / name).write_bytes(body.replace(b"name", b"own"))
    ((found,),) = decode_predictions(best(1000, 3), 1)
    assert found == ("n00000003", "own_3", 1.0)
    ((found,),) = decode_predictions(best(21843, 3), 1)
    assert found == ("n00000003", "own 3, other own 3", 1.0)
    assert labels.paths() == []


def test_bad_manually_added_file_is_kept(labels, home):
    (home / "labels").mkdir(parents=True)
    (home / "labels" / INDEX).write_bytes(PAGE)
    with pytest.raises(OSError, match="Replace it, or delete it"):
        decode_predictions(best(1000, 3), 1)
    assert labels.paths() == []
    assert (home / "labels" / INDEX).read_bytes() == PAGE


@pytest.mark.network
@pytest.mark.parametrize("classes", [1000, 21843])
def test_released_label_files(home, classes):
    ((found,),) = decode_predictions(best(classes, 0), 1)
    assert found[0] == {1000: "n01440764", 21843: "n00004475"}[classes]
