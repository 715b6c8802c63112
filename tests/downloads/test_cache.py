"""Downloads from a server with every known kind of failure."""

import errno
import hashlib
import json
import os
import pathlib
import shutil
import sys
import time
import urllib.parse

import numpy as np
import pytest

from keras_vit import _logging
from keras_vit import downloads
from keras_vit.downloads import Source
from keras_vit.downloads import cache
from keras_vit.downloads import http
from tests import server as web

pytestmark = pytest.mark.backends("torch")

BODY = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(server, monkeypatch):
    monkeypatch.setattr(http, "CHUNK_SIZE", 10_000)
    server.files["a/w.bin"] = BODY
    return server


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "not yet there" / "weights"


def is_body(path, source):
    if pathlib.Path(path).read_bytes() != BODY:
        raise ValueError("it is not the file expected")


def get(server, folder, *paths, digest="", check=is_body):
    sources = [Source(server.url + p, digest) for p in paths or ("a/w.bin",)]
    return downloads.fetch(folder, tuple(sources), check, label="W")


def kept(folder):
    """The files in the cache, without partial downloads and the lock."""
    if not folder.exists():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_file())


def rewrite(path, body):
    """Changes a file and its time, also where the clock is a coarse one."""
    later = path.stat().st_mtime_ns + 10**9
    path.write_bytes(body)
    os.utime(path, ns=(later, later))


def assert_got(server, folder, *paths, **options):
    path, _ = get(server, folder, *paths, **options)
    assert path.read_bytes() == BODY
    assert kept(folder) == [".lock", "w.bin", "w.bin.json"]
    assert not (folder / "parts").exists()


def assert_refused(server, folder, *words, paths=("a/w.bin",), **options):
    """The error names the sources and the remedy, and no file is kept."""
    with pytest.raises(OSError) as error:
        get(server, folder, *paths, **options)
    text = str(error.value)
    by_hand = f"put w.bin into the folder {str(folder)!r}"
    for word in (*words, "W could not be downloaded", by_hand):
        assert word in text, text
    for path in paths:
        assert server.url + path in text
    assert kept(folder) == [".lock"]


def test_file_is_downloaded_once(server, folder, capsys):
    _logging.show()
    for _ in range(3):
        assert_got(server, folder)
    assert server.paths() == ["a/w.bin"]
    printed = capsys.readouterr().err
    assert printed.count(f"W: downloading {server.url}a/w.bin") == 1


@pytest.mark.parametrize("code", [403, 404, 410])
def test_client_errors_are_not_retried(server, folder, code):
    server.behave["a/w.bin"] = web.status(code)
    assert_refused(server, folder, f"the server answered {code}")
    assert server.paths() == ["a/w.bin"]  # asking again would not help


@pytest.mark.parametrize("code", [500, 503, 429])
def test_server_errors_are_retried(server, folder, code):
    def once(handler, body):
        del server.behave["a/w.bin"]
        web.status(code)(handler, body)

    server.behave["a/w.bin"] = once
    assert_got(server, folder)
    server.behave["b/w.bin"] = web.status(code)
    other = folder.parent / "other"
    assert_refused(server, other, f"answered {code}", paths=("b/w.bin",))
    assert server.paths()[2:] == ["b/w.bin"] * 3


def test_next_source_is_tried(server, folder, capsys):
    _logging.show()
    server.behave["dead/w.bin"] = web.status(403)
    path, source = get(server, folder, "dead/w.bin", "a/w.bin")
    assert source.address == server.url + "a/w.bin"
    printed = capsys.readouterr().err
    assert printed.index("dead/w.bin") < printed.index("a/w.bin")
    # The source is recorded, since it may determine the layout.
    _, again = get(server, folder, "dead/w.bin", "a/w.bin")
    assert again == source
    assert server.paths() == ["dead/w.bin", "a/w.bin"]


def test_error_names_all_sources(server, folder):
    server.behave["b/w.bin"] = web.page
    server.behave["c/w.bin"] = web.status(403)
    assert_refused(
        server,
        folder,
        "the server sent a web page instead of the file",
        "the server answered 403",
        "the server answered 404",
        paths=("b/w.bin", "c/w.bin", "d/w.bin"),
    )


def test_unreachable_server_raises(folder):
    sources = (Source("http://127.0.0.1:9/w.bin"),)
    with pytest.raises(OSError, match=r"127.0.0.1:9 cannot be reached"):
        downloads.fetch(folder, sources)
    assert kept(folder) == [".lock"]


def test_web_page_instead_of_the_file_is_refused(server, folder):
    server.behave["a/w.bin"] = web.disguised_page
    assert_refused(server, folder, "it is not the file expected")
    del server.behave["a/w.bin"]
    assert_got(server, folder)


