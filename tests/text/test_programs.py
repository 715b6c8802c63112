"""`keras-vit classify` and `keras-vit search`, with random towers."""

import csv
import json
import shutil
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit.config import TextConfig
from keras_vit.text import Tokenizer
from keras_vit_programs import charts, classifiers, command, flags
from tests import golden_data
from tests.harness import numpy
from tests.small import randomize, tiny
from tests.training.pictures import encode, noise, write_folder

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("tensorflow")
pytest.importorskip("tokenizers")
pytest.importorskip("ftfy")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def model():
    file = golden_data.folder("clip_tokens") / "bpe_simple_vocab_16e6.txt.gz"
    tokenizer = Tokenizer.of(file, 16)
    ids = json.loads(tokenizer.model)["model"]["vocab"]
    text = TextConfig(
        vocabulary_size=len(ids),
        context_length=16,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        projection_size=10,
    )
    model = keras_vit.DualEncoder(
        tiny(classes=10, pooling="token", pre_norm=True),
        keras_vit.text.TextEncoder(text),
        tokenizer=tokenizer,
    )
    randomize(model.encoder)
    randomize(model.text_encoder)
    return model


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    """A folder with clip.keras, plain.keras and photos/0.png to 2.png."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["keras-vit"])
    # Commands replace it.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    keras_vit.save(model, "clip.keras")
    keras_vit.save(tiny(), "plain.keras")
    pictures = {f"{i}.png": encode(noise(8, 12, seed=i)) for i in range(3)}
    write_folder(tmp_path / "photos", pictures)
    return tmp_path


def embedded(model, seeds=(0, 1, 2)):
    images = np.stack([noise(8, 12, seed=i) for i in seeds])
    return numpy(model.encode_images(keras_vit.preprocess_input(images, mode="tf")))


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def refused(capsys, *line):
    with pytest.raises(SystemExit):
        command.main([*line])
    return capsys.readouterr().err


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_classify(model, folder, capsys):
    line = "classify clip.keras photos --names cat,dog --top 2 --explain --output out"
    line = [*line.split(), "--templates", "a drawing of a {}."]
    assert command.main(line) == 0
    texts = model.encode_texts(["a drawing of a cat.", "a drawing of a dog."])
    logits = numpy(model.logits(embedded(model), texts))
    for row, (cat, dog) in zip(rows_of("out/predictions.csv"), logits, strict=True):
        assert row["class_1"] == ("cat" if cat > dog else "dog")
        expected = 1 / (1 + np.exp(-abs(cat - dog)))
        assert float(row["probability_1"]) == pytest.approx(expected, abs=1e-4)
    assert (folder / "out" / "explanations.png").exists()
    line = "classify clip.keras photos --names cat --image-size 8x16 --output 2"
    assert command.main(line.split()) == 0
    found = refused(capsys, "classify", "plain.keras", "photos", "--names", "a,b")
    assert "'plain.keras' has no text tower, which --names requires" in found
    assert "--names" in refused(capsys, "classify", "clip.keras", "photos")


@pytest.mark.parametrize("has_text", [True, False])
def test_a_text_tower_that_is_used_is_no_surplus(has_text, recwarn):
    source = str(golden_data.folder("open_clip_quick"))
    config = flags.Trained(weights=source)
    classifiers.load_trained(config, has_text)
    messages = "".join(str(each.message) for each in recwarn)
    assert ("not part of the image model" in messages) != has_text


def test_search(model, folder, capsys, monkeypatch):
    line = ["search", "photos", "a red car", "--weights", "clip.keras"]
    assert command.main(line) == 0
    cosines = embedded(model) @ numpy(model.encode_texts(["a red car"]))[0]
    rows = rows_of("runs/search/search.csv")
    order = np.argsort(-cosines)
    assert [x["file"] for x in rows] == [f"photos/{i}.png" for i in order]
    found = [float(x["cosine"]) for x in rows]
    np.testing.assert_allclose(found, cosines[order], atol=1e-3)
    assert (folder / "runs/search/search.png").exists()
    assert "of which 3 are new" in capsys.readouterr().out

    read, predict = [], keras_vit.evaluation.predict_dataset
    monkeypatch.setattr(
        keras_vit.evaluation,
        "predict_dataset",
        lambda *given: read.append(given[2]) or predict(*given),
    )
    shutil.move("photos", "moved")
    line = "search moved --like moved/1.png --weights clip.keras --top 1 --output out"
    assert command.main(line.split()) == 0
    assert not read  # the images are known by their content
    cosines = embedded(model) @ embedded(model)[1]
    (row,) = rows_of("out/search.csv")
    assert row["file"] == f"moved/{max((0, 2), key=lambda i: cosines[i])}.png"
    (folder / "moved" / "3.png").write_bytes(encode(noise(8, 12, seed=3)))
    assert command.main([*line.split(), "--overwrite"]) == 0
    line = "search moved --like moved/1.png --weights plain.keras"
    assert command.main(line.split()) == 0
    assert read == [1, 4]  # the new image, and all for another model


def test_bad_images_are_left_out(folder, capsys):
    (folder / "photos" / "0.jpg").write_text("no image")
    content = encode(noise(8, 12, seed=4))
    (folder / "photos" / "4.png").write_bytes(content[:-20] + bytes(8) + content[-12:])
    for line, file in (
        ("classify clip.keras photos --names cat,dog", "predict/predictions"),
        ("explain clip.keras photos --names cat,dog", "explain/predictions"),
        ("search photos car --weights clip.keras", "search/search"),
    ):
        with pytest.warns(UserWarning, match="2 of 5 images cannot be used") as found:
            assert command.main(line.split()) == 0
        (text,) = (str(w.message) for w in found if "cannot be used" in str(w.message))
        assert "0.jpg' is not a" in text and "4.png' cannot be read" in text
        assert len(rows_of(f"runs/{file}.csv")) == 3
    line = "search photos --like photos/0.jpg --weights clip.keras".split()
    assert "photos/0.jpg' is not a JPEG" in refused(capsys, *line)
    line = "classify clip.keras photos/0.jpg --names cat,dog".split()
    assert "No image can be used: 'photos/0.jpg' is not a" in refused(capsys, *line)


def test_duplicates(folder, capsys):
    """A copy of an image is the only pair, and a cosine of -1 finds all six."""
    shutil.copy("photos/1.png", "photos/copy.png")
    line = "search photos --duplicates 0.9999 --weights plain.keras --output out"
    assert command.main(line.split()) == 0
    (row,) = rows_of("out/duplicates.csv")
    assert [row["file"], row["duplicate"]] == ["photos/1.png", "photos/copy.png"]
    assert row["cosine"] == "1.0000" and (folder / "out/duplicates.png").exists()
    assert "1 pair of 4 images" in capsys.readouterr().out
    line = line.replace("0.9999", "-1").replace("output out", "output all")
    assert command.main([*line.split(), "--top", "2"]) == 0
    found = [float(row["cosine"]) for row in rows_of("all/duplicates.csv")]
    assert len(found) == 6 and found == sorted(found, reverse=True)
    assert "6 pairs of 4 images" in capsys.readouterr().out


def test_pictures_of_pairs_show_folders(folder, monkeypatch):
    """Two files may have the same name, in one folder or in two."""
    shutil.copytree("photos", "more/of/them/a")
    figures, plot = [], charts.plot_found
    monkeypatch.setattr(
        charts, "plot_found", lambda *given: figures.append(plot(*given)) or figures[-1]
    )

    def titles(*folders):
        line = "--duplicates 0.9999 --weights plain.keras --overwrite --output out"
        assert command.main(["search", "--images", *folders, *line.split()]) == 0
        shown = [axes.get_title() for axes in figures[-1].axes]
        return {title.removeprefix("1.0000  ") for title in shown} - {""}

    shutil.copytree("photos", "more/b")
    assert titles("more") >= {"of/them/a/0.png", "b/0.png"}
    assert titles("more/b", "photos") >= {"b/0.png", "photos/0.png"}
    pairs = figures[-1].subfigs
    assert [len(part.axes) for part in pairs] == [2] * 4  # three, and an empty place
    *colors, empty = (part.get_facecolor() for part in pairs)
    assert len({*colors}) == 1 and empty not in colors


@pytest.mark.parametrize(
    "line, words",
    [
        ("photos car --weights plain.keras", "no text tower, which --text requires"),
        ("photos --weights clip.keras", "one of --text, --like and"),
        (
            "photos car --like photos/0.png --weights clip.keras",
            "one of --text, --like and",
        ),
        ("nothing car --weights clip.keras", "no file or folder 'nothing'"),
    ],
)
def test_what_search_refuses(line, words, folder, capsys):
    assert words in refused(capsys, "search", *line.split())
