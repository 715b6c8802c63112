"""`--max-tokens`: a run, its resuming, and what reads its model."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import load_classifier
from keras_vit.training import command_line
from tests.recipes import programs
from tests.training.test_token_budget import folder  # noqa: F401

recipe = programs.load("finetune_cifar")


def run(**settings):
    recipe.main(recipe.Config(**settings))


@pytest.mark.suite("torch")
@pytest.mark.slow
@pytest.mark.usefixtures("small_model", "eager")
def test_a_run_resumes_and_is_read(tmp_path, folder, capsys):  # noqa: F811
    settings = {
        "dataset": str(folder),
        "model": "compact-vit",
        "image_size": 32,
        "patch_size": 8,
        "max_tokens": 12,
        "batch_size": 4,
        "steps": 4,
        "evaluate_every": 2,
        "checkpoint_every": 1,
    }
    run(**settings, output=str(tmp_path / "straight"))
    with programs.interrupted(3):
        run(**settings, output=str(tmp_path / "crashed"))
    with pytest.raises(command_line.UserError, match="max_tokens was 12"):
        changed = {**settings, "max_tokens": 16}
        run(**changed, output=str(tmp_path / "crashed"))
    run(**settings, output=str(tmp_path / "crashed"))
    programs.assert_same_runs(tmp_path / "crashed", tmp_path / "straight")

    # The saved model is one of images of one size, and is read as trained.
    weights = tmp_path / "straight"
    model = keras.models.load_model(weights / "model.keras")
    assert model.input_shape == (None, 32, 32, 3)
    trained = load_classifier(str(weights))
    assert trained.budget.max_tokens == 12
    assert len(trained.predictor.inputs) == 3
    teacher = keras_vit.distillation.load_teacher(str(weights))
    assert teacher.input_shape == (None, None, None, 3)
    # An image size that is asked for is not ignored.
    square = load_classifier(str(weights), image_size=32)
    assert square.budget is None and len(square.predictor.inputs) == 1
    for name, arguments in (
        ("evaluate", ()),
        ("few_shot", ("--shots", 1, "--neighbours", 1)),
        ("predict", ("--images", folder / "test", "--explain")),
    ):
        output = tmp_path / name
        programs.run(name, "--weights", weights, *arguments, "--output", output)
    results = json.loads((tmp_path / "evaluate/results.json").read_text())
    assert results["reading"]["image_size"]["max_tokens"] == 12
    summary = json.loads((weights / "config.json").read_text())
    np.testing.assert_allclose(results["accuracy"], summary["test_accuracy"])