def test_interrupted_download_resumes(server, folder):
    server.behave["a/w.bin"] = web.Truncated(2)
    assert_got(server, folder)
    ranges = [span for _, span in server.hits]
    assert ranges == [None, "bytes=150000-", "bytes=225000-"]


def test_interrupted_download_resumes_in_the_next_run(server, folder):
    server.behave["a/w.bin"] = web.Truncated(3)
    text = "the connection ended after 262500 of 300000 bytes"
    assert_refused(server, folder, text)
    assert_got(server, folder)
    assert server.hits[-1] == ("a/w.bin", "bytes=262500-")


def test_new_version_restarts_the_download(server, folder):
    server.behave["a/w.bin"] = web.Truncated(3)
    server.files["a/w.bin"] = bytes(300_000)
    assert_refused(server, folder, "the connection ended")
    server.files["a/w.bin"] = BODY  # its ETag is another
    assert_got(server, folder)


def test_kill_before_a_new_version_restarts_the_download(
    server, folder, monkeypatch
):
    server.behave["a/w.bin"] = web.Truncated(3)
    server.files["a/w.bin"] = bytes(300_000)
    assert_refused(server, folder, "the connection ended")
    server.files["a/w.bin"] = BODY
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(http, "_receive", lambda *arguments: sys.exit())
        get(server, folder)
    assert_got(server, folder, check=None, digest=f"sha256:{DIGEST}")
    assert server.hits[-1][1] is None


def test_download_without_etag_restarts(server, folder):
    left = [3]

    def nameless(handler, body):
        left[0] -= 1
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: 1000 if left[0] >= 0 else None])

    server.behave["a/w.bin"] = nameless
    assert_refused(server, folder, "the connection ended after 1000")
    assert_got(server, folder)
    assert {span for _, span in server.hits} == {None}


def test_wrong_content_range_restarts_the_download(server, folder):
    web_truncated = web.Truncated(1)

    def behave(handler, body):
        if handler.headers.get("Range"):
            del server.behave["a/w.bin"]
            handler.send_response(206)
            handler.send_header("Content-Range", "bytes 7-9/300000")
            handler.send_header("Content-Length", "3")
            handler.end_headers()
            handler.wfile.write(b"xyz")
        else:
            web_truncated(handler, body)

    server.behave["a/w.bin"] = behave
    assert_got(server, folder)


@pytest.mark.slow
def test_stalled_download_raises(server, folder, monkeypatch):
    monkeypatch.setattr(http, "TIMEOUT", 0.3)

    def stall(handler, body):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:1000])
        time.sleep(0.8)

    server.behave["a/w.bin"] = stall
    assert_refused(server, folder, "no data for 0.3 s")


@pytest.mark.slow
def test_slow_download_succeeds(server, folder, monkeypatch):
    # Pauses of 0.1 s, on a machine that may be busy for a second.
    monkeypatch.setattr(http, "TIMEOUT", 1.5)
    server.behave["a/w.bin"] = web.slowly(2.0, pieces=20)
    assert_got(server, folder)


@pytest.mark.parametrize("known", [DIGEST, DIGEST[:8]])
def test_correct_digest_is_accepted(server, folder, known):
    assert_got(server, folder, digest=f"sha256:{known}", check=None)


def test_md5_digest_is_accepted(server, folder):
    digest = f"md5:{hashlib.md5(BODY).hexdigest()}"
    assert_got(server, folder, digest=digest, check=None)


def test_wrong_digest_is_refused(server, folder):
    words = (DIGEST, "expected 00000000", "damaged, or was changed")
    assert_refused(server, folder, *words, digest="sha256:00000000")
    assert_got(server, folder, digest=f"sha256:{DIGEST}")


def test_file_changed_after_the_download_raises(server, folder):
    path, _ = get(server, folder)
    rewrite(path, BODY[:-1] + b"x")
    with pytest.raises(
        OSError, match=f"expected {DIGEST}.*delete it and w.bin.json"
    ):
        get(server, folder)
    path.unlink()
    assert_got(server, folder)


def test_manually_added_file_is_used(server, folder):
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(BODY)
    path, _ = get(server, folder)
    assert server.hits == []
    rewrite(path, bytes(len(BODY)))
    with pytest.raises(OSError, match="delete it"):  # its digest is known now
        get(server, folder)


def test_wrong_manually_added_file_raises(server, folder):
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"no")
    with pytest.raises(OSError, match="expected file: it is not"):
        get(server, folder)
    assert server.hits == []


