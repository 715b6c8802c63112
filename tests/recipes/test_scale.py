"""The recipe of the scaling studies: short runs, in this process."""

import json

import numpy as np
import pytest

from keras_vit.training import command_line
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")

recipe = programs.load("scale")


def config(output, **options):
    options = {"steps": 1, "batch_size": 128, **options}
    return recipe.Config(output=str(output), strategy="none", **options)


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_finished_models_are_not_trained_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recipe, "SIZES", (1.0, 1.5))
    small = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    monkeypatch.setitem(recipe.MODELS, "ViT-64x4", {**recipe.VIT, **small})
    output = tmp_path / "out"
    options = {"study": "resolution", "image_size": 16}
    recipe.main(config(output, **options))
    report = (output / "report.md").read_text()
    assert "| 24 px |" in report and "(resolution.png)" in report
    assert (output / "resolution.png").stat().st_size > 0
    capsys.readouterr()

    recipe.main(config(output, **options))
    assert capsys.readouterr().out.count("done before") == 2
    assert (output / "report.md").read_text() == report

    (first, tuned) = (
        json.loads((output / "models" / point.folder / "point.json").read_text())
        for point in recipe.points_of("resolution", 1)
    )
    # 1.5 x 1.5 times the patches, and attention between them.
    ratio = tuned["petaflops"] / first["petaflops"]
    assert 1.5**2 < ratio < 1.5**4
    assert 0 <= tuned["accuracy"] <= 1 and 0 <= tuned["few_shot"] <= 1

    with pytest.raises(command_line.UserError, match="steps was 1.*--overwrite"):
        recipe.main(config(output, **options, steps=2))


def test_models_of_all_studies_have_folders_of_their_own():
    points = {
        point for study in recipe.STUDIES for point in recipe.points_of(study, 400)
    }
    assert len({point.folder for point in points}) == len(points)
    assert recipe.studies_of(recipe.Config(study="all")) == recipe.STUDIES


def test_patches_are_removed_and_shuffled():
    images = np.random.default_rng(0).uniform(1, 2, (3, 16, 16, 1))
    removed = recipe.remove_patches(images, 0.25, 4, seed=0)
    assert (removed == 0).mean() == 0.25
    patches = removed.reshape(3, 4, 4, 4, 4).transpose(0, 1, 3, 2, 4)
    whole = (patches == 0).reshape(3, 16, 16).mean(-1)
    assert set(np.unique(whole)) == {0, 1}
    np.testing.assert_array_equal(images[removed != 0], removed[removed != 0])

    shuffled = recipe.shuffle_patches(images, 4, seed=0)
    assert (shuffled != images).any()
    for before, after in zip(images, shuffled, strict=True):
        parts = before.reshape(4, 4, 4, 4).swapaxes(1, 2).reshape(16, 16)
        moved = after.reshape(4, 4, 4, 4).swapaxes(1, 2).reshape(16, 16)
        assert sorted(map(tuple, parts)) == sorted(map(tuple, moved))
    unchanged = recipe.shuffle_patches(images, 1, seed=0)
    np.testing.assert_array_equal(unchanged, images)
