import hashlib
import http.server
import json
import pathlib
import socket
import threading

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.preprocessing import _imagenet
from keras_vit.preprocessing import _label_files
from keras_vit.preprocessing import decode_predictions

NAMES = ["cat", "dog", "owl"]
ONE = np.array([[0.25, 0.5, 0.125]])


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
    return np.eye(classes)[[index]]


def contents(home):
    return sorted(path.name for path in home.rglob("*"))


def check_refused(server, home, *words, classes=1000):
    """The error says all that is needed, and nothing is left behind."""
    with pytest.raises(OSError) as error:
        decode_predictions(best(classes, 0))
    message = str(error.value)
    name = contents(home) and _imagenet.NAMES_21K or _imagenet.INDEX_1K
    for word in (*words, server.url, str(home / name), "`labels`"):
        assert word in message
    return contents(home)


def test_order_and_scores():
    predictions = np.array([[0.1, 0.7, 0.2], [3, -4, -np.inf]], "float32")
    first, second = decode_predictions(predictions, top=3, labels=NAMES)
    assert [name for _, name, _ in first] == ["dog", "owl", "cat"]
    assert second == [
        (None, "cat", 3.0),
        (None, "dog", -4.0),
        (None, "owl", -np.inf),
    ]
    assert [score for *_, score in first] == [
        float(np.float32(value)) for value in (0.7, 0.2, 0.1)
    ]
    assert type(first[0][2]) is float


def test_equal_scores_keep_the_order_of_the_classes():
    names = [str(i) for i in range(100)]
    ((*found,),) = decode_predictions(np.zeros((1, 100)), 4, names)
    assert [name for _, name, _ in found] == ["0", "1", "2", "3"]


def test_does_not_change_its_input():
    predictions = ONE.copy()
    decode_predictions(predictions, 1, NAMES)
    np.testing.assert_array_equal(predictions, ONE)


def test_no_images():
    assert decode_predictions(np.zeros((0, 3)), 1, NAMES) == []


@pytest.mark.parametrize("library", ["jax", "tensorflow", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_tensors(library, dtype):
    module = pytest.importorskip(library)
    kind = getattr(module.numpy if library == "jax" else module, dtype)
    make = {"jax": "array", "tensorflow": "constant", "torch": "tensor"}
    scope = module.numpy if library == "jax" else module
    predictions = getattr(scope, make[library])([[1, 3, 2]], dtype=kind)
    if library == "torch" and dtype == "float32":
        predictions.requires_grad_()
    expected = [[(None, "dog", 3.0), (None, "owl", 2.0)]]
    assert decode_predictions(predictions, 2, tuple(NAMES)) == expected


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (ONE[0], r"predictions\[None\].*Received: shape \(3,\)"),
        (ONE[None], r"Received: shape \(1, 1, 3\)"),
        (np.array(0.5), r"Received: shape \(\)"),
        ([[0.5, 0.5, 0.5]], "Received: list"),
        (None, "Received: NoneType"),
        (np.array([["a", "b", "c"]]), "Received: ndarray of type <U1"),
        (ONE > 0.2, "of type bool"),
        (ONE.astype(object), "of type object"),
        (keras.KerasTensor((1, 3)), "Received: KerasTensor"),
        (np.array([[0, 1, 2], [0, np.nan, 1]]), "1 of 2 .*at index 1"),
    ],
)
def test_wrong_predictions(predictions, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(predictions, 1, NAMES)


def test_wrong_tensor():
    with pytest.raises(ValueError, match="NaN for 1 of 1 images"):
        nan = ops.convert_to_tensor([[float("nan"), 0.0, 0.0]])
        decode_predictions(nan, 1, NAMES)


@pytest.mark.parametrize("top", [0, -1, 4, True, 2.0, None, "2"])
def test_wrong_top(top):
    with pytest.raises(ValueError, match="`top`.*Received: top="):
        decode_predictions(ONE, top, NAMES)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "Received: 3 classes"),
        (NAMES[:2], "each of the 3 classes.*Received: 2 labels"),
        ([*NAMES, "cow"], "Received: 4 labels"),
        ([], "Received: 0 labels"),
        (["cat", 1, "owl"], "Received: 1 for class 1"),
        (["cat", "dog", " "], "Received: ' ' for class 2"),
        ({0: "cat"}, "list or tuple of names.*Received: dict"),
        (np.array(NAMES), "Received: ndarray"),
    ],
)
def test_wrong_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(ONE, 1, labels)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


