import pathlib

import pytest

from keras_vit import downloads

pytestmark = pytest.mark.backends("torch")


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_HOME", "~/here")
    assert downloads.cache_dir() == pathlib.Path.home() / "here"
    monkeypatch.setenv("KERAS_VIT_HOME", "")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert downloads.cache_dir() == tmp_path / "keras_vit"
    monkeypatch.delenv("KERAS_HOME")
    assert downloads.cache_dir() == pathlib.Path.home() / ".keras" / "keras_vit"
