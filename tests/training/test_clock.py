"""Runs whose clock is wrong, jumps or goes back.

Only `time` is wrong: `perf_counter`, which measures durations, is not.
"""

import contextlib
import datetime
import itertools
import os
import signal
import time

import keras
import pytest

import keras_vit
from keras_vit.distribution.sharding import to_tf_dataset
from keras_vit.training import checkpoint
from tests.recipes.programs import rows_of
from tests.training import pictures
from tests.training import run_small
from tests.training.test_checkpoints import PROCESSES
from tests.training.test_checkpoints import assert_same_end


def at(year):
    moment = datetime.datetime(year, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)
    return moment.timestamp()


NOW = at(2026)
JUMPING = [NOW, at(2036), at(2016), at(1970), at(2110), NOW, NOW]


@contextlib.contextmanager
def clock(*moments):
    """Returns these moments cyclically; none is the true time."""
    with pytest.MonkeyPatch.context() as patch:
        values = itertools.cycle(moments)
        patch.setattr(time, "time", lambda: next(values))
        patch.setattr(time, "time_ns", lambda: int(next(values)) * 10**9)
        yield


def in_process(folder, moments, until):
    """Runs in a new process; kills itself after a checkpoint."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    write = checkpoint.write_state

    def write_and_die(path, arrays, note):
        write(path, arrays, note)
        if note["step"] == until:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.write_state = write_and_die
    with clock(*moments):
        run_small.main(folder)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_killed_run_resumes_bit_for_bit_with_a_wrong_clock(tmp_path):
    """The run is killed while its clock jumps, and resumes with a clock that
    stands still, far behind."""
    steady, jumped = tmp_path / "steady", tmp_path / "jumped"
    run_small.main(steady)
    process = PROCESSES.Process(target=in_process, args=(jumped, JUMPING, 10))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with clock(at(1970)):
        run_small.main(jumped)
    assert_same_end(jumped, steady)
    assert all(float(x["images_per_second"]) > 0 for x in rows_of(jumped))


def batches_of(data):
    options = {"image_size": 8, "batch_size": 3}
    return data.train(**options), data.test(**options)


@pytest.mark.backends("tensorflow")
def test_autotune_is_disabled_in_tf_datasets(tmp_path):
    """Runs with autotuning hung when the clock was put back. Under TensorFlow,
    Keras would enable it for datasets made of other batches."""
    pytest.importorskip("tensorflow")
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(pictures.encode(pictures.noise(9, 9)))
    given = [*batches_of(keras_vit.data.load_dataset(str(tmp_path)))]
    if keras.config.backend() == "tensorflow":
        digits = batches_of(keras_vit.data.load_dataset("digits"))
        assert not any(hasattr(batches, "element_spec") for batches in digits)
        given += [to_tf_dataset(x) for x in digits]
    for batches in given:
        assert batches.options().autotune.enabled is False
        # There are two test images.
        assert len(next(iter(batches))[0]) in (2, 3)
