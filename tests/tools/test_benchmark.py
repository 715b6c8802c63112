"""tools/benchmark.py: its tables."""

import cProfile
import importlib
import itertools
import json
import pathlib
import re
import types

import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests.small import vit

pytestmark = pytest.mark.backends("torch")

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    tool = importlib.import_module("benchmark")
    tiny = types.SimpleNamespace(
        hidden_size=16, num_layers=1, num_heads=2, mlp_dim=32, patch_size=8
    )
    monkeypatch.setitem(tool.contenders.SIZES, "tiny", tiny)
    return tool


class Process:
    """Replaces a worker: reports that it is ready, then answers."""

    write = flush = lambda self, *_: None

    def __init__(self, ready, seconds=(), peak=0):
        answers = [ready, *({"seconds": s, "peak": peak} for s in seconds)]
        self.lines = [json.dumps(answer) for answer in answers]
        self.stdin = self.stdout = self
        self.killed = False

    def readline(self):
        return self.lines.pop(0) if self.lines else ""

    def kill(self):
        self.killed = True

    def wait(self):
        return 3


MIB = 2**20
READY = {"first": 2, "libraries": 200 * MIB}


def run(tool, capsys, *arguments):
    """Returns what is printed, and the rows of the table by name."""
    options = ("--backend", "torch", "--size", "tiny", "--what", "step")
    tool.main(["models", *options, *arguments])
    printed = capsys.readouterr().out
    lines = [x for x in printed.splitlines() if x.startswith("|")]
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines
    ]
    return printed, {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_table_of_the_workers_answers(tool, monkeypatch, capsys):
    workers = {
        "keras_vit": Process(READY, [0.02, 0.04], 250 * MIB),
        "keras-hub": Process({"skipped": "ImportError: no keras_hub"}),
        "timm": Process(READY, [0.01, 0.03], 230 * MIB),
        "transformers": Process(READY, [0.02]),  # and then ends
        "matrix products": Process(READY, [0.005, 0.005], 210 * MIB),
        "keras_vit, exact GELU": Process({"skipped": "not now"}),
    }
    monkeypatch.setattr(tool.models, "start", lambda _, job, verbose: workers[job[0]])
    printed, rows = run(tool, capsys, "--batch-size", "4", "--rounds", "2")
    lines = {line[:24].strip(): line for line in printed.splitlines()}
    assert "torch, tiny, step, batch 4, 224 px" in printed
    assert "ImportError: no keras_hub" in lines["keras-hub"]
    assert "ended with status 3" in lines["transformers"]
    # Every process that was begun is ended, also the skipped.
    assert all(worker.killed for worker in workers.values())
    assert rows.keys() == {"keras_vit", "timm", "matrix products"}
    ours = rows["keras_vit"]
    assert ours["images/s"] == "200.0"
    assert (ours["best ms"], ours["median"]) == ("20.0", "30.0")
    assert (ours["MiB"], ours["libs MiB"]) == ("50", "200")
    timm = rows["timm"]
    assert timm["ours is"] == "0.50x" and timm["by round"] == "0.62x"


def test_unknown_names_are_refused(tool, capsys):
    for given in (
        ["--only", "timmm"],
        ["--backend", "numpy"],
        ["--steps", "1"],
    ):
        with pytest.raises(SystemExit):
            tool.main(["models", *given])
        assert given[-1] in capsys.readouterr().err


@pytest.mark.slow
def test_benchmark_of_real_processes(tool, capsys):
    """Run a real process of this package and one of the matrix products."""
    only = ("matrix products", "keras_vit")
    options = ("--image-size", "32", "--batch-size", "2", "--rounds", "1")
    _, rows = run(tool, capsys, *options, "--only", *only)
    assert rows.keys() == set(only)
    for row in rows.values():
        assert 0 < float(row["best ms"]) < 60000
        assert float(row["libs MiB"]) > 20 and float(row["MiB"]) > 0


@pytest.mark.slow
def test_functions_run_in_new_processes(tool):
    done = tool.programs.processes.run(tool.programs._import)
    assert 0 < sum(done.value) < done.seconds
    assert done.peak > 20 * MIB


@pytest.fixture
def encoder():
    return vit(
        input_shape=(32, 32, 3),
        patch_size=8,
        include_top=False,
        pooling="token",
    )


def test_dense_features_segment_bright_objects(tool, encoder):
    """Squares of random brightness are found by both measures."""
    rng = np.random.default_rng(0)
    masks = np.zeros((16, 32, 32), "int32")
    masks[:, 8:24, 8:24] = 1
    images = np.where(masks == 1, 1.0, -1.0)[..., None]
    images = images + rng.normal(0, 0.1, (16, 32, 32, 3))
    images = images.astype("float32")
    masks[:, 0] = 255
    data = types.SimpleNamespace(class_names=("no", "yes"), ignore=255)
    dense = tool.encoders
    both = (images, masks)
    # Logits of patches are resampled to pixels, which rounds the corners.
    assert dense.linear_iou(encoder, data, both, both) > 0.8
    assert dense.foreground_iou(encoder, *both, 255) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantized_models_in_keras_are_saved_and_timed(tool, encoder, tmp_path):
    runs = itertools.islice(tool.encoders.quantized_runs(encoder, tmp_path, None), 3)
    runs = dict(runs)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3))
    expected = runs["Keras"](images)
    assert list(runs) == ["Keras", "Keras int8", "Keras int4"]
    for name, run in runs.items():
        assert (tmp_path / f"{name}.keras").is_file()
        assert (run(images) * expected).sum() > 0.9 * (expected**2).sum()
        assert tool.encoders.cpu_milliseconds(run, images, 2) > 0