def test_insufficient_disk_space_raises(server, folder, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="does not fit on the disk") as error:
        get(server, folder, "a/w.bin", "b/w.bin")
    assert error.value.errno == errno.ENOSPC
    assert "KERAS_VIT_HOME" in str(error.value)
    assert server.paths() == ["a/w.bin"]  # another source would not help
    assert kept(folder) == [".lock"]
    assert not (folder / "parts").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_during_the_download_raises(server, folder, monkeypatch):
    full = {"open": lambda path, mode: open("/dev/full", "wb", buffering=0)}
    monkeypatch.setattr(http, "open", full["open"], raising=False)
    with pytest.raises(OSError, match="does not fit on the disk"):
        get(server, folder)
    assert kept(folder) == [".lock"]
    assert not (folder / "parts").exists()


def test_home_that_is_not_a_folder_raises(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="W cannot be saved.*KERAS_VIT_HOME"):
        get(server, tmp_path / "file" / "weights")


@pytest.mark.parametrize(
    "end", ["..%2F..%2F..%2Fout%2Fw.bin", "..%5C..%5Cw.bin", "x%2Fw.bin"]
)
def test_url_cannot_select_another_folder(end, server, folder):
    server.files[urllib.parse.unquote(f"a/{end}")] = BODY
    path, _ = get(server, folder, f"a/{end}")
    assert path == folder / "w.bin"


@pytest.mark.parametrize("end", ["a/", "a/..", "a/%2E%2E", ""])
def test_url_without_a_file_name_raises(end, server, home):
    with pytest.raises(ValueError, match="must end in its name"):
        downloads.fetch_if_remote(server.url + end)
    assert not home.exists()


def test_digest_in_a_url_fragment_is_checked(server, home):
    address = server.url + "a/w.bin"
    downloads.fetch_if_remote(address)
    with pytest.raises(OSError, match="expected 00000000"):
        downloads.fetch_if_remote(address + "#sha256:00000000")
    downloads.fetch_if_remote(f"{address}#sha256:{DIGEST[:8].upper()}")
    for wrong in ("#deadbeef", "#sha257:00000000", "#sha256:", "#sha256:xyz"):
        with pytest.raises(ValueError, match="#sha256:... or #md5"):
            downloads.fetch_if_remote(address + wrong)
    with pytest.raises(ValueError, match="for one file"):
        downloads.fetch_if_remote("hf://o/n#sha256:00000000")


def test_url_is_downloaded_and_cached(server, home):
    for _ in range(2):
        path = downloads.fetch_if_remote(
            f"{server.url}a/w.bin#sha256:{DIGEST[:10]}"
        )
        assert path.read_bytes() == BODY
        assert path.name == "w.bin"
    server.files["b/w.bin"] = BODY[:10]
    other = downloads.fetch_if_remote(server.url + "b/w.bin?download=1")
    assert other.name == "w.bin"
    assert other != path
    assert downloads.fetch_if_remote(path) is path
    with pytest.raises(OSError, match="404"):
        downloads.fetch_if_remote(server.url + "c.bin")


@pytest.mark.backends("torch")
def test_digest_is_computed_once(server, folder, monkeypatch):
    known = f"sha256:{DIGEST[:8]}"
    path, _ = get(server, folder, digest=known)
    read = []
    digest_of = cache.digest_of

    def counted(path, *algorithm):
        read.append(path)
        return digest_of(path, *algorithm)

    monkeypatch.setattr(cache, "digest_of", counted)
    for _ in range(2):
        get(server, folder, digest=known)
    assert not read
    # A digest that became known later is compared with the record.
    with pytest.raises(OSError, match="cannot be used: its sha256"):
        get(server, folder, digest="sha256:00000000")
    assert not read
    os.utime(path, ns=(0, 0))
    get(server, folder, digest=known)
    assert len(read) == 1
    get(server, folder, digest=known)
    assert len(read) == 1


@pytest.mark.backends("torch")
@pytest.mark.parametrize("size", [len(BODY), len(BODY) + 1])
def test_modified_file_raises(size, server, folder):
    path, _ = get(server, folder)
    get(server, folder)
    before = path.stat().st_mtime_ns
    rewrite(path, bytes(size))
    if size != len(BODY):  # the size alone is enough
        os.utime(path, ns=(before, before))
    with pytest.raises(OSError, match="has changed since"):
        get(server, folder)


@pytest.mark.backends("torch")
def test_old_record_is_completed(server, folder):
    path, _ = get(server, folder)
    record = folder / "w.bin.json"
    content = json.loads(record.read_text())
    for name in ("size", "mtime_ns", "checked"):
        del content[name]
    record.write_text(json.dumps(content))
    get(server, folder)
    assert json.loads(record.read_text())["size"] == len(BODY)
    assert kept(folder) == [".lock", "w.bin", "w.bin.json"]
