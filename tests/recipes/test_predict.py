import csv
import json

import keras
import numpy as np
import pytest
import sklearn.datasets

import keras_vit
from keras_vit.utils import downloads
from tests.recipes import programs
from tests.small import bit, randomize, tiny

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("tensorflow")


def first_digits():
    """Returns two digits with values from 0 to 1."""
    return sklearn.datasets.load_digits().images[:2, ..., None] / 16


@pytest.fixture
def pictures(tmp_path):
    """Digits 0 and 1 of scikit-learn's as they are, one in a sub-folder."""
    digits = first_digits()
    folder = tmp_path / "pictures"
    (folder / "sub").mkdir(parents=True)
    for pixels, name in zip(digits, ("zero.png", "sub/one.png"), strict=True):
        keras.utils.array_to_img(
            pixels * 255, data_format="channels_last", scale=False
        ).save(folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow", "torch")
def test_predictions_of_files_and_folders(pictures, trained_run, tmp_path, capsys):
    output, names = tmp_path / "out", tmp_path / "names.txt"
    names.write_text("\n".join(f"digit {i}" for i in range(10)))
    programs.run(
        "predict", "--weights", trained_run, "--output", output, "--explain",
        "--images", pictures / "zero.png", pictures, "--labels", names,
        "--top", 20,
    )  # fmt: skip
    metadata = json.loads((output / "predictions.json").read_text())
    found = {
        row["file"].rsplit("/", 1)[-1]: row["classes"]
        for row in metadata["predictions"]
    }
    assert len(metadata["predictions"]) == 2  # one was named twice
    model = keras.models.load_model(trained_run / "model.keras")
    images = np.floor(first_digits() * 255) / 127.5 - 1  # as in the files
    logits = model.predict(images, verbose=0).astype("float64")
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    printed = capsys.readouterr().out
    for row, name in zip(expected, ("zero.png", "one.png"), strict=True):
        best = np.argsort(-row)
        assert [c["name"] for c in found[name]] == [f"digit {i}" for i in best]
        np.testing.assert_allclose(
            [c["probability"] for c in found[name]], row[best], atol=1e-5
        )
        assert f"{name}  digit {best[0]} " in printed
    with open(output / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        classes = found[row["file"].rsplit("/", 1)[-1]]
        for i, known in enumerate(classes, start=1):
            assert row[f"class_{i}"] == known["name"]
            probability = float(row[f"probability_{i}"])
            assert probability == pytest.approx(known["probability"], rel=1e-5)
    assert (output / "explanations.png").read_bytes().startswith(b"\x89PNG")
    assert "explanations.png" in printed and "predictions.png" not in printed
    assert not (output / "predictions.png").exists()
    names.write_text("one\ntwo")
    line = programs.refused(
        capsys, "predict", "--weights", trained_run, "--images", pictures,
        "--labels", names, "--output", tmp_path / "other",
    )  # fmt: skip
    assert "one label for each of the 10 classes" in line


@pytest.mark.parametrize("most", [24, 1])
def test_explanations_show_the_relevance_of_the_most_likely_class(
    most, pictures, trained_run, tmp_path, monkeypatch
):
    """Also of more images than are drawn, whose predictions are computed before."""
    program = programs.load("predict")
    monkeypatch.setattr(program, "DRAWN", most)
    drawn = []

    def plot(*given):
        drawn.extend(given)
        return original(*given)

    original = keras_vit.inspection.plot_attention_heatmap
    monkeypatch.setattr(keras_vit.inspection, "plot_attention_heatmap", plot)
    files = [pictures / "sub/one.png", pictures / "zero.png"]
    program.main(
        program.Config(
            weights=str(trained_run),
            images=tuple(map(str, files)),
            explain=True,
            output=str(tmp_path / "out"),
        )
    )
    shown, heatmaps, titles = drawn
    pixels = np.floor(first_digits()[::-1][:most] * 255) / 255
    images = (pixels * 2 - 1).astype("float32")
    model = keras.models.load_model(trained_run / "model.keras")
    likely = model.predict(images, verbose=0).argmax(-1)
    assert [title.split()[-1] for title in titles] == [str(i) for i in likely]
    np.testing.assert_allclose(np.stack(shown)[..., :1], images, atol=1e-6)
    maps = keras_vit.inspection.relevance(model, images, likely)
    scale = np.abs(maps).max()
    np.testing.assert_allclose(heatmaps["relevance"], maps, atol=1e-4 * scale)


def test_the_class_of_the_title_is_explained(tmp_path, monkeypatch):
    """Also where an image that is resized would be of another class."""
    rng = np.random.default_rng(0)
    model = tiny(input_shape=(16, 16, 3), classes=3)
    randomize(model, 0.4)
    model.save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_text("a\nb\nc")
    (tmp_path / "images").mkdir()
    for i in range(8):
        pixels = np.kron(rng.integers(0, 256, (2, 8, 3)), np.ones((4, 4, 1)))
        picture = keras.utils.array_to_img(pixels, "channels_last", scale=False)
        picture.save(tmp_path / "images" / f"{i}.png")
    explained, relevance = [], keras_vit.inspection.relevance

    def spy(model, images, classes, **options):
        explained.append((model.predict(images, verbose=0).argmax(1), classes))
        return relevance(model, images, classes, **options)

    monkeypatch.setattr(keras_vit.inspection, "relevance", spy)
    programs.run(
        "predict", "--weights", tmp_path / "model.keras", "--max-tokens", 16,
        "--images", tmp_path / "images", "--labels", tmp_path / "names.txt",
        "--explain", "--output", tmp_path / "out",
    )  # fmt: skip
    found = json.loads((tmp_path / "out/predictions.json").read_text())
    titles = ["abc".index(x["classes"][0]["name"]) for x in found["predictions"]]
    ((resized, classes),) = explained
    assert classes.tolist() == titles and resized.tolist() != titles


@pytest.mark.parametrize("protocol, sides", [("simple", (20, 40)), ("mae", (16, 16))])
def test_explained_photographs_keep_their_aspect(
    protocol, sides, tmp_path, monkeypatch
):
    """Unless the protocol crops them: the maps are of what the model sees."""
    model = tiny(input_shape=(16, 16, 3), classes=2)
    randomize(model, 0.4)
    model.save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_text("a\nb")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 40, 3))
    keras.utils.array_to_img(pixels, "channels_last").save(tmp_path / "wide.png")
    drawn, plot = [], keras_vit.inspection.plot_attention_heatmap

    def spy(images, *given):
        drawn.extend(image.shape[:2] for image in images)
        return plot(images, *given)

    monkeypatch.setattr(keras_vit.inspection, "plot_attention_heatmap", spy)
    programs.run(
        "predict", "--weights", tmp_path / "model.keras", "--protocol", protocol,
        "--images", tmp_path / "wide.png", "--labels", tmp_path / "names.txt",
        "--explain", "--output", tmp_path / "out",
    )  # fmt: skip
    assert drawn == [sides]


