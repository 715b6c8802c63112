import contextlib
import errno
import json
import subprocess
import sys
import types

import keras
import pytest

import keras_vit
from keras_vit.utils.files import log_os_errors
from keras_vit_programs import flags, logs, run_folder, setup
from keras_vit_programs.runs import explain_error
from tests.recipes import programs
from tests.small import vit

pytestmark = pytest.mark.backends("torch")


def test_check_output_refuses_a_folder_that_is_not_empty(tmp_path):
    run_folder.check_output(tmp_path / "a" / "b", overwrite=False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert run_folder.check_output(tmp_path, overwrite=True) == tmp_path
    for path, overwrite, words in (
        (tmp_path, False, "is not empty.*--overwrite"),
        (tmp_path / "file", True, "is a file"),
        (tmp_path / "file" / "below", True, "cannot be written"),
        ("gs://bucket/run", False, "is an address.*mounted"),
    ):
        with pytest.raises(ValueError, match=words):
            run_folder.check_output(path, overwrite=overwrite)


def test_results_go_to_the_next_folder_that_is_free(tmp_path):
    """A second `keras-vit predict` does not fail."""
    default = tmp_path / "predict"
    for name in ("predict", "predict-2", "predict-3"):
        folder = run_folder.results_folder(None, str(default), overwrite=False)
        assert folder == tmp_path / name
        folder.mkdir()
        (folder / "predictions.csv").touch()
    assert run_folder.results_folder(None, str(default), overwrite=True) == default
    with pytest.raises(ValueError, match="is not empty"):
        run_folder.results_folder(str(default), "other", overwrite=False)


def test_check_output_accepts_an_interrupted_run(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "step-00000005.npz").touch()
    (tmp_path / "metrics.csv").touch()
    assert run_folder.check_output(tmp_path, overwrite=False) == tmp_path
    run_folder.prepare_output(tmp_path, ["metrics.csv"])
    assert list(checkpoints.iterdir())
    # Nor is one refused that had not come to its first checkpoint.
    (checkpoints / "step-00000005.npz").unlink()
    assert run_folder.check_output(tmp_path, overwrite=False) == tmp_path
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match="a finished run"):
        run_folder.check_output(tmp_path, overwrite=False)


def test_failed_atomic_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "metadata.json"
    run_folder.save_json({"a": 1}, path)
    with pytest.raises(RuntimeError):
        with run_folder.atomic_write(path) as temporary:
            assert temporary.suffix == ".json"
            temporary.write_text("half")
            raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_environment_info_holds_the_git_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    found = run_folder.environment_info()
    assert found["git"] is None
    assert found["environment"]["XLA_FLAGS"] == "--xla_a=1"
    who = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for command in ("init -q", "commit -q --allow-empty -m first"):
        subprocess.run([*who, *command.split()], check=True)
    commit = run_folder.environment_info()["git"]
    assert len(commit["commit"]) == 40 and commit["changed"] is False
    (tmp_path / "new").touch()
    assert run_folder.environment_info()["git"] == commit | {"changed": True}

    def slow(*_, timeout, **options):
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "check_output", slow)
    assert run_folder.environment_info()["git"] is None


def test_lost_process_is_reported():
    two = types.SimpleNamespace(process=(0, 2))
    gone = RuntimeError("tasks are unhealthy (stopped sending heartbeats)")
    found = explain_error(gone, two, None)
    assert "2 processes is lost" in found and "commands resume" in found
    alone = types.SimpleNamespace(process=(0, 1))
    assert explain_error(gone, alone, None) is None
    assert explain_error(RuntimeError("shapes differ"), two, None) is None


def test_prepare_output_removes_only_its_files(tmp_path):
    """Those that are named, and temporary ones of killed runs."""
    (tmp_path / "checkpoints").mkdir()
    kept = {"yours.txt", ".hidden", ".mine-1.txt", "step-00000005.npz"}
    for name in (".step-00000005-12.npz", ".best-12.npz", "step-00000005.npz"):
        (tmp_path / "checkpoints" / name).touch()
    for name in (".model-34.keras", "mine.csv", *kept - {"step-00000005.npz"}):
        (tmp_path / name).touch()
    run_folder.prepare_output(tmp_path, ["mine.csv", "absent.png"])
    assert {path.name for path in tmp_path.rglob("*.*")} == kept


def test_killed_run_releases_the_lock(tmp_path):
    alone = keras_vit.distribution.get_strategy("none")
    second = keras_vit.distribution.Strategy(
        "multiworker", "", process=(1, 2), gather=lambda number: [1, number]
    )
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        # Where the first process cannot lock it, every process raises.
        for strategy in (alone, second):
            with pytest.raises(ValueError, match="Another run is writing to"):
                with run_folder.exclusive_lock(tmp_path, strategy):
                    pass
        other.kill()
        other.wait()
    for _ in range(2):
        with run_folder.exclusive_lock(tmp_path, alone):
            assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def run_of(folder, **settings):
    config = programs.Settings(steps=1, evaluate_every=1, mode="tf", **settings)
    data = keras_vit.data.load_dataset("digits")
    alone = keras_vit.distribution.get_strategy("none")
    with setup.open_run(config, data, alone, folder) as run:
        yield run


def test_devices_must_divide_micro_batches(tmp_path):
    two = keras_vit.distribution.Strategy("data-parallel", "", 2, 2)
    settings = {"steps": 1, "evaluate_every": 1, "mode": "tf", "accumulate": 8}
    config = programs.Settings(batch_size=8, **settings)
    data = keras_vit.data.load_dataset("digits")
    words = "micro-batch of 1 images .* 2 devices.* batch_size=8, accumulate=8"
    with pytest.raises(ValueError, match=words):
        with setup.open_run(config, data, two, tmp_path):
            pass


def test_full_disk_is_logged_or_raises_a_user_error(tmp_path, capsys):
    logs.show()
    full = OSError(errno.ENOSPC, "No space left on device")
    with log_os_errors("a picture") as written:
        raise full
    assert not written
    assert "a picture could not be written" in capsys.readouterr().err

    def write(model, output):
        raise full

    layers = [keras.Input((2,)), keras.layers.Dense(1)]
    with pytest.raises(flags.UserError, match="No space.*no checkpoint yet"):
        with run_of(tmp_path / "run") as run:
            run._training = True
            run.checkpoints.rows.append({"step": 1, "test_accuracy": 0.5})
            run.save(keras.Sequential(layers), write)


def test_averages_before_a_batch_norm_delete_nothing(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001.npz"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    layers = [keras.layers.Dense(1), keras.layers.BatchNormalization()]
    with pytest.raises(flags.UserError, match="batch norm"):
        with run_of(tmp_path / "run", average=0.9, overwrite=True) as run:
            model = keras.Sequential([keras.Input((2,)), *layers])
            model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
            run.resume(model, float, lambda start: None, None)
    assert checkpoint.exists()


class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


def test_results_of_a_model_that_only_its_program_can_load(tmp_path):
    encoder = vit(input_shape=(8, 8, 1), include_top=False, pooling="gap")
    outputs = keras.layers.Dense(10, name="head")(Doubled()(encoder.output))
    model = keras.Model(encoder.input, outputs)
    with run_of(tmp_path / "run", image_size=8) as run:
        run.checkpoints.rows.append({"step": 1, "test_accuracy": 0.5})
        run.save(model)
    assert (tmp_path / "run" / "predictions.png").exists()
