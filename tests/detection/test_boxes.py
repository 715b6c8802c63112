"""Datasets with boxes: annotations, crops, digits, and errors."""

import io
import json
import types

import numpy as np
import pytest

from keras_vit.data import load_detection
from keras_vit.data.steps import places
from keras_vit.data.steps.places import crop_boxes
from keras_vit.evaluation import coco_metrics
from keras_vit.evaluation.coco import targets_by_image

pytestmark = pytest.mark.backends("torch")


IDS = {"cat": 3, "dog": 7}
HEADER = "path,class,x_min,y_min,x_max,y_max\n"


def write(folder, kind="csv", train=(), test=(), ids=IDS):
    """Two images of 40 x 20 pixels, with these and other boxes."""
    image = pytest.importorskip("PIL.Image").new("RGB", (40, 20))
    for part, more in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        image.save(folder / part / "a.png")
        image.save(folder / part / "b.png")
        rows = [("a.png", "cat", 10, 5, 30, 15), ("a.png", "dog", 0, 0, 4, 4)]
        rows += more
        if kind == "csv":
            lines = ["path,class,x_min,y_min,x_max,y_max", "b.png,,,,,"]
            lines += [",".join(map(str, row)) for row in rows]
            # Spreadsheet programs write a byte order mark.
            (folder / f"{part}.csv").write_text("\n".join(lines), "utf-8-sig")
            continue
        annotations = [
            {
                "id": i,
                "image_id": 2 if path == "a.png" else 9,
                "category_id": ids.get(name, 99),
                "bbox": [x, y, right - x, bottom - y],
                "iscrowd": 0,
            }
            for i, (path, name, x, y, right, bottom) in enumerate(rows)
        ]
        annotations.append({**annotations[0], "iscrowd": 1})
        annotations.append({**annotations[0], "bbox": [5, 5, 3.5, 0.0]})
        content = {
            "images": [
                {"id": 9, "file_name": "b.png"},
                {"id": 2, "file_name": "a.png"},
            ],
            "categories": [{"id": i, "name": n} for n, i in ids.items()],
            "annotations": annotations,
        }
        (folder / f"{part}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_annotations_are_read(kind, tmp_path):
    data = load_detection(write(tmp_path, kind))
    assert data.class_names == ("cat", "dog")
    assert (data.num_train, data.num_test) == (2, 2)
    image, label = data.read("train", 0)
    assert image.shape == (20, 40, 3)
    is_json = kind == "json"  # which also has a crowd
    assert label.shape == (2 + is_json, 5) and (label[:, 0] == -1).all()
    _, label = data.read("test", 1)
    expected = [[0, 0.5, 0.5, 0.5, 0.5], [1, 0.05, 0.1, 0.1, 0.2]]
    crowd = [[-2, *expected[0][1:]]]
    np.testing.assert_allclose(label, expected + crowd * is_json)
    images, labels = data.evaluation(image_size=16, batch_size=2)[0]
    assert images.shape == (2, 16, 16, 3)
    np.testing.assert_allclose(labels[1], label, atol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_names_are_those_of_load_dataset(kind, tmp_path):
    """Spaces around a name are no part of it, and similar names are warned of."""
    more = [("a.png", name, 1, 1, 9, 9) for name in (" cat", "Cat ", "dog ")]
    ids = {"Cat ": 0, **IDS, " cat": 8, "dog ": 9}
    folder = write(tmp_path, kind, more, more, ids)
    with pytest.warns(UserWarning, match="only by case.*: 'Cat', 'cat'"):
        data = load_detection(folder)
    assert data.class_names == ("Cat", "cat", "dog")
    assert data.read("test", 1)[1][:5, 0].tolist() == [1, 2, 1, 0, 2]
    accents = {"\u00e9": 8, "e\u0301": 9}  # in two encodings
    more = [("a.png", name, 1, 1, 9, 9) for name in accents]
    folder = write(tmp_path / "accents", kind, more, more, IDS | accents)
    with pytest.warns(UserWarning, match="only by case.* or the encoding of accents"):
        load_detection(folder)


def test_wrong_annotations_are_named(tmp_path):
    def error(kind="csv", **more):
        with pytest.raises(ValueError) as caught:
            load_detection(write(tmp_path / kind, kind, **more))
        return str(caught.value)

    text = error(
        train=[
            ("a.png", "cat", 1, 1, 42, 9),
            ("a.png", "cat", 5, 5, 5, 9),
            ("a.png", "cat", "x", 5, 6, 9),
            ("c.png", "cat", 5, 5, 6, 9),
        ],
        test=[("a.png", "cow", 1, 1, 2, 2)],
    )
    assert text.count("\n") == 5
    for part in (
        f"{tmp_path}/csv/train.csv, line 5: the box [",
        "line 6: the box ['5', '5', '5', '9'] is empty",
        "line 7: the box ['x'",
        f"{tmp_path}/csv/train/c.png: ",
        f"{tmp_path}/csv/test.csv, line 5: 'cow' is not a class",
    ):
        assert part in text
    text = error("json", train=[("a.png", "cow", 1, 1, 2, 2)])
    assert "train.json, annotation 2: 'category 99' is not a class" in text
    (tmp_path / "json" / "test.json").write_text('{"images": []}')
    with pytest.raises(ValueError, match="test.json must .*'categories'"):
        load_detection(str(tmp_path / "json"))
    (tmp_path / "csv" / "test.csv").write_text(f"{HEADER}{'a' * 200_000}\n")
    with pytest.raises(ValueError, match=r"test\.csv must .*field larger"):
        load_detection(str(tmp_path / "csv"))
    # A box without a class, and files that nothing can be trained on.
    text = error(train=[("a.png", "", 1, 1, 9, 9)])
    assert "train.csv, line 5: '' is not a class" in text
    (tmp_path / "csv" / "train.csv").write_text(HEADER + "a.png,,,,,\n")
    (tmp_path / "csv" / "test.csv").write_text(HEADER)
    with pytest.raises(ValueError) as caught:
        load_detection(str(tmp_path / "csv"))
    assert "train.csv: there are no boxes" in str(caught.value)
    assert "test.csv: there are no images" in str(caught.value)
    with pytest.raises(ValueError, match=r"Received: .*without train\.json"):
        load_detection(str(tmp_path / "missing"))


def test_images_of_another_size_than_was_annotated_are_named(tmp_path):
    """Their boxes would be of other pixels, without an error."""
    folder = write(tmp_path, "json")
    file = tmp_path / "train.json"
    content = json.loads(file.read_text())
    for image, (width, height) in zip(
        content["images"], ((40, 20), (20, 40)), strict=True
    ):
        image.update(width=width, height=height)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError) as caught:
        load_detection(folder)
    text = str(caught.value)
    assert "a.png: it has 40 x 20 pixels, but its boxes are for 20 x 40" in text
    assert "b.png" not in text


def test_boxes_move_with_pixels():
    """A bright rectangle of a crop is where its box is."""
    rng = np.random.default_rng(0)
    image = np.zeros((48, 64, 1), "uint8")
    image[12:36, 20:52] = 255
    label = np.array([[3, 36 / 64, 0.5, 0.5, 0.5], [-1, 0, 0, 0, 0]])
    flipped = removed = 0
    for _ in range(60):
        crop = places.draw_crop((48, 64), (40, 32), rng, 2.0, True)
        pixels = places.resize_image(image, crop.scaled)
        pixels = places.cut(pixels, crop, (40, 32), 0)[..., 0]
        found = crop_boxes(label, crop, (40, 32))
        assert found[1, 0] == -1
        flipped += crop.flip
        if found[0, 0] == -1:
            removed += 1
            continue
        rows, columns = np.nonzero(pixels > 127)
        expected = (
            *((columns.min() + columns.max() + 1) / 64,),
            *((rows.min() + rows.max() + 1) / 80,),
            (columns.max() + 1 - columns.min()) / 32,
            (rows.max() + 1 - rows.min()) / 40,
        )
        np.testing.assert_allclose(found[0, 1:], expected, atol=0.04)
    assert 10 < flipped < 50 and removed < 20


def test_digits_have_tight_boxes():
    data = load_detection("digits")
    counts = np.zeros(10, int)
    for index in range(50):
        image, label = data.read("train", index)
        assert image.shape == (32, 32, 1)
        found = label[label[:, 0] >= 0]
        counts[found[:, 0].astype(int)] += 1
        for _, x, y, width, height in found:
            left, top = (
                round((x - width / 2) * 32),
                round((y - height / 2) * 32),
            )
            right, bottom = left + round(width * 32), top + round(height * 32)
            digit = image[top:bottom, left:right, 0]
            # Ink is brighter than any background, and touches all sides.
            for side in (digit[0], digit[-1], digit[:, 0], digit[:, -1]):
                assert side.max() > 40
            assert digit.max() > 180
    assert counts.min() > 2
    again = load_detection("digits").train(image_size=32, batch_size=4, start=3)
    first = data.train(image_size=32, batch_size=4)
    for a, b in zip(again[0], first[3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_tfds(monkeypatch):
    """Of COCO, with a crowd, a box without a width and an empty image."""
    tfds = pytest.importorskip("tensorflow_datasets")
    file = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (40, 20)).save(file, "png")
    some = {
        "bbox": np.array([[0.25, 0.5, 0.75, 1], [0, 0, 1, 0], [0, 0, 1, 1]]),
        "label": np.array([2, 1, 1]),
        "is_crowd": np.array([False, False, True]),
    }
    none = {name: x[:0] for name, x in some.items()}
    examples = [{"image": file.getvalue(), "objects": x} for x in (some, none)]
    label = types.SimpleNamespace(names=["cat", "dog", "owl"])
    features = {"objects": {"label": label}}
    builder = types.SimpleNamespace(
        info=types.SimpleNamespace(features=features),
        is_prepared=lambda: True,
        download_and_prepare=lambda: None,
        as_dataset=lambda split, decoders: (
            examples if split == "train" else examples[:1]
        ),
    )
    monkeypatch.setattr(tfds, "builder", lambda name: builder)
    monkeypatch.setattr(tfds, "as_numpy", lambda found: found)
    data = load_detection("coco/2017")
    assert (data.num_train, data.num_test) == (2, 1)
    assert data.class_names == ("cat", "dog", "owl")
    image, label = data.read("train", 0)
    assert image.shape == (20, 40, 3)
    expected = [[2, 0.75, 0.5, 0.5, 0.5], [-3, 0.5, 0.5, 1, 1]]
    np.testing.assert_allclose(label, expected)
    assert data.read("train", 1)[1].tolist() == [[-1] * 5] * 2
    # A box in the crowd is not wrong, and the crowd is not missed.
    (truth,) = targets_by_image(label[None], 20, 40)
    prediction = {
        "boxes": [[20, 5, 40, 15], [1, 1, 9, 9]],
        "classes": [2, 1],
        "scores": [0.8, 0.9],
    }
    assert coco_metrics([prediction], [truth])["AP"] == pytest.approx(1)


def test_a_csv_of_a_spreadsheet(tmp_path):
    """Spaces around names of columns, and empty rows."""
    text = HEADER.replace(",", ", ") + " a.png , cat , 1, 1, 9, 9\n,,,,,\n"
    pytest.importorskip("PIL.Image").new("RGB", (20, 20)).save(tmp_path / "a.png")
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(text)
    data = load_detection(str(tmp_path))
    assert (data.class_names, data.num_train) == (("cat",), 1)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"filename,class\na.png,cat\n", "columns path, .*Received: filename, class"),
        ((HEADER + "a.png,ch\xe2t,1,1,9,9\n").encode("latin-1"), "in UTF-8"),
    ],
)
def test_messages_of_csv_files(content, message, tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_detection(str(tmp_path))
