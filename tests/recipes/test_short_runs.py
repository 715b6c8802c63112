"""An interrupted run of a recipe ends as an uninterrupted one, bit for bit,
and the model of `--max-tokens` is read as trained.

tests/training/test_distillation.py resumes one with a teacher, test_sweep.py a
sweep, and test_notebook.py and test_finetune_page.py those programs.
"""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import load_classifier
from keras_vit_programs import flags
from tests.recipes import programs, runs

ENCODER = ("encoder.keras", "model.keras")
ON_TORCH = pytest.mark.suite("torch")


# The step after which a run is interrupted, before its checkpoint is saved or
# between two; a flag that must not change, and the words of the error.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, step, changed, words",
    [
        # With micro-batches and averaged weights.
        ("finetune", 2, {"batch_size": 32}, "batch_size was 64 and is 32"),
        ("head", 3, {"features": "each-step"}, "features was 'once'"),
        *(
            pytest.param(*case, marks=ON_TORCH)
            for case in (
                ("max tokens", 3, {"max_tokens": 16}, "max_tokens was 12"),
                ("pretrain", 3, {}, None),
                ("dino", 2, {}, None),
                ("mae", 5, {}, None),
                ("pairs", 3, {"method": "clip"}, "method was 'siglip'"),
                ("segment", 9, {}, None),
                ("fcos", 9, {}, None),
                ("yolos", 9, {}, None),
            )
        ),
        pytest.param("mocov3", 2, {}, None, marks=pytest.mark.nightly),
    ],
)
def test_interrupted_run_resumes_bit_for_bit(
    name, step, changed, words, finished, data_folders, tmp_path, capsys
):
    given = (name, data_folders, tmp_path / "run")
    with programs.interrupted(step):
        runs.train(*given)
    assert not (tmp_path / "run" / "config.json").exists()
    if changed:
        with pytest.raises(flags.UserError, match=words) as error:
            runs.train(*given, **changed)
        assert "\n" not in str(error.value)
    assert "resuming" not in capsys.readouterr().out
    folder = runs.train(*given)
    assert "resuming" in capsys.readouterr().out
    files = ENCODER if (folder / "encoder.keras").exists() else ()
    programs.assert_same_runs(folder, finished(name), *files)
    assert not (folder / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:1 of 6 images cannot be used")
def test_a_run_resumes_with_the_images_that_it_began_with(tmp_path, capsys):
    """Their order depends on their number, and labels on class names. A damaged
    image is replaced, after `skip_bad_images` has named it."""
    data = runs.folders(tmp_path / "data")
    given = ("max tokens", data, tmp_path / "run")
    with programs.interrupted(3):
        runs.train(*given)
    train, test = data / "sizes" / "train", data / "sizes" / "test"
    first, content = train / "a" / "0.png", (train / "a" / "0.png").read_bytes()
    damaged = content[: len(content) // 2]
    changes = (
        ({train / "a/new.png": content}, "number of training images was 6 and is 7"),
        ({test / "b/new.png": content}, "number of test images was 6 and is 7"),
        ({train / "c/0.png": content, test / "c/0.png": content}, "gained ['c']"),
        ({first: damaged}, "number of training images was 6 and is 5"),
    )
    for files, words in changes:
        for path, body in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body)
        with pytest.raises(flags.UserError) as error:
            runs.train(*given, skip_bad_images=True)
        assert words in str(error.value) and "restore" in str(error.value)
        for path in files:
            path.unlink()
            if path.parent.name == "c":
                path.parent.rmdir()
        first.write_bytes(content)
    assert "resuming" not in capsys.readouterr().out
    runs.train(*given, skip_bad_images=True)
    assert "resuming" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:The patch embedding of")
def test_evaluate_at_another_size(trained_run, tmp_path, capsys):
    """Of digits of twice the size, patches of twice the size are better."""
    flags = ("--weights", trained_run / "model.npz", "--image-size", 16)
    flags += ("--split", "all", "--bins", 7)
    accuracies = []
    for i, size in enumerate(((), ("--patch-size", 4))):
        output = tmp_path / str(i)
        programs.run("evaluate", *flags, *size, "--output", output)
        results = json.loads((output / "results.json").read_text())
        assert results["images"] == 1797 and results["calibration_bins"] == 7
        assert results["reading"]["image_size"] == 16
        accuracies.append(results["accuracy"])
    assert accuracies[1] > accuracies[0]
    printed = " ".join(capsys.readouterr().out.split())
    assert "size 16 from an argument" in printed and "protocol simple from" in printed


@pytest.mark.suite("torch")
@pytest.mark.slow
def test_a_run_is_read_as_it_was_trained(finished, data_folders, tmp_path):
    weights = finished("max tokens")
    # The saved model is one of images of one size.
    model = keras.models.load_model(weights / "model.keras")
    assert model.input_shape == (None, 32, 32, 3)
    trained = load_classifier(str(weights))
    assert trained.budget.max_tokens == 12
    assert len(trained.predictor.inputs) == 3
    teacher = keras_vit.distillation.as_teacher(trained)
    assert teacher.input_shape == (None, None, None, 3)
    # An image size that is asked for is not ignored.
    square = load_classifier(str(weights), image_size=32)
    assert square.budget is None and len(square.predictor.inputs) == 1
    images = data_folders / "sizes" / "test" / "a"
    for name, arguments in (
        ("evaluate", ()),
        ("few_shot", ("--shots", 1, "--neighbors", 1, "--probe-l2", 0)),
        ("predict", ("--images", images, "--explain")),
    ):
        output = tmp_path / name
        programs.run(name, "--weights", weights, *arguments, "--output", output)
    results = json.loads((tmp_path / "evaluate/results.json").read_text())
    assert results["reading"]["image_size"]["max_tokens"] == 12
    summary = json.loads((weights / "config.json").read_text())
    np.testing.assert_allclose(results["accuracy"], summary["test_accuracy"])