JSON = '{"1": ["n1", "dog"], "0": ["n0", "cat"], "2": ["n2", "owl"]}'


@pytest.mark.parametrize("convert", [str, pathlib.Path])
@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", JSON, ("n1", "dog")),
        ("a.JSON", "\ufeff" + JSON, ("n1", "dog")),
        ("a.txt", "cat\nhot dog, frank\nowl\n", (None, "hot dog, frank")),
        ("a.txt", "cat\r\ndog\r\nowl\r\n\r\n", (None, "dog")),
        ("names", "n0\tcat\nn1\tdog\u2028s\nn2\towl", ("n1", "dog\u2028s")),
        ("a.txt", "cat\n n1 \t dog \nowl", ("n1", "dog")),
    ],
)
def test_label_files(tmp_path, name, data, expected, convert):
    path = write(tmp_path / name, data)
    result = decode_predictions(ONE, 1, convert(path))
    assert result == [[(*expected, 0.5)]]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", JSON[:-9], "cannot be read as JSON"),
        ("a.json", "", "cannot be read as JSON"),
        ("a.json", '["cat", "dog", "owl"]', "JSON object.*Received: list"),
        ("a.json", "{}", "JSON object.*Received: dict"),
        ("a.json", JSON.replace('"2"', '"3"'), 'Received: None for "2"'),
        ("a.json", JSON.replace('"n1", ', ""), r"\['dog'\] for \"1\""),
        ("a.json", JSON.replace('"dog"', "7"), r"\['n1', 7\]"),
        ("a.json", b"\xff\xfe{", "not text in UTF-8"),
        ("a.txt", b"cat\n\xff\nowl", "not text in UTF-8"),
        ("a.txt", "", "Line 1 .* is empty"),
        ("a.txt", "cat\n\nowl", "Line 2 .* is empty"),
        ("a.txt", "cat\n\tdog\nowl", "Line 2 .*one tab and a name"),
        ("a.txt", "cat\nn\tdog\tx\nowl", "Line 2 .*one tab and a name"),
        ("a.txt", "cat\ndog", "Received: 2 labels in .*a.txt"),
    ],
)
def test_wrong_label_files(tmp_path, name, data, message):
    path = write(tmp_path / name, data)
    with pytest.raises(ValueError, match=message):
        decode_predictions(ONE, 1, str(path))


def test_no_label_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file .*one label"):
        decode_predictions(ONE, 1, tmp_path / "no.txt")
    with pytest.raises(ValueError, match="is not a file"):
        decode_predictions(ONE, 1, tmp_path)


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
    assert check_refused(server, home, "hash", "0" * 32) == []
    right = (url, digest)
    monkeypatch.setitem(_imagenet.SOURCES, _imagenet.INDEX_1K, right)
    assert len(decode_predictions(best(1000, 0))[0]) == 5


@pytest.mark.parametrize("status", [404, 500, 403])
def test_error_status(server, home, status):
    server.status = status
    assert check_refused(server, home, str(status)) == []


@pytest.mark.parametrize("send_length", [True, False])
def test_truncated(server, home, send_length):
    body = server.bodies[_imagenet.INDEX_1K]
    server.bodies[_imagenet.INDEX_1K] = body[: len(body) // 2]
    server.missing = len(body) - len(body) // 2
    server.send_length = send_length
    word = "retrieval incomplete" if send_length else "cannot be read as JSON"
    assert check_refused(server, home, word) == []
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
    classes = 1000 if name == _imagenet.INDEX_1K else 21843
    with pytest.raises(OSError) as error:
        decode_predictions(best(classes, 0))
    for part in (word, server.url + name, str(home / name), "`labels`"):
        assert part in str(error.value)
    assert name not in contents(home)
    assert len(contents(home)) == (name == _imagenet.NAMES_21K)


def test_connection_refused(server, home, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    source = (server.url + _imagenet.INDEX_1K, None)
    monkeypatch.setitem(_imagenet.SOURCES, _imagenet.INDEX_1K, source)
    assert check_refused(server, home, "refused") == []
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


def test_read_lines_keeps_the_places(tmp_path):
    path = write(tmp_path / "a", "cat\ndog\x0bs\nowl\n")
    assert _label_files.read_lines(path) == ["cat", "dog\x0bs", "owl"]


@pytest.mark.network
@pytest.mark.parametrize("classes", [1000, 21843])
def test_real_files(home, classes):
    ((found,),) = decode_predictions(best(classes, 0), 1)
    assert found[0] == {1000: "n01440764", 21843: "n00004475"}[classes]
