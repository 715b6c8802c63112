"""The ablation's recipe: short runs, in this process."""

import json

import keras
import pytest

import keras_vit
from keras_vit_programs import flags
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")

recipe = programs.load("ablate_position_embedding")


def config(output, **options):
    options = {
        "steps": 2,
        "batch_size": 128,
        "patch_size": 4,
        "settings": "none,relative/every_layer_shared",
        **options,
    }
    return recipe.Config(output=str(output), strategy="none", **options)


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_interrupted_ablation_resumes_and_writes_the_table(tmp_path, capsys):
    output = tmp_path / "out"
    recipe.main(config(output, settings="none"))
    result = output / "none-stem" / "few_shot.json"
    first = result.read_text()
    # A model that was trained but not measured is not trained again.
    result.unlink()
    recipe.main(config(output))
    assert result.read_text() == first
    recipe.main(config(output))
    assert capsys.readouterr().out.count("done before") == 2
    for name in recipe.FILES:
        assert (output / name).stat().st_size > 0
    rows = json.loads((output / "results.json").read_text())["rows"]
    assert [row["positions"] for row in rows] == ["none", "relative"]
    assert all(0 <= row["few_shot"] <= 1 for row in rows)
    line = (output / "table.txt").read_text().splitlines()[2]
    assert line.split() == ["relative", "-", "-", f"{rows[1]['few_shot']:.4f}"]
    model = keras.models.load_model(
        output / "relative-every_layer_shared" / "model.keras"
    )
    # As wide as they start, and two steps.
    offsets = model.get_layer("position_embedding_shared").offsets
    assert 0.3 < keras.ops.convert_to_numpy(offsets).std() < 0.7

    with pytest.raises(flags.UserError, match="steps was 2"):
        recipe.main(config(output, steps=3))


def test_settings_are_parsed():
    def asked(text):
        return recipe.settings_of(recipe.Config(settings=text))

    assert len(asked("all")) == 10
    both = [("learned_2d", "stem"), ("none", "stem")]
    assert asked("learned_2d/stem, none") == both
    layers = ("every_layer", "every_layer_shared")
    assert asked("relative") == [("relative", name) for name in layers]
    assert asked("sincos2d/every_layer") == [("sincos2d", "every_layer")]
    for wrong in ("rotary", "relative/stem", "none/every_layer", ""):
        with pytest.raises(ValueError, match=f"no '{wrong}'.*relative/every"):
            asked(wrong)


def test_each_pooling_has_its_learning_rate():
    data = keras_vit.data.load_dataset("digits")
    for pooling, rate in recipe.RATES.items():
        found = recipe.resolve_config(recipe.Config(pooling=pooling), data)
        assert found.learning_rate == rate
    given = recipe.Config(pooling="token", learning_rate=0.1)
    assert recipe.resolve_config(given, data).learning_rate == 0.1
