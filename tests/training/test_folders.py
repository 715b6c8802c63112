"""Folders of images: their layouts, splits, and unusual files and names."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data import folders
from keras_vit.data.splits import split_by_path
from keras_vit_programs.runs import explain_error
from tests.training.batches import take
from tests.training.pictures import encode, noise, write_folder

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")
load = keras_vit.data.load_dataset


def flat(value):
    """A small PNG of one gray level."""
    return encode(np.full((2, 2, 3), value, np.uint8))


@pytest.fixture
def photos(tmp_path):
    images = {
        f"{name}/{i}.jpg": noise(16 + i, 20, seed=6 * label + i)
        for label, name in enumerate(("cat", "dog"))
        for i in range(6)
    }
    return write_folder(tmp_path, images)


def put(path, content):
    write_folder(path.parent, {path.name: content})


def splits_of(folder, holdout=0.2):
    """The file names of each split, relative to the folder."""
    data = load(str(folder), holdout)
    return {
        part: {os.path.relpath(name, folder) for name in data.image_names(part)}
        for part in ("train", "validation", "test")
    }


@pytest.mark.parametrize("layout", ["CLASS", "train/CLASS"])
def test_adding_an_image_keeps_the_split_of_the_others(tmp_path, layout):
    folder = tmp_path / "photos"
    prefix = layout.removesuffix("CLASS")
    for i in range(80):
        put(folder / prefix / "ab"[i % 2] / f"image{i}.png", flat(i))
    if prefix:
        for i in range(2):
            put(folder / "test" / "ab"[i] / "one.png", flat(i))
    before = splits_of(folder)
    count = sum(map(len, before.values()))
    assert count == (82 if prefix else 80)
    # It does not matter where the folder is.
    folder = folder.rename(tmp_path / "moved")
    assert splits_of(folder) == before
    for number, name in enumerate(("0", "image8b", "zzz"), start=1):
        put(folder / prefix / "a" / f"{name}.png", flat(0))
        after = splits_of(folder)
        assert all(before[part] <= after[part] for part in before)
        assert sum(map(len, after.values())) == count + number
    (folder / prefix / "a" / "image2.png").unlink()
    left = splits_of(folder)
    assert all(left[part] <= after[part] for part in left)


def of_class(label, count):
    return [pathlib.PurePath(f"class{label}/{i:05}.jpg") for i in range(count)]


@pytest.mark.parametrize(
    "classes, per_class, fraction, expected",
    [
        # 500 (0.2 * 0.8 * 2 + 0.2 * 0.2) of the classes have a test image.
        *((500, 2, x, 500 * (1 - (1 - x) ** 2)) for x in (0.01, 0.2, 0.9)),
        *((2, count, 0.2, None) for count in (2, 5, 11)),
        (30, 1, 0.9, 0),
        (2, 15, 0, 0),
    ],
)
def test_every_class_has_a_training_image(classes, per_class, fraction, expected):
    """This holds where all images of a class have hashes below the
    fraction."""
    paths = [x for k in range(classes) for x in of_class(k, per_class)]
    labels = np.repeat(np.arange(classes), per_class)
    train, test = split_by_path(paths, labels, fraction)
    assert set(labels[train]) == set(range(classes))
    assert sorted([*train, *test]) == list(range(len(paths)))
    assert bool(len(test)) == (expected != 0)
    if expected:
        assert abs(len(test) - expected) < 4 * expected**0.5 + 1


def test_split_is_stable_across_versions():
    """Weights are evaluated on images that they were not trained on."""
    _, test = split_by_path(of_class(0, 30), np.zeros(30, int))
    # Computed once. A change would move images from training to test.
    assert test.tolist() == [0, 6, 7, 10, 15, 20, 27]


def test_classes_without_a_test_image_are_reported(tmp_path):
    for i in range(42):
        name = "many" if i < 40 else "few"
        put(tmp_path / name / f"{i}.png", flat(0))
    with pytest.warns(UserWarning, match="1 of 2 classes have no .*: few"):
        load(str(tmp_path))


@pytest.mark.parametrize("name", ["val", "Validation", "valid"])
def test_alternative_names_of_the_test_folder(tmp_path, name):
    """timm and torchvision use these names; "train" and "val" were read as
    classes."""
    paths = ("Train/a", "Train/b", f"{name}/a", f"{name}/b", "Train/b")
    for i, path in enumerate(paths):
        put(tmp_path / path / f"{i}.png", flat(i))
    data = load(str(tmp_path))
    assert data.class_names == ("a", "b")
    assert (data.num_train, data.num_test) == (3, 2)
    for i, path in enumerate(("test/a", "test/b")):
        put(tmp_path / path / f"{6 + i}.png", flat(6 + i))
    words = f"test/ is evaluated on. Not used: {name}"
    with pytest.warns(UserWarning, match=words):
        load(str(tmp_path))


# The files of a folder, and what is wrong with it.
LAYOUTS = {
    "": "Received: none. Expected FOLDER/train/CLASS",
    "a/0": "two classes or more. Received: 'a'",
    "a/0 a/1 b/": "b' needs 2 images .* Received: 0",
    "a/0 b/0": "needs 2 images .* Received: 1",
    "train/a/0 train/b/0 test/a/0 test/c/0": "Only in one of them: b, c",
    "train/a/0": "has no folder 'test'.*Name '.*train' to split.*with `split='all'`",
}


@pytest.mark.parametrize("files", LAYOUTS)
def test_wrong_folder_layouts_raise(tmp_path, files):
    for name in files.split():
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            put(tmp_path / f"{name}.png", flat(0))
    with pytest.raises(ValueError, match=LAYOUTS[files]) as error:
        load(str(tmp_path))
    assert "\n" not in str(error.value)


def half(kind):
    whole = encode(noise(64, 64), kind)
    return whole[: len(whole) // 2]


@pytest.mark.parametrize(
    "name, protocol",
    [
        ("bad.png", "simple"),
        ("bad [1]\n.png", "vit_jax"),
        ("b\udce9d.png", "simple"),
    ],
)
def test_error_in_a_batch_names_the_damaged_image(photos, name, protocol):
    """Its header and trailer are valid."""
    content = bytearray(encode(noise(64, 64)))
    content[len(content) // 2] ^= 255
    put(photos / "cat" / name, content)
    data = load(str(photos))
    assert data.num_train + data.num_test == 13
    both = (
        data.train(image_size=8, batch_size=4, protocol=protocol).take(9),
        data.test(image_size=8, batch_size=4),
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        for batches in both:
            list(batches)
    checkpoints = types.SimpleNamespace(step=7, last="Go on.")
    text = explain_error(error.value, None, checkpoints)
    shown = str(photos / "cat" / name.replace("\udce9", "\ufffd"))
    assert f"cannot be read: {shown!r}" in text
    assert "`skip_bad_images=True`" in text and "after step 7. Go on." in text


def test_bad_images_are_reported_or_skipped(photos):
    for name, content, words in (
        ("page.jpg", b"<html>404</html>", "cat/page.jpg' is not a JPEG"),
        ("half.jpg", half("JPEG"), "half.jpg' cannot be decoded: "),
        ("half.png", half("PNG"), "half.png' cannot be decoded: "),
        ("half.gif", half("GIF"), "half.gif' cannot be decoded: "),
    ):
        put(photos / "cat" / name, content)
        with pytest.raises(ValueError, match=words) as error:
            load(str(photos))
        assert "`skip_bad_images=True`" in str(error.value)
        assert "\n" not in str(error.value)
        (photos / "cat" / name).unlink()
    put(photos / "cat" / "half.jpg", half("JPEG"))
    put(photos / "cat" / "page.jpg", b"<html>404</html>")
    put(photos / "dog" / "none.png", b"")
    put(photos / "dog" / "old.bmp", encode(noise(9, 9, 1), "BMP"))
    with pytest.warns(UserWarning) as caught:
        data = load(str(photos), skip_bad_images=True)
    text = str(caught[0].message)
    assert "4 of 16 images cannot be used" in text and "old.bmp" in text
    assert "half.jpg' cannot be decoded" in text and "page.jpg' is not" in text
    assert data.num_skipped == 4 and data.metadata()["num_skipped"] == 4
    assert data.num_train + data.num_test == 12
    assert len(list(data.train(image_size=8, batch_size=4).take(9))) == 9
    assert len(list(data.test(image_size=8, batch_size=4))) == 1
    for i in range(3):
        put(photos / "emu" / f"{i}.jpg", b"nothing")
    with pytest.warns(UserWarning, match="7 of 19 images"):
        with pytest.raises(ValueError, match="emu' .* 0, and 3 that"):
            load(str(photos), skip_bad_images=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes")
def test_ignored_files_are_reported(photos):
    """Links to folders are not followed, as they may form a circle, and pipes
    are not opened, as reading one waits for what another program writes."""
    (photos / "cat" / "gone.jpg").symlink_to(photos / "nowhere.jpg")
    (photos / "cat" / "more").symlink_to(photos / "dog")
    os.mkfifo(photos / "cat" / "pipe.jpg")
    put(photos / "cat" / "IMG_0042", encode(noise(9, 9), "JPEG"))
    put(photos / "dog" / "new.avif", b"a format")
    for name in (".DS_Store", "._0.jpg", "Thumbs.db", "folder.jpg/notes.txt"):
        put(photos / "cat" / name, b"nothing")
    put(photos / "cat" / ".ipynb_checkpoints" / "0.jpg", encode(noise(9, 9)))
    put(photos / "dog" / "@eaDir" / "0.jpg", encode(noise(9, 9)))
    put(photos / "dog" / "UPPER.PNG", encode(noise(9, 9)))
    with pytest.warns(UserWarning, match="5 files are left out") as caught:
        data = load(str(photos))
    assert len(caught) == 1
    for name in ("cat/gone.jpg", "cat/more", "cat/pipe.jpg", "cat/IMG_0042"):
        assert name in str(caught[0].message)
    assert data.num_train + data.num_test == 13
    with pytest.raises(FileNotFoundError, match="pipe.jpg"):
        keras_vit.data.load_files([photos / "cat" / "pipe.jpg"])


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_duplicates_in_two_parts_are_reported(parts, photos):
    """Not different images of equal names or sizes, nor copies in a class."""
    one, other = (encode(noise(9, 9, seed=i), "BMP") for i in range(2))
    assert len(one) == len(other)
    put(photos / "cat" / "cover.bmp", one)
    put(photos / "cat" / "again" / "cover.bmp", one)
    put(photos / "dog" / "cover.bmp", other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(str(photos))
    put(photos / "dog" / "3.jpg", (photos / "cat" / "3.jpg").read_bytes())
    for part in filter(None, parts):
        for name in ("cat", "dog"):
            shutil.copytree(photos / name, photos / part / name)
    for name in ("cat", "dog") if parts[0] else ():
        shutil.rmtree(photos / name)
    words = "train/cat/0.jpg and test/cat/0" if parts[0] else "cat/3.* dog/3"
    with pytest.warns(UserWarning, match=f"^Identical files .*{words}.jpg"):
        load(str(photos))


def test_duplicates_of_other_names_are_reported(photos):
    """Of files of one size and one beginning, only the identical ones."""
    one, other = (encode(noise(90, 90, seed=i), "BMP") for i in range(2))
    one, other = one[:5000] + other[5000:], one
    put(photos / "cat" / "a.bmp", one)
    put(photos / "cat" / "b.bmp", other)
    put(photos / "cat" / "again.bmp", other)
    put(photos / "dog" / "c.bmp", other)
    words = r", 1 in all: cat/(again|b)\.bmp and dog/c\.bmp\. Remove"
    with pytest.warns(UserWarning, match=f"^Identical files .*{words}"):
        load(str(photos))


def test_folder_of_mixed_files(tmp_path):
    """Every image is in one split, with the label of its folder."""
    rng = np.random.default_rng(0)
    kinds = [
        ("jpg", lambda x: encode(x, "JPEG")),
        ("PNG", encode),
        ("jpeg", lambda x: encode(Image.fromarray(x).convert("CMYK"), "JPEG")),
        ("png", lambda x: encode(x[..., :1])),
        ("Png", lambda x: encode(Image.fromarray(x).convert("RGBA"))),
        ("JPEG", lambda x: encode(x[..., :1], "JPEG")),
    ]
    classes = ("a 'quoted' [class]", "blå bär", "日本/deep/er")
    names = [f"ü %s # {i}.{i}" for i in range(116)]
    # Names may hold any bytes.
    names += ["caf\udce9", "two\nlines", "]", " "]
    for i, name in enumerate(names):
        # The classes are dark, gray and bright.
        pixels = noise(*rng.integers(1, 70, 2), seed=i) // 4 + 90 * (i % 3)
        ending, write = kinds[i % len(kinds)]
        content = write(pixels.astype(np.uint8))
        put(tmp_path / classes[i % 3] / f"{name}.{ending}", content)
    data = load(str(tmp_path), holdout=0.1)
    assert data.class_names == tuple(x.partition("/")[0] for x in classes)
    assert data.image_size is None and data.channels == 3
    assert data.num_train + data.num_validation + data.num_test == 120
    assert abs(data.num_test - 24) <= 8 and abs(data.num_validation - 10) <= 6
    parts = ("train", "validation", "test")
    found = [pathlib.Path(x).stem for p in parts for x in data.image_names(p)]
    assert sorted(found) == sorted(names)
    for protocol in ("vit_jax", "big_vision"):
        options = dict(image_size=12, batch_size=27, protocol=protocol)
        images, labels = take(data.train(**options), 4)
        assert np.bincount(labels.ravel()).min() > 20
        shades = (images.mean((2, 3, 4)) + 1) * 127.5
        # Inverted colors, as those of CMYK, are only near the originals.
        assert (np.round((shades - 32) / 90) == labels).mean() > 0.8
        assert len(list(data.test(**options))) in (1, 2)
        assert len(list(data.validation(**options))) == 1


@pytest.mark.parametrize("flip", [True, False])
def test_flip_mirrors_some_training_images(flip):
    left = np.zeros((8, 8, 8, 3), np.uint8)
    left[:, :, :4] = 255
    data = keras_vit.data.from_arrays(left, np.arange(8) % 2)
    images, _ = take(data.train(image_size=8, batch_size=4, flip=flip), 10)
    mirrored = images[:, :, :, 0].mean((2, 3)) < 0
    assert mirrored.any() == flip and not mirrored.all()


def test_thumbnails_of_large_images_are_subsampled(tmp_path):
    pixels = noise(30, 1030)
    put(tmp_path / "x.png", encode(pixels))
    found = folders.load_thumbnail(tmp_path / "x.png")
    np.testing.assert_array_equal(found, pixels[::3, ::3] / 255)


@pytest.mark.parametrize("protocol", ["simple", "vit_jax"])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_are_read_without_tensorflow(tmp_path, protocol, channels):
    """The pixels are those that TensorFlow reads and resizes."""
    rng = np.random.default_rng(0)
    for index, (height, width) in enumerate([(40, 31), (9, 70), (32, 32)]):
        pixels = rng.integers(0, 256, (height, width, 3), dtype="uint8")
        ending = ("jpg", "png", "jpg")[index]
        Image.fromarray(pixels).save(tmp_path / f"{index}.{ending}")
    data, _ = keras_vit.data.load_files([tmp_path])
    data = dataclasses.replace(data, channels=channels)
    options = {"batch_size": 2, "image_size": (24, 32), "protocol": protocol}
    expected = dataclasses.replace(data, source=data.source.by_tensorflow({}))
    for ours, theirs in zip(
        data.test(**options), expected.test(**options), strict=True
    ):
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-6)
    image, label = data.read("test", 0)
    assert image.shape == (40, 31, channels) and label == 0
    assert data.image_names("test")[0] == str(tmp_path / "0.jpg")
    assert data.sample("test", 2).num_test == 2


def test_files_do_not_import_tensorflow(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "a.jpg")
    code = "import sys, keras_vit; data, _ = keras_vit.data.load_files(['a.jpg']); "
    code += "list(data.test(batch_size=1, image_size=8)); "
    code += "sys.exit('tensorflow' in sys.modules)"
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True
    )
