import json

import numpy as np
import pytest

from keras_vit import evaluation
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_ten_shots_are_better_than_one(trained_run, tmp_path, capsys):
    output = tmp_path / "out"
    programs.run(
        "few_shot", "--weights", trained_run, "--shots", 1, 10,
        "--l2", 32, 1024, "--output", output,
    )  # fmt: skip
    results = json.loads((output / "results.json").read_text())
    rows = {(r["shots"], r["l2"]): r for r in results["few_shot"]}
    assert list(rows) == [(1, 32), (1, 1024), (10, 32), (10, 1024)]
    for l2 in (32, 1024):
        assert rows[10, l2]["accuracy"] > rows[1, l2]["accuracy"]
    with np.load(output / "features.npz") as stored:
        x, y, test_x, test_y = (
            stored[name]
            for name in ("train", "train_labels", "test", "test_labels")
        )
    assert x.shape == (1438, 64) and test_x.shape == (359, 64)
    expected = evaluation.few_shot(
        x, y, (1, 10), test_features=test_x, test_labels=test_y, l2=(32, 1024)
    )
    assert expected == results["few_shot"]
    assert results["linear_probe"] > rows[1, 1024]["accuracy"]
    assert results["nearest_neighbours"] > 0.5
    assert results["best_l2"] in (32, 1024)
    assert f"{rows[10, 32]['accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.backends("torch")
def test_linear_probe_is_skipped_for_large_datasets(capsys):
    recipe = programs.load("few_shot")
    imagenet = 1_281_167 * 1000
    config = recipe.Config(weights="x")
    assert recipe.probe_l2_of(config, imagenet) == 0
    printed = capsys.readouterr().out
    assert "1,281,167,000" in printed and "--probe-l2 0.001" in printed
    cifar100 = 50_000 * 100
    assert recipe.probe_l2_of(config, cifar100) == 0.001
    config = recipe.Config(weights="x", probe_l2=0.5)
    assert recipe.probe_l2_of(config, imagenet) == 0.5
    config = recipe.Config(weights="x", probe_l2=0.0)
    assert recipe.probe_l2_of(config, cifar100) == 0
    assert capsys.readouterr().out == ""


def test_wrong_flags_are_refused(trained_run, capsys, tmp_path):
    for arguments, match in (
        ((), "Give --weights"),
        (("--weights", trained_run, "--shots", 0), "--shots must be 1"),
        (("--weights", trained_run, "--seeds", 0), "--seeds must be 1"),
        (("--weights", trained_run, "--dataset", "digit"), "'digits'"),
    ):
        line = programs.refused(capsys, "few_shot", *arguments)
        assert match in line
    with pytest.warns(UserWarning, match="fewer than 5 images"):
        programs.run(
            "few_shot", "--weights", trained_run, "--max-train", 30,
            "--shots", 5, "--neighbours", 0, "--probe-l2", 0,
            "--output", tmp_path / "out",
        )  # fmt: skip
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "linear_probe" not in results
    assert results["few_shot"][0]["images"] <= 30
