"""hf:// addresses, through huggingface_hub, from a local hub."""

import sys

import pytest

from keras_vit.utils import downloads
from keras_vit.utils.downloads import Source
from tests.server import COMMIT, publish

pytestmark = pytest.mark.backends("torch")


def test_file_is_downloaded_once(hub, tmp_path):
    publish(hub, "o/n", {"sub/model.safetensors": b"abc" * 1000})
    sources = (Source("hf://o/n/sub/model.safetensors"),)
    for _ in range(2):
        path, _ = downloads.fetch(tmp_path / "w", sources)
        assert path.read_bytes() == b"abc" * 1000
        hits = hub.paths().copy()
    assert hub.paths() == hits  # the second time, nothing is asked for
    assert path == tmp_path / "w" / "model.safetensors"


def test_missing_file_raises(hub, tmp_path):
    publish(hub, "o/n", {"other": b""})
    sources = (Source("hf://o/n/model.safetensors"),)
    with pytest.raises(OSError, match="hf://o/n/model.safetensors\n.*404"):
        downloads.fetch(tmp_path / "w", sources)


def test_unreachable_hub_raises(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("retried"))
    constants = sys.modules["huggingface_hub.constants"]
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        "http://127.0.0.1:9/{repo_id}/{revision}/{filename}",
    )
    with pytest.raises(OSError, match="hf://o/n/w.bin\n    .*rror"):
        downloads.fetch(tmp_path / "w", (Source("hf://o/n/w.bin"),))


FILES = {
    "config.json": b"{}",
    "preprocessor_config.json": b"{}",
    "model-00001-of-00002.safetensors": b"1",
    "model-00002-of-00002.safetensors": b"2",
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"older",
    "flax_model.msgpack": b"not ours",
    "README.md": b"",
}


def names(folder):
    import pathlib

    return sorted(path.name for path in pathlib.Path(folder).iterdir())


@pytest.mark.parametrize("address", ["hf://o/n", f"hf://o/n@{COMMIT}"])
def test_repository_weights_are_downloaded(hub, address):
    publish(hub, "o/n", FILES)
    assert names(downloads.fetch_if_remote(address)) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "preprocessor_config.json",
    ]


@pytest.mark.parametrize("place", ["", "sub/"])
def test_file_is_downloaded_with_the_configs_beside_it(place, hub):
    files = {f"{place}{name}": content for name, content in FILES.items()}
    publish(hub, "o/n", files)
    path = downloads.fetch_if_remote(f"hf://o/n/{place}pytorch_model.bin")
    assert path.read_bytes() == b"older"
    expected = ["config.json", "preprocessor_config.json", "pytorch_model.bin"]
    assert names(path.parent) == expected
    with pytest.raises(OSError, match="o/n has no 'other.bin'. Give"):
        downloads.fetch_if_remote("hf://o/n/other.bin")


def test_folder_that_the_package_wrote(hub):
    index = {"model.safetensors.index.json": b"{}", "timm.safetensors": b"x"}
    publish(hub, "o/n", {"config.json": b"{}", "model.keras": b"x", **index})
    assert names(downloads.fetch_if_remote("hf://o/n")) == [
        "config.json",
        "model.keras",
    ]


def test_repository_with_pytorch_files(hub):
    publish(hub, "o/n", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    assert names(downloads.fetch_if_remote("hf://o/n")) == [
        "config.json",
        "pytorch_model.bin",
    ]


def test_repository_of_keras_hub(hub):
    wanted = {
        "config.json": b"{}",
        "image_converter.json": b"{}",
        "model.weights.h5": b"x",
        "task.json": b"{}",
        "task.weights.h5": b"x",
    }
    publish(hub, "o/n", {**wanted, "optimizer.json": b"{}"})
    assert names(downloads.fetch_if_remote("hf://o/n")) == sorted(wanted)


@pytest.mark.parametrize("start", ["open_clip_", "adapter_"])
@pytest.mark.parametrize("suffix", ["model.safetensors", "model.bin"])
def test_repositories_of_open_clip_and_peft(start, suffix, hub):
    if (start, suffix) == ("open_clip_", "model.bin"):
        suffix = "pytorch_model.bin"
    wanted = {f"{start}config.json": b"{}", f"{start}{suffix}": b"x"}
    publish(hub, "o/n", {**wanted, "README.md": b""})
    assert names(downloads.fetch_if_remote("hf://o/n")) == sorted(wanted)


def test_repository_without_weights_raises(hub):
    publish(hub, "o/n", {"README.md": b""})
    with pytest.raises(OSError, match="no model.safetensors, pytorch_mod"):
        downloads.fetch_if_remote("hf://o/n")


def test_missing_repository_raises(hub):
    with pytest.raises(OSError, match="^hf://o/n could not .*404.* its path"):
        downloads.fetch_if_remote("hf://o/n")


@pytest.mark.parametrize("address", ["hf://", "hf://o", "hf:///n", "hf://o/"])
def test_malformed_repository_raises(address):
    with pytest.raises(ValueError, match="hf://owner/name"):
        downloads.fetch_if_remote(address)
