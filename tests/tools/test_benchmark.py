"""tools/benchmark.py: its table and files for the answers of its workers."""

import importlib
import json
import pathlib
import types

import numpy as np
import pytest

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
    monkeypatch.setitem(tool.SIZES, "tiny", tiny)
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


READY = {"first": 2, "libraries": 200}


def run(tool, folder, *arguments):
    options = ("--backend", "torch", "--size", "tiny", "--what", "step")
    options += ("--output", str(folder / "out"))
    tool.main(["models", *options, *arguments])
    return json.loads((folder / "out" / "results.json").read_text())


def test_table_and_results_of_the_workers(tool, monkeypatch, tmp_path, capsys):
    workers = {
        "keras_vit": Process(READY, [0.02, 0.04], 250),
        "keras-hub": Process({"skipped": "ImportError: no keras_hub"}),
        "timm": Process(READY, [0.01, 0.03], 230),
        "transformers": Process(READY, [0.02]),  # and then ends
        "matrix products": Process(READY, [0.005, 0.005], 210),
        "keras_vit, exact GELU": Process({"skipped": "not now"}),
    }
    monkeypatch.setattr(
        tool.models, "_start", lambda job, _: workers[job["name"]]
    )
    results = run(tool, tmp_path, "--batch", "4", "--rounds", "2")
    printed = capsys.readouterr().out
    lines = {line[:24].strip(): line for line in printed.splitlines()}
    assert "tiny, 224 px, step, batch 4, torch" in printed
    assert "ImportError: no keras_hub" in lines["keras-hub"]
    assert "--compile was not given" in printed
    assert "ended with status 3" in lines["transformers"]
    # Every process that was begun is ended, also the skipped.
    assert all(worker.killed for worker in workers.values())

    (rows,) = results["results"].values()
    rows = {row["name"]: row for row in rows}
    assert list(rows) == ["keras_vit", "timm", "matrix products"]
    ours = rows["keras_vit"]
    assert ours["images_per_second"] == 200
    assert (ours["best"], ours["median"]) == (0.02, 0.03)
    assert (ours["own_megabytes"], ours["libraries_megabytes"]) == (50, 200)
    table = (tmp_path / "out" / "results.md").read_text().splitlines()
    head, timm = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table
        if line.startswith(("|  |", "| timm |"))
    )
    timm = dict(zip(head, timm, strict=True))
    assert timm["ours is"] == "0.50x" and timm["by round"] == "0.62x"

    # An existing folder is kept; the error precedes the measurements.
    with pytest.raises(FileExistsError):
        run(tool, tmp_path)


def test_unknown_name_is_refused(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main(["models", "--only", "timmm"])
    assert "'timm, torch.compile'" in capsys.readouterr().err


@pytest.mark.slow
def test_benchmark_of_real_processes(tool, tmp_path):
    """Run a real process of this package and one of the matrix products."""
    only = ("matrix products", "keras_vit")
    options = ("--image-size", "32", "--batch", "2", "--rounds", "1")
    results = run(tool, tmp_path, *options, "--only", *only)["results"]
    (rows,) = results.values()
    assert sorted(row["name"] for row in rows) == sorted(only)
    for row in rows:
        assert 0 < row["best"] < 60
        assert row["libraries_megabytes"] > 20 and row["own_megabytes"] > 0


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
    dense = tool.dense
    both = (images, masks)
    # Logits of patches are resampled to pixels, which rounds the corners.
    assert dense.linear_iou(encoder, data, both, both) > 0.8
    assert dense.foreground_iou(encoder, *both, 255) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantized_models_in_keras_are_saved_and_timed(tool, encoder, tmp_path):
    runs = dict(tool.quantized.keras_runs(encoder, tmp_path))
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3))
    expected = runs["Keras"](images)
    assert list(runs) == ["Keras", "Keras int8", "Keras int4"]
    for name, run in runs.items():
        assert (tmp_path / f"{name}.keras").is_file()
        assert (run(images) * expected).sum() > 0.9 * (expected**2).sum()
        assert tool.quantized.cpu_milliseconds(run, images, 2) > 0