@pytest.mark.slow
def test_table_of_frozen_features(tool, tmp_path, capsys):
    pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 12)):
        for i in range(count):
            folder = tmp_path / "set" / split / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 128, (8, 8, 3)) + 127 * (i % 2)
            image = Image.fromarray(pixels.astype("uint8"))
            image.save(folder / f"{i}.png")
    model = vit(input_shape=(16, 16, 3), include_top=False)
    weights = str(tmp_path / "encoder.npz")
    keras_vit.converters.save(model, weights)
    options = ["--image-size", "8", "--mode", "tf"]
    tool.main(["probes", str(tmp_path / "set"), weights, *options])
    header, _, *rows = capsys.readouterr().out.splitlines()[-7:]
    assert header.startswith("| features | k-NN |") and len(rows) == 5
    pixels = rows[-1].split(" | ")
    assert pixels[0] == "| pixels" and float(pixels[1]) == 1.0


def test_runs_are_those_of_the_recipe(tool, tmp_path, monkeypatch, capsys):
    seen = []

    def recipe(command, check):
        flags = dict(itertools.pairwise(command))
        assert command[1].endswith("recipes/finetune_cifar.py") and check
        assert (flags["--dataset"], flags["--steps"]) == ("set", "1")
        train, seed = flags.get("--train"), int(flags["--seed"])
        seen.append((train, "--weights" in flags, seed))
        results = {"test_accuracy": seed / 10, "seconds": 2.0}
        path = pathlib.Path(flags["--output"])
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(results))

    monkeypatch.setattr(tool.recipes.subprocess, "run", recipe)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # finished runs are read
        tool.main(["training", "set", "x.npz", "--steps", "1"])
        rows = capsys.readouterr().out.splitlines()[-4:]
        assert [row.split(" | ")[0] for row in rows] == [
            *("| all", "| lora", "| head", "| scratch")
        ]
        assert rows[0] == "| all | 0.000 | 0.100 | 0.200 | 0.100 | 0.100 | 2 |"
    trained = (("all", True), ("lora", True), ("head", True), (None, False))
    assert seen == [(*pair, seed) for pair in trained for seed in range(3)]


def test_waits_lists_the_best_first_and_second_time(tool, monkeypatch, capsys):
    """Only this package's commands under JAX keep something for a second time."""
    times = itertools.cycle([(4.0, 9.0), (3.0, 2.5), (5.0, 8.0), (3.5, 2.0)])
    calls = []

    def run(words, folder, backend):
        calls.append(words[2])
        return next(times) if len(calls) > 2 else (1.0, 1.0)

    monkeypatch.setattr(tool.waits, "_run", run)
    monkeypatch.setattr(tool.waits, "PHOTOS", 12)
    only = ["explain", "evaluate", "keras-hub"]
    tool.main(["waits", "--backend", "jax", "--rounds", "2", "--names", *only])
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == [
        "explain",
        "evaluate",
        "keras-hub",
        "keras-hub,",
    ]
    assert [row[-4:] for row in rows[:2]] == [["4.0", "8.0", "3.0", "2.0"]] * 2
    assert [row[-2:] for row in rows[2:]] == [["3.0", "2.5"], ["3.5", "2.0"]]
    done = ["explain"] * 4 + ["evaluate"] * 4 + ["benchmarks.peers"] * 4
    assert calls == ["train", "convert", *done]


def test_waits_say_in_which_part_the_seconds_go(tool, tmp_path):
    code = "import time\ndef load_dataset(): time.sleep(0.1)"
    names = {}
    exec(compile(code, "keras_vit/data/sources.py", "exec"), names)
    profile = cProfile.Profile()
    profile.runcall(names["load_dataset"])
    profile.dump_stats(tmp_path / "profile")
    text = tool.waits._parts(tmp_path / "profile")
    assert re.fullmatch(r"all 0\.\d, data 0\.\d", text), text
