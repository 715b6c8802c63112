import hashlib
import http.server
import json
import pathlib
import socket
import threading

import numpy as np
import pytest

from keras_vit.preprocessing import _imagenet
from keras_vit.preprocessing import decode_predictions


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


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.hits.append(name)
        body = self.server.bodies.get(name)
        status = self.server.status or (404 if body is None else 200)
        if body is None:
            body = b"<html>an error</html>"
        self.send_response(status)
        if self.server.send_length:
            length = len(body) + self.server.missing
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def home(tmp_path, monkeypatch):
    path = tmp_path / "not yet there" / "home"
    monkeypatch.setenv("KERAS_VIT_HOME", str(path))
    return path


@pytest.fixture
def server(monkeypatch, home):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.bodies, server.hits = files(), []
    server.status, server.missing, server.send_length = None, 0, True
    server.url = f"http://127.0.0.1:{server.server_port}/"
    for name in _imagenet.SOURCES:
        source = (server.url + name, None)
        monkeypatch.setitem(_imagenet.SOURCES, name, source)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def best(classes, index):
    predictions = np.zeros((1, classes))
    predictions[0, index] = 1
    return predictions


def contents(home):
    return sorted(path.name for path in home.rglob("*"))


def check_refused(server, home, *words, name=_imagenet.INDEX_1K):
    """The error says all that is needed, and nothing bad is left behind."""
    with pytest.raises(OSError) as error:
        decode_predictions(
            best(1000 if name == _imagenet.INDEX_1K else 21843, 0)
        )
    for word in (*words, server.url + name, str(home / name), "`labels`"):
        assert word in str(error.value)
    fetched = [_imagenet.IDS_21K] if name == _imagenet.NAMES_21K else []
    assert contents(home) == fetched


def test_imagenet_2012(server, home):
    for _ in range(3):
        ((found,),) = decode_predictions(best(1000, 207), top=1)
        assert found == ("n00000207", "name_207", 1.0)
    assert server.hits == [_imagenet.INDEX_1K]
    assert contents(home) == [_imagenet.INDEX_1K]


def test_imagenet_21k(server, home):
    for _ in range(2):
        ((found,),) = decode_predictions(best(21843, 21842), top=1)
        assert found == (
            "n00021842",
            "name 21842, other name 21842",
            1.0,
        )
    assert server.hits == [_imagenet.IDS_21K, _imagenet.NAMES_21K]
    assert contents(home) == sorted(server.hits)


def test_own_labels_of_1000_classes_fetch_nothing(server):
    names = [str(i) for i in range(1000)]
    ((found,),) = decode_predictions(best(1000, 5), 1, names)
    assert found == (None, "5", 1.0)
    assert server.hits == []


def test_digest(server, home, monkeypatch):
    url, _ = _imagenet.SOURCES[_imagenet.INDEX_1K]
    digest = hashlib.md5(server.bodies[_imagenet.INDEX_1K]).hexdigest()
    wrong = (url, "0" * 32)
    monkeypatch.setitem(_imagenet.SOURCES, _imagenet.INDEX_1K, wrong)
    check_refused(server, home, "hash", "0" * 32)
    right = (url, digest)
    monkeypatch.setitem(_imagenet.SOURCES, _imagenet.INDEX_1K, right)
    assert len(decode_predictions(best(1000, 0))[0]) == 5


@pytest.mark.parametrize("status", [404, 500, 403])
def test_error_status(server, home, status):
    server.status = status
    check_refused(server, home, str(status))


@pytest.mark.parametrize("send_length", [True, False])
def test_truncated(server, home, send_length):
    body = server.bodies[_imagenet.INDEX_1K]
    server.bodies[_imagenet.INDEX_1K] = body[: len(body) // 2]
    server.missing = len(body) - len(body) // 2
    server.send_length = send_length
    word = "retrieval incomplete" if send_length else "cannot be read as JSON"
    check_refused(server, home, word)
    # It is fetched again when asked for again.
    server.bodies, server.missing = files(), 0
    assert len(decode_predictions(best(1000, 0))[0]) == 5


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
def test_another_file_under_the_name(server, home, name, body, word):
    server.bodies[name] = body
    check_refused(server, home, word, name=name)


def test_connection_refused(server, home, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    source = (server.url + _imagenet.INDEX_1K, None)
    monkeypatch.setitem(_imagenet.SOURCES, _imagenet.INDEX_1K, source)
    check_refused(server, home, "refused")
    assert server.hits == []


def test_home_that_cannot_be_a_folder(server, home):
    home.parent.mkdir()
    home.write_text("a file")
    with pytest.raises(OSError, match="could not be fetched"):
        decode_predictions(best(1000, 0))
    assert server.hits == []
    assert home.read_text() == "a file"


def test_files_put_there_by_hand(server, home):
    home.mkdir(parents=True)
    for name, body in files().items():
        (home / name).write_bytes(body.replace(b"name", b"own"))
    ((found,),) = decode_predictions(best(1000, 3), 1)
    assert found == ("n00000003", "own_3", 1.0)
    ((found,),) = decode_predictions(best(21843, 3), 1)
    assert found == ("n00000003", "own 3, other own 3", 1.0)
    assert server.hits == []


def test_bad_file_put_there_by_hand_is_kept(server, home):
    home.mkdir(parents=True)
    (home / _imagenet.INDEX_1K).write_bytes(PAGE)
    with pytest.raises(ValueError, match="Delete the file"):
        decode_predictions(best(1000, 3), 1)
    assert server.hits == []
    assert (home / _imagenet.INDEX_1K).read_bytes() == PAGE


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_HOME", "~/here")
    assert _imagenet.home() == pathlib.Path.home() / "here"
    monkeypatch.setenv("KERAS_VIT_HOME", "")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert _imagenet.home() == tmp_path / "keras_vit"
    monkeypatch.delenv("KERAS_HOME")
    assert _imagenet.home() == pathlib.Path.home() / ".keras" / "keras_vit"


def test_sources():
    assert list(_imagenet.SOURCES) == [
        _imagenet.INDEX_1K,
        _imagenet.IDS_21K,
        _imagenet.NAMES_21K,
    ]
    for name, (url, _) in _imagenet.SOURCES.items():
        assert url.startswith("https://storage.googleapis.com/")
        assert url.endswith("/" + name)


@pytest.mark.network
@pytest.mark.parametrize("classes", [1000, 21843])
def test_real_files(request, home, classes):
    if "network" not in request.config.getoption("markexpr"):
        pytest.skip("walks real addresses; run with `-m network`")
    ((found,),) = decode_predictions(best(classes, 0), 1)
    assert found[0] == {1000: "n01440764", 21843: "n00004475"}[classes]
