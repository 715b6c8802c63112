"""The recipe of the scaling studies: short runs, in this process."""

import json

import pytest

from keras_vit_programs import flags
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")

recipe = programs.load("scale")


def config(output, **options):
    options = {"steps": 1, "batch_size": 128, **options}
    return recipe.Config(output=str(output), strategy="none", **options)


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_finished_models_are_not_trained_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recipe, "SHAPES", {"patches per side": {"8": {"grid": 8}}})
    small = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    monkeypatch.setitem(recipe.MODELS, "ViT-64x4", {**recipe.VIT, **small})
    output = tmp_path / "out"
    options = {"study": "shape", "image_size": 16}
    recipe.main(config(output, **options))
    report = (output / "report.md").read_text()
    assert "| patches per side | 8 |" in report and "(shape.png)" in report
    assert (output / "shape.png").stat().st_size > 0
    capsys.readouterr()

    recipe.main(config(output, **options))
    assert capsys.readouterr().out.count("done before") == 2
    assert (output / "report.md").read_text() == report

    first, finer = (
        json.loads((output / "models" / point.folder / "point.json").read_text())
        for point in recipe.points_of("shape", 1)
    )
    # 2 x 2 times the patches, and attention between them.
    ratio = finer["petaflops"] / first["petaflops"]
    assert 2**2 < ratio < 2**4
    assert 0 <= finer["accuracy"] <= 1 and 0 <= finer["few_shot"] <= 1

    with pytest.raises(flags.UserError, match="steps was 1.*empty folder"):
        recipe.main(config(output, **options, steps=2))


def test_models_of_all_studies_have_folders_of_their_own():
    points = {
        point for study in recipe.STUDIES for point in recipe.points_of(study, 400)
    }
    assert len({point.folder for point in points}) == len(points)
    assert recipe.studies_of(recipe.Config(study="all")) == recipe.STUDIES