def test_classes_are_numbered_without_imagenets_names(pictures, tmp_path, monkeypatch):
    model = tiny(input_shape=(16, 16, 3), classes=1000)
    model.save(tmp_path / "model.keras")

    def fetch(*given, **options):
        raise OSError("no network")

    monkeypatch.setattr(downloads, "fetch", fetch)
    with pytest.warns(UserWarning, match="--labels FILE.*no network"):
        programs.run(
            "predict", "--weights", tmp_path / "model.keras", "--images", pictures,
            "--output", tmp_path / "out", "--top", 1000,
        )  # fmt: skip
    metadata = json.loads((tmp_path / "out" / "predictions.json").read_text())
    names = {one["name"] for one in metadata["predictions"][0]["classes"]}
    assert names == {f"class {i}" for i in range(1000)}


def test_unknown_classes_are_numbered_but_not_outputs_of_clip(
    pictures, tmp_path, capsys
):
    path = tmp_path / "model.keras"
    given = ("--weights", path, "--images", pictures, "--output", tmp_path / "out")
    tiny(input_shape=(16, 16, 3), classes=7, pre_norm=True).save(path)
    assert "give --names" in programs.refused(capsys, "predict", *given)
    tiny(input_shape=(16, 16, 3), classes=7).save(path)
    with pytest.warns(UserWarning, match="names of the 7 classes are unknown"):
        programs.run("predict", *given)
    assert "class_1" in (tmp_path / "out" / "predictions.csv").read_text()
    text = (tmp_path / "out" / "predictions.json").read_text()
    names = {x["name"] for x in json.loads(text)["predictions"][0]["classes"]}
    assert names <= {f"class {i}" for i in range(7)} and len(names) == 5


def test_a_model_without_attention_is_not_explained(pictures, tmp_path, capsys):
    bit().save(tmp_path / "bit.keras")
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\nfour")
    line = programs.refused(
        capsys, "predict", "--weights", tmp_path / "bit.keras", "--explain",
        "--images", pictures, "--labels", tmp_path / "names.txt",
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert "has no attention" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_bad_images_are_reported(pictures, trained_run, tmp_path, capsys):
    whole = (pictures / "zero.png").read_bytes()
    (pictures / "half.png").write_bytes(whole[: len(whole) // 2])
    arguments = (
        "--weights", trained_run, "--images", pictures,
        "--output", tmp_path / "out",
    )  # fmt: skip
    with pytest.warns(UserWarning, match="half.png"):
        programs.run("predict", *arguments)
    metadata = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert metadata["skipped"] == 1 and len(metadata["predictions"]) == 2
    arguments = (*arguments[:3], pictures / "half.png", "--output", tmp_path / "none")
    line = programs.refused(capsys, "predict", *arguments)
    assert "No image can be used: " in line and "half.png" in line
    assert not (tmp_path / "none").exists()


def test_a_classifier_predicts_files_as_the_program_does(
    pictures, trained_run, tmp_path
):
    programs.run(
        "predict", "--weights", trained_run, "--images", pictures, "--output",
        tmp_path / "out",
    )  # fmt: skip
    printed = json.loads((tmp_path / "out/predictions.json").read_text())
    classifier = keras_vit.evaluation.load_classifier(str(trained_run))
    found = classifier.predict(pictures)
    assert [str(path) for path in found] == [x["file"] for x in printed["predictions"]]
    for classes, expected in zip(found.values(), printed["predictions"], strict=True):
        names, chances = zip(*((name, p) for _, name, p in classes), strict=True)
        assert list(names) == [x["name"] for x in expected["classes"]]
        np.testing.assert_allclose(
            chances, [x["probability"] for x in expected["classes"]], rtol=1e-5
        )
    (((_, best, _),),) = classifier.predict(pictures / "zero.png", top=1).values()
    assert best == found[pictures / "zero.png"][0][1]
