"""The diffs of docs/customize.md apply to the recipe and run, and the program of
docs/program.md resumes bit for bit. `tests/test_docs.py` runs its other Python."""

import importlib.util
import pathlib
import re

import keras
import pytest

from keras_vit import training
from keras_vit.models import Model
from tests.recipes import programs
from tests.training.pictures import noise, write_folder

pytestmark = pytest.mark.usefixtures("few_files")
DOCS = pathlib.Path(__file__).parents[2] / "docs"
# The name, the number of added lines and the text of each diff.
DIFFS = {
    name: (int(count), diff)
    for name, count, diff in re.findall(
        r"\*\*([^*\n]+)\*\* \((\d+) lines\)(?:(?!\n## |```).)*"
        r"```diff\n(.*?)```",
        (DOCS / "customize.md").read_text(),
        re.DOTALL,
    )
}
(PROGRAM,) = [
    block
    for block in re.findall(
        r"```python\n(.*?)```", (DOCS / "program.md").read_text(), re.DOTALL
    )
    if "load_dataset" in block
]


def changed(*names):
    """Returns the recipe's text with diffs applied."""
    text = (programs.RECIPES / "finetune_cifar.py").read_text()
    for hunk in "@@\n".join(DIFFS[name][1] for name in names).split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
        new = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
        assert text.count("\n" + old) == 1, hunk
        text = text.replace("\n" + old, "\n" + new)
    return text


@pytest.fixture
def recipe(tmp_path):
    """Returns a function that runs the recipe with diffs applied."""

    def run(*names, output="run", **settings):
        path = tmp_path / "changed.py"
        path.write_text(changed(*names))
        spec = importlib.util.spec_from_file_location("changed", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        settings = {"batch_size": 16, "steps": 2, **settings}
        settings["output"] = str(tmp_path / output)
        module.main(module.Config(**settings))
        return tmp_path / output

    return run


@pytest.mark.backends("torch")
def test_stated_number_of_lines_matches_the_diff():
    assert len(DIFFS) == 4
    for name, (count, diff) in DIFFS.items():
        added = re.findall(r"^\+.*\S", diff, re.MULTILINE)
        assert len(added) == count, name


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_diffs_for_another_loss_and_an_augmentation(recipe, tmp_path, monkeypatch):
    """tests/training/test_accumulation.py has the numbers of its steps."""
    import tensorflow as tf

    images = {f"{i % 2}/{i}.png": noise(16, 16, seed=i) for i in range(12)}
    losses, compile_model = [], Model.compile
    calls, uniform = [], tf.random.stateless_uniform

    def compiled(model, **arguments):
        losses.append(arguments["loss"])
        return compile_model(model, **arguments)

    def drawn(*arguments):
        calls.append(arguments[2:])
        return uniform(*arguments)

    monkeypatch.setattr(Model, "compile", compiled)
    monkeypatch.setattr(tf.random, "stateless_uniform", drawn)
    photos = str(write_folder(tmp_path / "photos", images))
    settings = {"dataset": photos, "image_size": 8, "batch_size": 4}
    recipe("Another loss", "An augmentation", **settings)
    assert isinstance(losses[0], keras.losses.CategoricalFocalCrossentropy)
    assert (0.5, 1.0) in calls


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_diffs_for_another_metric_and_a_callback(recipe):
    """Training stops three evaluations after the best one."""
    # At this learning rate the loss rises soon.
    settings = {"steps": 15, "evaluate_every": 1, "learning_rate": 3.0}
    output = recipe("Another metric", "A callback", **settings)
    rows = programs.rows_of(output)
    assert float(rows[0]["test_top_5"]) >= float(rows[0]["test_accuracy"])
    losses = [float(row["test_loss"]) for row in rows]
    assert len(losses) < 15
    assert len(losses) == losses.index(min(losses)) + 1 + 3
    assert (output / "model.keras").exists()


def interrupt_after(monkeypatch, steps):
    """Interrupts training in the step after `steps` steps."""
    done, end = [], training.ResumableCheckpoint.on_train_batch_end

    def on_train_batch_end(callback, batch, logs=None):
        end(callback, batch, logs)
        done.append(batch)
        if len(done) == steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        training.ResumableCheckpoint, "on_train_batch_end", on_train_batch_end
    )


# A resumed run on every backend: tests/recipes/test_finetune_cifar.py.
@pytest.mark.slow
@pytest.mark.backends("torch")
def test_program_on_the_page_resumes(tmp_path, monkeypatch):
    text = PROGRAM.replace("64, 60, 20", "16, 6, 2")
    assert text != PROGRAM
    lines = [line for line in PROGRAM.splitlines() if line.strip()]
    assert len(lines) <= 40
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    exec(text, {})
    monkeypatch.chdir(tmp_path / "resumed")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            exec(text, {})
    names = {}
    exec(text, names)
    assert names["step"] == 4
    saved = "runs/mine/model.keras"
    programs.assert_same_weights(saved, tmp_path / "whole" / saved)
