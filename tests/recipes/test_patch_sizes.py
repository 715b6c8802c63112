"""`finetune_cifar.py --patch-sizes`: training for several patch sizes."""

import json

import keras
import pytest

import keras_vit
from keras_vit.models.loading import weights_by_path
from keras_vit.training import command_line
from tests.recipes import programs

recipe = programs.load("finetune_cifar")
SETTINGS = {
    "image_size": 12,
    "patch_size": 3,
    "patch_sizes": (2, 3, 6),
    "batch_size": 32,
    "learning_rate": 0.01,
}


def run(**settings):
    recipe.main(recipe.Config(**settings))


def refused(match, **settings):
    with pytest.raises(command_line.UserError, match=match) as error:
        run(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.suite("torch")
@pytest.mark.slow
@pytest.mark.usefixtures("small_model", "eager")
def test_a_run_resumes_bit_for_bit(tmp_path):
    settings = {**SETTINGS, "steps": 4, "checkpoint_every": 1}
    run(**settings, output=str(tmp_path / "straight"))
    with programs.interrupted(2):
        run(**settings, output=str(tmp_path / "crashed"))
    refused(
        r"patch_sizes was \[2, 3, 6\] and is \[2, 3\]",
        **{**settings, "patch_sizes": (2, 3)},
        output=str(tmp_path / "crashed"),
    )
    run(**settings, output=str(tmp_path / "crashed"))
    programs.assert_same_runs(tmp_path / "crashed", tmp_path / "straight")

    # It is an ordinary Vision Transformer, and a file of the paper's layout.
    found = keras.models.load_model(tmp_path / "crashed" / "model.keras")
    kernel = weights_by_path(found)["patch_embedding/kernel"]
    assert kernel.shape == (3, 3, 1, 16)
    file = tmp_path / "crashed" / "model.npz"
    for size in (2, 6):
        with pytest.warns(UserWarning, match="pseudo-inverse"):
            model = keras_vit.converters.load(
                file, num_heads=2, patch_size=size, input_shape=(12, 12, 1)
            )
        assert model.get_layer("patch_embedding").patch_size == (size, size)


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("small_model")
def test_flags_that_do_not_fit_are_refused(tmp_path):
    output = {"output": str(tmp_path / "run")}
    refused(
        "Received: 5 of 3, 5, and images of 12 x 12 pixels",
        **{**SETTINGS, "patch_sizes": (3, 5)},
        **output,
    )
    for model in ("compact-hybrid", "compact-bit"):
        for flag, value in (("patch-sizes", (2, 4)), ("max-tokens", 9)):
            refused(
                f"--{flag} is for Vision Transformers",
                model=model,
                **{flag.replace("-", "_"): value},
                **output,
            )


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:The patch embedding of")
def test_evaluate_resizes_patches(trained_run, tmp_path, capsys):
    arguments = ("evaluate", "--weights", trained_run, "--image-size", 16)
    accuracies = []
    for i, size in enumerate(((), ("--patch-size", 4))):
        output = tmp_path / str(i)
        programs.run(*arguments, *size, "--output", output)
        results = json.loads((output / "results.json").read_text())
        accuracies.append(results["accuracy"])
    # Digits of twice the size, in patches of twice the size.
    assert accuracies[1] > accuracies[0]
    line = programs.refused(
        capsys, "evaluate", "--weights", trained_run, "--patch-size", 3
    )
    assert "does not divide an image of 8 x 8" in line
