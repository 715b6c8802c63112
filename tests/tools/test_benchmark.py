"""tools/benchmark.py: its table and files for the answers of its workers."""

import importlib
import json
import pathlib
import types

import numpy as np
import pytest

import keras_vit

pytestmark = pytest.mark.backends("torch")

TOOLS = pathlib.Path(__file__).parents[2] / "tools"
READY = {"built": 1, "first": 2, "first_peak": 300, "device": None}


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    tool = importlib.import_module("benchmark")
    tiny = tool.models.SIZES["Ti16"].__class__(
        16, 1, 2, 32, patch_size=8, image_size=16, classes=3
    )
    monkeypatch.setitem(tool.SIZES, "tiny", tiny)
    return tool


class Process:
    """Replaces a worker: reports that it is ready, then answers."""

    def __init__(self, ready, seconds=(), peak=0):
        answers = [ready, *({"seconds": s, "peak": peak} for s in seconds)]
        self.lines = [json.dumps(answer) for answer in answers]
        self.stdin = self.stdout = self
        self.asked, self.killed = [], False

    def readline(self):
        return self.lines.pop(0) if self.lines else ""

    def write(self, line):
        self.asked.append(line)

    def flush(self):
        pass

    def kill(self):
        self.killed = True

    def wait(self):
        return 3


def answered(**ready):
    return {**READY, "libraries": 200, "flops": None, **ready}


@pytest.fixture
def workers(tool, monkeypatch):
    """Processes by the names of torch's contenders."""
    workers = {
        "keras_vit": Process(answered(), [0.02, 0.04], 250),
        "keras-hub": Process({"skipped": "ImportError: no keras_hub"}),
        "timm": Process(answered(), [0.01, 0.03], 230),
        "transformers": Process(answered(), [0.02]),  # and then ends
        "matrix products": Process(answered(), [0.005, 0.005], 210),
        "matrix rate": Process(answered(flops=2e9), [0.5, 0.25], 900),
    }
    for name in tool.NAMES:
        workers.setdefault(name, Process({"skipped": "not now"}))
    monkeypatch.setattr(
        tool.models, "_start", lambda a, backend, name, *_: workers[name]
    )
    return workers


def run(tool, *arguments):
    tool.main(["models", "--backend", "torch", "--size", "tiny", *arguments])


def test_table_and_results_of_the_workers(tool, workers, tmp_path, capsys):
    folder = tmp_path / "out"
    options = ("--what", "step", "--batch", "4", "--rounds", "2")
    run(tool, *options, "--times", "5", "--output", str(folder))
    printed = capsys.readouterr().out
    lines = {line[:24].strip(): line for line in printed.splitlines()}
    assert "tiny at 16 px, step, batch 4, float32, torch" in printed
    assert "ImportError: no keras_hub" in lines["keras-hub"]
    assert "--compile was not given" in printed
    assert "ended with status 3" in lines["transformers"]
    # Every process that was begun is ended, also the skipped.
    left = {name for name, worker in workers.items() if not worker.killed}
    others = set(tool.NAMES) - set(tool.CONTENDERS["torch"])
    assert left - others == {
        name
        for name, c in tool.CONTENDERS["torch"].items()
        if c.option or "step" not in c.of
    }
    assert "keras_vit, ONNX" in left
    assert workers["keras_vit"].asked == ["5\n", "5\n"]

    results = json.loads((folder / "results.json").read_text())
    rows = {row["name"]: row for row in results["results"]}
    # 5 tokens, 4 patches of 8 x 8 x 3; a step is three forward passes.
    block = 5 * (4 * 16**2 + 2 * 16 * 32) + 2 * 5**2 * 16
    flops = 3 * 2 * 4 * (4 * 192 * 16 + block + 16 * 3)
    ours = rows["keras_vit"]
    assert ours["gigaflops_per_second"] == pytest.approx(flops / 0.02 / 1e9)
    assert ours["images_per_second"] == 200
    assert (ours["best"], ours["median"]) == (0.02, 0.03)
    assert ours["peak_megabytes"] == 250
    assert ours["libraries_megabytes"] == 200
    assert ours["own_megabytes"] == 50
    assert rows["matrix rate"]["gigaflops_per_second"] == 8
    assert rows["matrix rate"]["images_per_second"] is None
    assert results["versions"]["keras"] and results["machine"]["cores"]
    table = (folder / "results.md").read_text().splitlines()
    head, timm = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table
        if line.startswith(("|  |", "| timm |"))
    )
    timm = dict(zip(head, timm, strict=True))
    assert timm["of limit"] == timm["ours is"].strip("x") == "0.50"
    assert timm["MFU"] == f"{flops / 0.01 / 8e9:.2f}"
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")

    # Existing files are kept; the error precedes the measurements.
    with pytest.raises(ValueError, match="--overwrite"):
        run(tool, "--output", str(folder))


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["models", "--size", "B17"], "'B16', 'L16'"),
        (["models", "--only", "timmm"], "'timm', 'timm, torch.compile'"),
        (["models", "--backend", "mxnet"], "'jax', 'tensorflow', 'torch'"),
        (["scaling", "--what", "train"], "'inference', 'step'"),
        (["models", "--rounds", "0"], "positive integer"),
        (["speed"], "'models', 'scaling'"),
    ],
)
def test_unknown_names_are_refused(tool, capsys, arguments, expected):
    with pytest.raises(SystemExit):
        tool.main(arguments)
    assert expected in capsys.readouterr().err


def test_help_of_every_subcommand(tool, capsys):
    for kind in tool.KINDS:
        with pytest.raises(SystemExit) as end:
            tool.main([kind, "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        names = tool.KINDS[kind][3]
        for name in names.split():
            assert f"--{name.partition('=')[0]}" in text
        module = tool.KINDS[kind][1]
        assert module.__doc__ and module.__doc__.strip() in text


@pytest.mark.slow
def test_benchmark_of_real_processes(tool, tmp_path, capsys):
    """Run a real process of this package and one of the matrix products."""
    options = ("--what", "step", "--rounds", "1")
    only = ("--only", "keras_vit", "matrix products")
    run(tool, *options, *only, "--output", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [row["name"] for row in results] == list(only[1:])
    for row in results:
        assert 0 < row["best"] < 60
        assert 20 < row["libraries_megabytes"] <= row["peak_megabytes"]


def test_scaling_varies_batch_and_image_size(tool, monkeypatch, tmp_path):
    """The points are measured sequentially and plotted by the varied
    option."""
    monkeypatch.setattr(
        tool.models, "_start", lambda *_: Process(answered(), [0.5], 220)
    )
    points = ("--batches", "1", "4", "--image-sizes", "16", "32")
    tool.main(
        ["scaling", "--size", "tiny", "--rounds", "1", "--batch", "2", *points]
        + ["--output", str(tmp_path)]
    )
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(r["batch"], r["image_size"]) for r in results] == [
        (1, 16),
        (4, 16),
        (2, 16),
        (2, 32),
    ]
    assert [r["images_per_second"] for r in results] == [2, 8, 4, 4]
    assert "batch 2" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.png").exists()


@pytest.fixture
def encoder():
    return keras_vit.VisionTransformer(
        input_shape=(32, 32, 3),
        patch_size=8,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=32,
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
