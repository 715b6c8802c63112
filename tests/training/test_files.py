"""Folders with unusual files, names and paths."""

import os
import pathlib
import shutil
import types
import warnings

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data import folders
from keras_vit.training.training_run import explain_error
from tests.training.batches import take
from tests.training.pictures import encode
from tests.training.pictures import noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def photos(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        for i in range(6):
            pixels = noise(16 + i, 20, seed=6 * label + i)
            put(tmp_path / name / f"{i}.jpg", encode(pixels, "JPEG"))
    return tmp_path


def half(kind):
    whole = encode(noise(64, 64), kind)
    return whole[: len(whole) // 2]


def damaged():
    """A PNG with valid header and trailer and damaged content."""
    content = bytearray(encode(noise(64, 64)))
    content[len(content) // 2] ^= 255
    return bytes(content)


@pytest.mark.parametrize(
    "name, protocol",
    [
        ("bad.png", "simple"),
        ("bad [1]\n.png", "vit_jax"),
        ("b\udce9d.png", "simple"),
    ],
)
def test_error_in_a_batch_names_the_damaged_image(photos, name, protocol):
    put(photos / "cat" / name, damaged())
    data = keras_vit.data.load_dataset(str(photos))
    assert data.num_train + data.num_test == 13
    both = (
        data.train(image_size=8, batch_size=4, protocol=protocol).take(9),
        data.test(image_size=8, batch_size=4),
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        for batches in both:
            list(batches)
    checkpoints = types.SimpleNamespace(done=7, last="Go on.")
    text, shown = (
        explain_error(error.value, None, checkpoints),
        name.replace("\udce9", "\ufffd"),
    )
    assert f"cannot be read: {str(photos / 'cat' / shown)!r}" in text
    assert "--skip-bad-images" in text and "after step 7. Go on." in text


def test_bad_images_are_skipped_and_reported(photos):
    put(photos / "cat" / "half.jpg", half("JPEG"))
    put(photos / "cat" / "page.jpg", b"<html>404</html>")
    put(photos / "dog" / "none.png", b"")
    put(photos / "dog" / "old.bmp", encode(noise(9, 9, 1), "BMP"))
    with pytest.warns(UserWarning) as caught:
        data = keras_vit.data.load_dataset(str(photos), skip_bad_images=True)
    text = str(caught[0].message)
    assert "4 of 16 images cannot be used" in text and "old.bmp" in text
    assert "half.jpg cannot be decoded" in text and "page.jpg is not" in text
    assert data.num_skipped == 4 and data.metadata()["num_skipped"] == 4
    assert data.num_train + data.num_test == 12
    assert len(list(data.train(image_size=8, batch_size=4).take(9))) == 9
    assert len(list(data.test(image_size=8, batch_size=4))) == 1
    for i in range(3):
        put(photos / "emu" / f"{i}.jpg", b"nothing")
    with pytest.warns(UserWarning, match="7 of 19 images"):
        with pytest.raises(ValueError, match="emu' .* 0, and 3 that"):
            keras_vit.data.load_dataset(str(photos), skip_bad_images=True)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("page.jpg", b"<html>404</html>", "cat/page.jpg' is not a JPEG"),
        ("half.jpg", half("JPEG"), "half.jpg' cannot be decoded: "),
        ("half.png", half("PNG"), "half.png' cannot be decoded: "),
        ("half.gif", half("GIF"), "half.gif' cannot be decoded: "),
    ],
)
def test_bad_images_are_reported_when_the_folder_is_opened(
    photos, name, content, words
):
    put(photos / "cat" / name, content)
    with pytest.raises(ValueError, match=words) as error:
        keras_vit.data.load_dataset(str(photos))
    assert "--skip-bad-images" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes")
def test_ignored_files_are_reported(photos):
    """Links to folders are not followed, as they may form a circle, and pipes
    are not opened, as reading one waits for what another program writes."""
    (photos / "cat" / "gone.jpg").symlink_to(photos / "nowhere.jpg")
    (photos / "cat" / "more").symlink_to(photos / "dog")
    os.mkfifo(photos / "cat" / "pipe.jpg")
    put(photos / "cat" / "IMG_0042", encode(noise(9, 9), "JPEG"))
    put(photos / "dog" / "new.webp", encode(noise(9, 9), "WEBP"))
    for name in (".DS_Store", "._0.jpg", "Thumbs.db", "folder.jpg/notes.txt"):
        put(photos / "cat" / name, b"nothing")
    put(photos / "cat" / ".ipynb_checkpoints" / "0.jpg", encode(noise(9, 9)))
    put(photos / "dog" / "@eaDir" / "0.jpg", encode(noise(9, 9)))
    put(photos / "dog" / "UPPER.PNG", encode(noise(9, 9)))
    with pytest.warns(UserWarning, match="5 files are left out") as caught:
        data = keras_vit.data.load_dataset(str(photos))
    assert len(caught) == 1
    for name in ("cat/gone.jpg", "cat/more", "cat/pipe.jpg", "cat/IMG_0042"):
        assert name in str(caught[0].message)
    assert data.num_train + data.num_test == 13
    with pytest.raises(FileNotFoundError, match="pipe.jpg"):
        keras_vit.data.load_files([photos / "cat" / "pipe.jpg"])


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_duplicates_in_two_parts_are_reported(parts, photos):
    put(photos / "dog" / "3.jpg", (photos / "cat" / "3.jpg").read_bytes())
    for part in filter(None, parts):
        for name in ("cat", "dog"):
            shutil.copytree(photos / name, photos / part / name)
    for name in ("cat", "dog") if parts[0] else ():
        shutil.rmtree(photos / name)
    words = "train/cat/0.jpg and test/cat/0" if parts[0] else "cat/3.* dog/3"
    with pytest.warns(UserWarning, match=f"^Identical files .*{words}.jpg"):
        keras_vit.data.load_dataset(str(photos))


def test_equal_file_names_are_not_duplicates(photos):
    """Different images with equal names or sizes, and a copy in the same
    class."""
    one, other = (encode(noise(9, 9, seed=i), "BMP") for i in range(2))
    assert len(one) == len(other)
    put(photos / "cat" / "cover.bmp", one)
    put(photos / "cat" / "again" / "cover.bmp", one)
    put(photos / "dog" / "cover.bmp", other)
    put(photos / "dog" / "cover.jpg", encode(noise(9, 9), "JPEG"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_vit.data.load_dataset(str(photos))


def test_folder_of_mixed_files(tmp_path):
    rng = np.random.default_rng(0)
    kinds = [
        ("jpg", lambda x: encode(x, "JPEG")),
        ("PNG", encode),
        ("jpeg", lambda x: encode(Image.fromarray(x).convert("CMYK"), "JPEG")),
        ("png", lambda x: encode(x[..., :1])),
        ("Png", lambda x: encode(Image.fromarray(x).convert("RGBA"))),
        ("JPEG", lambda x: encode(x[..., :1], "JPEG")),
    ]
    classes = ("blå bär", "a 'quoted' [class]", "日本/deep/er")
    names = [f"ü %s # {i}.{i}" for i in range(116)]
    # Names may hold any bytes.
    names += ["caf\udce9", "two\nlines", "]", " "]
    for i, name in enumerate(names):
        height, width = rng.integers(1, 70, 2)
        ending, write = kinds[i % len(kinds)]
        pixels = noise(height, width, seed=i)
        put(tmp_path / classes[i % 3] / f"{name}.{ending}", write(pixels))
    data = keras_vit.data.load_dataset(str(tmp_path), holdout=0.1)
    assert data.num_train + data.num_validation + data.num_test == 120
    assert abs(data.num_test - 24) <= 8 and abs(data.num_validation - 10) <= 6
    found = {
        pathlib.Path(path).stem
        for part in ("train", "validation", "test")
        for path in data.image_names(part)
    }
    assert found == set(names)
    for protocol in ("vit_jax", "big_vision"):
        options = dict(image_size=12, batch_size=27, protocol=protocol)
        images, labels = take(data.train(**options), 4)
        assert np.bincount(labels.ravel()).min() > 20
        assert np.isfinite(images).all()
        assert len(list(data.test(**options))) in (1, 2)
        assert len(list(data.validation(**options))) == 1


def test_thumbnails_of_large_images_are_subsampled(tmp_path):
    pixels = noise(30, 1030)
    put(tmp_path / "x.png", encode(pixels))
    found = folders.load_thumbnail(tmp_path / "x.png")
    np.testing.assert_array_equal(found, pixels[::3, ::3] / 255)
