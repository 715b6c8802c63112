import json
import shutil
import subprocess

import pytest

from keras_vit import training
from keras_vit.training import _output


def test_check_output_refuses_what_would_be_lost(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty.*--overwrite"):
        training.check_output(tmp_path, overwrite=False)
    assert training.check_output(tmp_path, overwrite=True) == tmp_path
    with pytest.raises(ValueError, match="is a file"):
        training.check_output(tmp_path / "file", overwrite=True)
    with pytest.raises(ValueError, match="cannot be written"):
        training.check_output(tmp_path / "file" / "below", overwrite=True)


def test_an_interrupted_run_may_go_on(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "step-00000005.npz").touch()
    (tmp_path / "metrics.csv").touch()
    assert training.check_output(tmp_path, overwrite=False) == tmp_path
    training.open_output(tmp_path, ["metrics.csv"])
    assert list(checkpoints.iterdir())
    # Nor is one refused that had not come to its first checkpoint.
    (checkpoints / "step-00000005.npz").unlink()
    assert training.check_output(tmp_path, overwrite=False) == tmp_path
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match="is not empty"):
        training.check_output(tmp_path, overwrite=False)


def test_check_output_writes_nothing(tmp_path):
    training.check_output(tmp_path / "a" / "b", overwrite=False)
    assert not list(tmp_path.iterdir())


def test_open_output_removes_only_its_own_files(tmp_path):
    (tmp_path / "mine.csv").touch()
    (tmp_path / "yours.txt").touch()
    training.open_output(tmp_path, ["mine.csv", "absent.png"])
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["checkpoints", "yours.txt"]


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "facts.json"
    training.save_json({"a": 1}, path)
    with pytest.raises(RuntimeError):
        with training.replacing(path) as temporary:
            assert temporary.suffix == ".json"
            temporary.write_text("half")
            raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_versions_are_all_known():
    versions = training.versions()
    assert versions["backend"] in versions
    assert all(versions.values())


def test_the_commit_is_written_down(tmp_path, monkeypatch):
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git")

    def ask(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            [git, *who, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    found = _output.circumstances()
    assert found["git"] is None
    assert found["environment"]["XLA_FLAGS"] == "--xla_a=1"
    ask("init", "-q")
    ask("commit", "-q", "--allow-empty", "-m", "first")
    commit = {"commit": ask("rev-parse", "HEAD"), "changed": False}
    assert _output.circumstances()["git"] == commit
    (tmp_path / "new").touch()
    assert _output.circumstances()["git"] == commit | {"changed": True}
