"""Downloads from a server with every known kind of failure."""

import hashlib
import os
import pathlib
import time
import urllib.parse

import numpy as np
import pytest

from keras_vit.utils import downloads
from keras_vit.utils.downloads import Source, cache
from keras_vit_programs import logs
from tests import server as web

pytestmark = pytest.mark.backends("torch")

BODY = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(server):
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


def assert_got(server, folder, *paths, **options):
    path, _ = get(server, folder, *paths, **options)
    assert path.read_bytes() == BODY
    assert kept(folder) == [".lock", "w.bin"]
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
    logs.show()
    for _ in range(3):
        assert_got(server, folder)
    assert server.paths() == ["a/w.bin"]
    printed = capsys.readouterr().err
    assert printed.count(f"W: downloading {server.url}a/w.bin") == 1


def stall(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:1000])
    time.sleep(0.8)


def without_a_file(handler, body):
    handler.send_response(204)
    handler.end_headers()


FAILURES = {
    "403": (web.status(403), "Error 403"),
    "503": (web.status(503), "Error 503"),
    "204": (without_a_file, "answered with 204"),
    "page": (web.page, "the server sent a web page instead of the file"),
    "disguised page": (web.disguised_page, "it is not the file expected"),
    "cut": (
        web.Truncated(1),
        "the connection ended after 150000 of 300000 bytes",
    ),
    "stalled": (stall, "timed out"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_download_is_reported_and_leaves_nothing(
    failure, server, folder, monkeypatch
):
    behave, words = FAILURES[failure]
    server.behave["a/w.bin"] = behave
    with monkeypatch.context() as patch:
        if failure == "stalled":
            patch.setattr(cache, "TIMEOUT", 0.3)
        assert_refused(server, folder, words)
    assert not list(folder.rglob("w.bin"))
    del server.behave["a/w.bin"]
    assert_got(server, folder)


def test_next_source_is_tried(server, folder, capsys):
    logs.show()
    server.behave["dead/v.bin"] = web.status(403)
    path, source = get(server, folder, "dead/v.bin", "a/w.bin")
    assert source.address == server.url + "a/w.bin"
    printed = capsys.readouterr().err
    assert printed.index("dead/v.bin") < printed.index("a/w.bin")
    # The name of the cached file says which source it is from.
    _, again = get(server, folder, "dead/v.bin", "a/w.bin")
    assert again == source
    assert server.paths() == ["dead/v.bin", "a/w.bin"]


def test_error_names_all_sources(server, folder):
    server.behave["b/w.bin"] = web.page
    server.behave["c/w.bin"] = web.status(403)
    assert_refused(
        server,
        folder,
        "the server sent a web page instead of the file",
        "Error 403",
        "Error 404",
        paths=("b/w.bin", "c/w.bin", "d/w.bin"),
    )


def test_unreachable_server_raises(folder):
    sources = (Source("http://127.0.0.1:9/w.bin"),)
    with pytest.raises(OSError, match=r"127.0.0.1:9/w.bin\n.*refused"):
        downloads.fetch(folder, sources)
    assert kept(folder) == [".lock"]


def test_part_of_a_killed_download_is_not_used(server, folder):
    part = folder / "parts" / "0" / "w.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    assert_got(server, folder)


@pytest.mark.slow
def test_slow_download_succeeds(server, folder, monkeypatch):
    # Pauses of 0.1 s, on a machine that may be busy for a second.
    monkeypatch.setattr(cache, "TIMEOUT", 1.5)
    server.behave["a/w.bin"] = web.slowly(2.0, pieces=20)
    assert_got(server, folder)


MD5 = f"md5:{hashlib.md5(BODY).hexdigest()}"


@pytest.mark.parametrize("digest", [f"sha256:{DIGEST}", f"sha256:{DIGEST[:8]}", MD5])
def test_digest_is_checked(server, folder, digest):
    words = (DIGEST, "expected 00000000", "damaged, or was changed")
    assert_refused(server, folder, *words, digest="sha256:00000000")
    assert_got(server, folder, digest=digest, check=None)


def test_manually_added_file_is_used_if_it_is_right(server, folder):
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"no")
    with pytest.raises(OSError, match="w.bin': it is not .* delete it"):
        get(server, folder)
    (folder / "w.bin").write_bytes(BODY)
    get(server, folder)
    assert server.hits == []
    # A cached file is verified at every use.
    (folder / "w.bin").write_bytes(bytes(len(BODY)))
    for options in ({}, {"check": None, "digest": f"sha256:{DIGEST}"}):
        with pytest.raises(OSError, match="delete it to have it downloaded"):
            get(server, folder, **options)
    (folder / "w.bin").unlink()
    assert_got(server, folder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_during_the_download_raises(server, folder, monkeypatch):
    full = {"open": lambda path, mode: open("/dev/full", "wb", buffering=0)}
    monkeypatch.setattr(cache, "open", full["open"], raising=False)
    with pytest.raises(OSError, match="W cannot be saved.*Free some"):
        get(server, folder)
    assert kept(folder) == [".lock"]
    assert not list(folder.rglob("w.bin"))


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
        path = downloads.fetch_if_remote(f"{server.url}a/w.bin#sha256:{DIGEST[:10]}")
        assert path.read_bytes() == BODY
        assert path.name == "w.bin"
    server.files["b/w.bin"] = BODY[:10]
    other = downloads.fetch_if_remote(server.url + "b/w.bin?download=1")
    assert other.name == "w.bin"
    assert other != path
    assert downloads.fetch_if_remote(path) is path
    with pytest.raises(OSError, match="404"):
        downloads.fetch_if_remote(server.url + "c.bin")


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_HOME", "~/here")
    assert downloads.cache_dir() == pathlib.Path.home() / "here"
    monkeypatch.setenv("KERAS_VIT_HOME", "")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert downloads.cache_dir() == tmp_path / "keras_vit"
    monkeypatch.delenv("KERAS_HOME")
    assert downloads.cache_dir() == pathlib.Path.home() / ".keras" / "keras_vit"
