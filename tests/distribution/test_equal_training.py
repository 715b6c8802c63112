"""The same batches train the same on any number of devices and processes, and
runs on several devices resume bit for bit."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit_programs import runs, sizes
from tests.distribution.processes import finish, start
from tests.recipes import programs
from tests.server import unused_addresses

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]
BACKEND = keras.config.backend()
# Runs of `small_run`, with each optimizer and strategy.
RUNS = {
    "tensorflow": """
        none:0:0:sgd none:0:0:adamw none:0:0:sgd-distill none:0:0:dino
        mirrored:2:0:sgd mirrored:2:0:adamw mirrored:2:0:sgd-distill
        mirrored:2:0:dino none:0:0:mocov3 mirrored:2:0:mocov3
    """,
    "jax": """
        none:0:0:sgd none:0:0:adamw none:0:0:sgd-distill
        data-parallel:4:0:sgd-accumulate data-parallel:4:0:adamw
        data-parallel:4:0:sgd-distill model-parallel:4:2:sgd
    """,
}

# Compiling their graphs takes most of the time.
SLOW_RUNS = """
    none:0:0:dino data-parallel:4:0:dino none:0:0:mocov3
    data-parallel:4:0:mocov3 none:0:0:adamw model-parallel:4:2:adamw
"""


def read(path):
    """Returns the arrays of runs, as `{run: {name: array}}`."""
    results = {}
    with np.load(path) as file:
        for key in file.files:
            run, name = key.rsplit("/", 1)
            results.setdefault(run, {})[name] = file[key]
    return results


def differences(a, b):
    scales = {"weights": a.get("scale", 1)}
    return {
        name: np.abs(a[name] - b[name]).max() / scales.get(name, 1)
        for name in ("losses", "tested", "weights")
    }


# Four times the largest difference on TensorFlow and JAX. On one device, the
# reverse order of the images changes as much. The losses of MoCo v3 differ by
# more, because batch norms divide by the standard deviations of features that
# are almost the same for all images at first. What is tested is DINO's center.
TOLERANCES = {
    "dino": {"losses": 2e-6, "tested": 1e-7, "weights": 1e-6},
    "mocov3": {"losses": 3e-5, "tested": 0, "weights": 3e-6},
}


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(RUNS.get(BACKEND), id="suite"),
        pytest.param(
            SLOW_RUNS,
            id="slow",
            marks=[pytest.mark.nightly, pytest.mark.backends("jax")],
        ),
    ],
)
def test_any_number_of_devices_gives_equal_training(runs, tmp_path, record_error):
    program = ("tests.distribution.small_run", tmp_path / "found.npz")
    finish([start(*program, *runs.split())])
    found = read(tmp_path / "found.npz")
    for run, results in found.items():
        name, devices, model_devices, kind = run.split(":")
        if name == "none":
            # The model learns; otherwise, equality would mean little.
            assert kind in TOLERANCES or np.ptp(results["losses"]) > 0.1
            continue
        if name == "model-parallel":
            assert results["shards"].max() == int(model_devices)
        one_device = found[f"none:0:0:{kind.removesuffix('-accumulate')}"]
        for what, error in differences(results, one_device).items():
            record_error(
                f"{name} on {devices} devices",
                f"{kind} {what}",
                error,
                TOLERANCES.get(kind, {}).get(what, 1e-5),
            )


@pytest.fixture(scope="module")
def found():
    """The devices must be set up before TensorFlow begins: a new process."""
    (printed,) = finish([start("tests.distribution.small_replicas")])
    (line,) = (x for x in printed.splitlines() if x.startswith('{"clipnorm"'))
    return json.loads(line)


@pytest.mark.parametrize(
    "name",
    ["clipnorm", "clipvalue", "global_clipnorm", "batch_norm", "ignored"],
)
def test_a_step_is_that_of_one_device(found, name):
    one, two = found[name]
    np.testing.assert_allclose(two, one, rtol=1e-4)


def test_a_step_of_eomt_is_that_of_one_device(found):
    """The points of the loss are random, and differ between replicas."""
    one, two = found["eomt"]
    np.testing.assert_allclose(two, one, rtol=0.05)


@pytest.mark.backends("jax", "tensorflow")
def test_a_step_of_pairs_is_that_of_one_device(record_error):
    """The texts of the images of other devices are negatives, too."""
    (printed,) = finish([start("tests.distribution.small_pairs", devices=2)])
    rows = json.loads(printed.splitlines()[-1])
    for loss, of_loss, of_gradients in rows:
        assert loss > 0.1
        record_error("pairs on 2 devices", "loss", of_loss, 1e-6)
        record_error("pairs on 2 devices", "gradients", of_gradients, 1e-6)


def test_images_of_all_replicas_have_different_masks(found):
    assert found["masks"] == [4, 4]


# A strategy with a number of devices for a model, and the number of devices.
RESUMED = {"tensorflow": ("mirrored:0", 2), "jax": ("model-parallel:2", 4)}


@pytest.mark.backends("jax", "tensorflow")
def test_interrupted_runs_resume_bit_for_bit(tmp_path):
    name, devices = RESUMED[BACKEND]
    program = ("tests.distribution.small_resume", tmp_path, name)
    (printed,) = finish([start(*program, devices=devices)])
    assert printed.count("It crashed.\n") == 1
    assert printed.count("resuming  from step 5") == 1
    assert ("MB of" in printed) == (BACKEND == "jax")  # of a part of the model
    folders = [tmp_path / which for which in ("straight", "crashed")]
    programs.assert_same_weights(*(x / "model.keras" for x in folders))
    for straight, crashed in zip(*map(programs.rows_of, folders), strict=True):
        del straight["images_per_second"], crashed["images_per_second"]
        # The weights are the same bit for bit. A mean may be rounded
        # differently: a checkpoint within an interval has the sum of the
        # replicas' losses, not each one's.
        expected = {name: float(value) for name, value in straight.items()}
        found = {name: float(value) for name, value in crashed.items()}
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.backends("jax")
def test_two_processes_run_the_recipe(tmp_path, record_error, monkeypatch):
    # The processes have the small model of the tests, too.
    monkeypatch.setitem(sizes.COMPACT, "compact-vit", programs.SMALL)
    folders = one, two = tmp_path / "one", tmp_path / "two"
    program = ("finetune_cifar", "--steps", "3", "--batch-size", "16")
    program += ("--average", "0.4")
    (address,) = unused_addresses(1)
    processes = [
        start(
            *("tests.recipes.programs", *program, "--output", two),
            *("--strategy", "data-parallel"),
            devices=1,
            KERAS_DISTRIBUTION_JOB_ADDRESSES=address,
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(index),
        )
        for index in range(2)
    ]
    programs.run(*program, "--output", one)
    first, second = finish(processes)
    # The first one writes the files and prints.
    assert "2 devices, process 1 of 2" in first and "test accuracy" in first
    assert "2 devices, process 2 of 2" in second and "accuracy" not in second
    names = [sorted(p.name for p in folder.iterdir()) for folder in folders]
    assert names[0] == names[1] and set(runs.FILES) <= set(names[0])
    case = "recipe, data-parallel, two processes"
    accuracies = [
        json.loads((folder / "config.json").read_text())["test_accuracy"]
        for folder in folders
    ]
    record_error(case, "accuracy", abs(np.subtract(*accuracies)), 1e-5)
    weights = [
        keras_vit.converters.load(folder / "model.npz").get_weights()
        for folder in folders
    ]
    errors = [np.abs(a - b).max() for a, b in zip(*weights, strict=True)]
    record_error(case, "weights", max(errors), 1e-5)
