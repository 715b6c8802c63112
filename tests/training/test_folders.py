import os

import keras
import numpy as np
import pytest

import keras_vit
from tests.training.batches import examples
from tests.training.batches import take

pytestmark = pytest.mark.backends("tensorflow")

tf = pytest.importorskip("tensorflow")


def write(path, value, size=(9, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3), value, np.uint8)
    image = keras.utils.array_to_img(
        pixels, data_format="channels_last", scale=False
    )
    image.save(path)


@pytest.fixture
def photos(tmp_path):
    """12 images per class, of different sizes and formats."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(12):
            ending = ("png", "JPG", "bmp", "gif")[i % 4]
            size = (9 + i, 20 - i)
            path = tmp_path / name / f"image{i}.{ending}"
            write(path, 100 * label + 8 * i, size)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_class_folders_are_split_into_train_and_test(photos):
    data = keras_vit.data.load_dataset(str(photos))
    assert data.class_names == ("cat", "dog")
    assert (data.num_train, data.num_test) == (20, 4)
    assert data.image_size is None and data.channels == 3
    options = dict(image_size=8, batch_size=3)
    train = data.train(flip=False, **options)
    images, labels = examples(data.test(**options))
    assert images.shape == (4, 8, 8, 3) and labels.tolist() == [0, 0, 1, 1]
    # Every picture has a color of its own: which ones are they?
    colours = np.round((images.mean((1, 2, 3)) + 1) * 127.5).astype(int)
    assert len(set(colours)) == 4
    assert np.abs(images).max() <= 1
    for colour, label in zip(colours, labels, strict=True):
        assert (colour - 100 * label) % 8 in (0, 1, 7)  # JPEG is not exact
    images, labels = examples(train.take(20))  # 60 images: 20, three times
    assert np.bincount(labels).tolist() == [30, 30]
    trained = np.round((images.mean((1, 2, 3)) + 1) * 127.5).astype(int)
    assert not set(trained) & set(colours)


def splits_of(folder, holdout=0.2):
    """The file names of each split, relative to the folder."""
    data = keras_vit.data.load_dataset(str(folder), holdout)
    return {
        part: {os.path.relpath(name, folder) for name in data.image_names(part)}
        for part in ("train", "validation", "test")
    }


@pytest.mark.parametrize("layout", ["CLASS", "train/CLASS"])
def test_adding_an_image_keeps_the_split_of_the_others(tmp_path, layout):
    folder = tmp_path / "photos"
    prefix = folder / layout.removesuffix("CLASS")
    for i in range(80):
        write(prefix / "ab"[i % 2] / f"image{i}.png", i, (2, 2))
    if layout != "CLASS":
        for i in range(2):
            write(folder / "test" / "ab"[i] / "one.png", i, (2, 2))
    before = splits_of(folder)
    count = sum(map(len, before.values()))
    assert count == (80 if layout == "CLASS" else 82)
    # It does not matter where the folder is.
    folder = folder.rename(tmp_path / "moved")
    assert splits_of(folder) == before
    prefix = folder / layout.removesuffix("CLASS")
    for number, name in enumerate(("0", "later", "image8b", "zzz", "m")):
        write(prefix / "a" / f"{name}.png", 0, (2, 2))
        after = splits_of(folder)
        for part, names in before.items():
            assert names <= after[part]
        assert sum(map(len, after.values())) == count + number + 1
    (prefix / "a" / "image2.png").unlink()
    left = splits_of(folder)
    assert all(left[part] <= after[part] for part in left)


def test_classes_without_a_test_image_are_reported(tmp_path):
    for i in range(40):
        write(tmp_path / "many" / f"{i}.png", 0, (2, 2))
    for name in ("x", "y"):
        write(tmp_path / "few" / f"{name}.png", 0, (2, 2))
    with pytest.warns(UserWarning, match="1 of 2 classes have no .*: few"):
        keras_vit.data.load_dataset(str(tmp_path))


@pytest.mark.parametrize("name", ["val", "Validation", "valid"])
def test_alternative_names_of_the_test_folder(tmp_path, name):
    """timm and torchvision use these names; "train" and "val" were read as
    classes."""
    for i, path in enumerate(("Train/a", "Train/b", f"{name}/a", f"{name}/b")):
        write(tmp_path / path / f"{i}.png", 0)
    write(tmp_path / "Train" / "b" / "5.png", 0)
    data = keras_vit.data.load_dataset(str(tmp_path))
    assert data.class_names == ("a", "b")
    assert (data.num_train, data.num_test) == (3, 2)
    for i, path in enumerate(("test/a", "test/b")):
        write(tmp_path / path / f"{6 + i}.png", 0)
    with pytest.warns(
        UserWarning, match=f"test/ is evaluated on. Not used: {name}"
    ):
        keras_vit.data.load_dataset(str(tmp_path))


@pytest.mark.parametrize("flip", [True, False])
def test_flip_mirrors_some_training_images(flip):
    left = np.zeros((8, 8, 8, 3), np.uint8)
    left[:, :, :4] = 255
    data = keras_vit.data.from_arrays(left, np.arange(8) % 2)
    images, _ = take(data.train(image_size=8, batch_size=4, flip=flip), 10)
    mirrored = images[:, :, :, 0].mean((2, 3)) < 0
    assert mirrored.any() == flip and not mirrored.all()


# The files of a folder, and what is wrong with it.
LAYOUTS = {
    "": "Received: none. Expected FOLDER/train/CLASS",
    "a/0": "two classes or more. Received: 'a'",
    "a/0 a/1 b/": "b' needs 2 images .* Received: 0",
    "a/0 b/0": "needs 2 images .* Received: 1",
    "train/a/0 train/b/0 test/a/0 test/c/0": "Only in one of them: b, c",
    "train/a/0": "has no folder 'test'",
}


@pytest.mark.parametrize("files", LAYOUTS)
def test_wrong_folder_layouts_raise(tmp_path, files):
    for name in files.split():
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            write(tmp_path / f"{name}.png", 0)
    with pytest.raises(ValueError, match=LAYOUTS[files]) as error:
        keras_vit.data.load_dataset(str(tmp_path))
    assert "\n" not in str(error.value)
