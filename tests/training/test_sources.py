"""Data sets of arrays, of a CSV file and of Hugging Face's `datasets`."""

import os
import re
import types
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import CROPS, pipeline
from keras_vit.utils.images import to_pixels
from keras_vit_programs import setup
from tests.recipes import programs
from tests.small import vit
from tests.training.batches import take
from tests.training.pictures import encode, encode_tiff, noise, write_folder

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")

SIZE = 12
NAMES = ("cat", "dog", "owl")
OPTIONS = {"image_size": 8, "batch_size": 4}


class Table:
    """Replaces a `datasets.Dataset`: a table that is indexed by integers and
    by the names of columns."""

    def __init__(self, names, **columns):
        self.columns, self.read = columns, []
        # As `datasets.ClassLabel`.
        label = names and types.SimpleNamespace(names=list(names))
        self.features = {"image": None, "label": label}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        self.read.append(key)
        return {name: column[key] for name, column in self.columns.items()}


def pillow(pixels):
    return keras.utils.array_to_img(pixels, scale=False)


def table(images, labels, names=NAMES):
    images = [pillow(x) for x in images]
    return Table(names, image=images, label=list(map(int, labels)))


@pytest.fixture(scope="module")
def images():
    return np.stack([noise(SIZE, SIZE, seed=i) for i in range(30)])


LABELS = np.arange(30) % 3
MULTI = np.array([[i % 2, i % 3 == 0, i % 5 == 0] for i in range(30)], int)


def write_csv(folder, images, rows, header="image,label"):
    """Writes `rows`, whose first values are numbers of images."""
    write_folder(folder, {f"{i}.png": image for i, image in enumerate(images)})
    path = folder / "photos.csv"
    lines = [",".join([f"{i}.png", *map(str, rest)]) for i, *rest in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def images_of(data, split):
    """The pixels of a split, each image once, and their labels."""
    total = getattr(data, f"num_{split}")
    batches = data.batches(split, image_size=SIZE, batch_size=total)
    pixels, labels, weights = take(batches, 1)
    assert (weights == 1).all()
    return np.round((pixels[0] + 1) * 127.5).astype(np.uint8), labels[0]


def data_of(source, folder, images, labels, **options):
    """A data set of images and of numbers or rows of classes, from a source."""
    multi = labels.ndim > 1
    if source == "arrays":
        return keras_vit.data.from_arrays(images, labels, class_names=NAMES, **options)
    lists = [np.flatnonzero(x).tolist() if multi else [int(x)] for x in labels]
    if source == "csv":
        cells = [";".join(NAMES[k] for k in row) for row in lists]
        path = write_csv(folder, images, enumerate(cells))
        return keras_vit.data.load_dataset(str(path), **options)
    rows = table(images, LABELS)
    if multi:
        label = types.SimpleNamespace(feature=rows.features["label"])
        rows.features["label"] = label  # as `datasets.List`
        rows.columns["label"] = lists
    return keras_vit.data.from_huggingface(rows, **options)


@pytest.mark.parametrize("source", ["arrays", "csv", "huggingface"])
@pytest.mark.parametrize("multi", [False, True])
def test_every_image_is_in_exactly_one_split(source, multi, images, tmp_path):
    known = {image.tobytes(): i for i, image in enumerate(images)}
    expected = MULTI if multi else LABELS
    data = data_of(source, tmp_path, images, expected, holdout=0.2)
    found = []
    for split in ("train", "validation", "test"):
        pixels, labels = images_of(data, split)
        numbers = [known[image.tobytes()] for image in pixels]
        np.testing.assert_array_equal(labels, expected[numbers])
        names = data.image_names(split)
        assert [int(re.findall(r"\d+", n)[-1]) for n in names] == numbers
        for rows in (range(1, 3), range(0)):
            assert data.image_names(split, rows) == names[rows.start : rows.stop]
        found += numbers
    assert sorted(found) == list(range(30))
    assert data.num_test and data.num_validation
    assert data.channels == 3 and data.class_names == NAMES
    assert data.multi_label == multi
    x, labels = take(data.train(**OPTIONS), 6)
    assert x.shape == (6, 4, 8, 8, 3)
    if source == "arrays":  # appended images move no others
        few = data_of(source, None, images[:20], expected[:20], holdout=0.2)
        for split in ("train", "validation", "test"):
            assert set(few.image_names(split)) <= set(data.image_names(split))
    if multi:
        assert labels.shape == (6, 4, 3) and labels.dtype == np.float32
        assert set(labels.ravel()) == {0, 1} and (labels.sum(-1) > 1).any()
        rows = images_of(data, "train")[1]
        np.testing.assert_array_equal(data.class_counts(), rows.sum(0))
        with pytest.raises(ValueError, match="multi-label"):
            data.train(**OPTIONS, class_weights=[1.0, 1.0, 1.0])
        # Each class has the fraction of the images that have it.
        _, mixed = take(data.train(**OPTIONS, mixup=1.0), 6)
        pairs = zip(mixed, labels, np.roll(labels, 1, 1), strict=True)
        for found, own, other in pairs:
            own, other = own.ravel(), other.ravel()
            at = own != other
            fractions = ((found.ravel() - other)[at] / (own - other)[at]).round(5)
            assert len(set(fractions)) == 1
            assert (found.ravel()[~at] == own[~at]).all()


@pytest.mark.parametrize(
    "splits, options, expected",
    [
        (["train"] * 4 + ["Validation"] * 2 + ["test"] * 3, {}, (4, 2, 3)),
        # Without test images, the validation images are the test set.
        (["train"] * 4 + ["Validation"] * 2, {"holdout": 0.5}, (2, 2, 2)),
        (["test"] * 4, {"split_column": "fold"}, (0, 0, 4)),
        # That of fastai, which is taken without being named, too.
        (["False"] * 4 + ["True"] * 2, {"split_column": "is_valid"}, (4, 0, 2)),
    ],
)
def test_split_column_of_a_csv_file(splits, options, expected, images, tmp_path):
    rows = [(i, LABELS[i], split) for i, split in enumerate(splits)]
    header = f"image,label,{options.get('split_column', 'split')}"
    path = write_csv(tmp_path, images[:9], rows, header)
    known = options.get("split_column") == "is_valid"
    data = keras_vit.data.from_csv(path, **({} if known else options))
    found = (data.num_train, data.num_validation, data.num_test)
    assert found[2] == expected[2]
    assert found[0] + found[1] == expected[0] + expected[1]
    if not options:
        assert found == expected
        assert os.path.basename(data.image_names("test")[0]) == "6.png"
        with pytest.warns(UserWarning, match="2 validation images.*0.5"):
            keras_vit.data.from_csv(path, holdout=0.5)


@pytest.mark.parametrize("protocol", ["simple", "big_vision", "vit_jax"])
def test_arrays_and_files_give_equal_batches(protocol, images, tmp_path):
    """What is read does not depend on the other protocols."""
    for part in ("train", "test"):
        named = {f"{'ab'[i // 4]}/{i}.png": images[i] for i in range(8)}
        write_folder(tmp_path / part, named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # test images equal training images
        folder = keras_vit.data.load_dataset(str(tmp_path))
    pair = images[:8], np.arange(8) // 4
    # A folder has images of several sizes, to which big_vision does other
    # things than to small images.
    other = images[:8, 1:] if protocol == "big_vision" else images[:8]
    arrays = keras_vit.data.from_arrays(*pair, (other, pair[1]))
    assert folder.image_size is None
    assert arrays.image_size == (None if protocol == "big_vision" else SIZE)
    options = dict(image_size=16, batch_size=8, protocol=protocol)
    for part in ("train", "test")[: 1 if protocol == "big_vision" else 2]:
        mine, theirs = (take(getattr(x, part)(**options), 1) for x in (arrays, folder))
        for x, y in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(x, y)


def test_similar_names_are_warned_of(images):
    with pytest.warns(UserWarning, match="accents: 'cat', ' cat'"):
        keras_vit.data.from_arrays(images, LABELS, class_names=("cat", " cat", "owl"))


def test_float_arrays_keep_fractions(images):
    """Equal values give equal batches; fractions are kept."""
    whole = keras_vit.data.from_arrays(images, LABELS)
    floats = keras_vit.data.from_arrays(images.astype("float64"), LABELS)
    options = {**OPTIONS, "protocol": "vit_jax"}
    both = (take(x.train(**options), 2) for x in (whole, floats))
    for x, y in zip(*both, strict=True):
        np.testing.assert_array_equal(x, y)
    half = images.clip(0, 254) + np.float32(0.5)
    data = keras_vit.data.from_arrays(images, LABELS, (half[20:], LABELS[20:]))
    assert (data.num_train, data.num_test) == (30, 10)
    assert data.image_names("test")[0] == "test[0]"
    pixels, *_ = take(data.test(image_size=SIZE, batch_size=10), 1)
    np.testing.assert_allclose(pixels[0], half[20:] / 127.5 - 1, atol=1e-6)


LONG = np.random.default_rng(0).integers(0, 65536, (20, SIZE, SIZE, 5), "uint16")
FIVE = (0.2, 0.3, 0.4, 0.5, 0.6), (0.1, 0.2, 0.3, 0.4, 0.5)  # mean and deviation


def sets_of_five_channels(folder):
    """Yields data sets of `LONG`, of two classes, from all sources."""
    for kind in ("npy", "tif"):
        for i, image in enumerate(LONG):
            path = folder / kind / "ab"[i % 2] / f"{i}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            content = encode_tiff(image, predictor=2)
            path.write_bytes(content) if kind == "tif" else np.save(path, image)
        yield keras_vit.data.load_dataset(str(folder / kind))
    rows = [f"npy/{'ab'[i % 2]}/{i}.npy,{'ab'[i % 2]}" for i in range(20)]
    (folder / "x.csv").write_text("\n".join(["path,label", *rows]))
    yield keras_vit.data.load_dataset(str(folder / "x.csv"))
    yield keras_vit.data.from_arrays(LONG, np.arange(20) % 2)


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow", "torch")
def test_images_of_five_channels_are_trained_on_and_predicted(tmp_path):
    scaled = (LONG / 65535 - FIVE[0]) / FIVE[1]
    model = vit(input_shape=(SIZE, SIZE, 5), classes=2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for data in sets_of_five_channels(tmp_path):
        names = data.image_names("test")
        numbers = np.array([int(re.findall(r"\d+", name)[-1]) for name in names])
        options = {"image_size": SIZE, "batch_size": len(numbers), "mode": FIVE}
        pixels, labels, _ = take(data.test(**options), 1)
        np.testing.assert_allclose(pixels[0], scaled[numbers], atol=1e-5)
        np.testing.assert_array_equal(labels[0], numbers % 2)
        image, _ = data.read("test", 0)
        np.testing.assert_allclose(image, LONG[numbers[0]] / 257, rtol=1e-6)
        batches = data.train(**options, protocol="vit_jax", erase=0.5)
        model.fit(batches, steps_per_epoch=1, shuffle=False, verbose=0)
        for refused in ({"augment": "light1"}, {"crops": CROPS["dino"]}):
            with pytest.raises(ValueError, match=f"`{[*refused][0]}.* 5 channels"):
                data.train(**options, **refused)
    model.save(tmp_path / "model.keras")
    trained = keras_vit.evaluation.load_classifier(str(tmp_path / "model.keras"))
    data, files = keras_vit.data.load_files([tmp_path / "tif"])
    data = trained.adapt(data)
    batches = data.test(image_size=SIZE, batch_size=8, mode=FIVE)
    found, _ = keras_vit.evaluation.predict_dataset(trained.predictor, batches, 20)
    expected = model.predict(scaled[[int(path.stem) for path in files]], verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    write_folder(tmp_path, {"npy/a/picture.png": noise(9, 9)})
    with pytest.raises(ValueError, match="npy' .5. and .*picture.png' .a picture"):
        keras_vit.data.load_dataset(str(tmp_path / "npy"))


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(images=np.zeros((4, 8, 8), "uint8")), r"\(4, 8, 8\).*None\]"),
        (dict(images=np.zeros((4, 8, 8, 3), int)), r"int64.*astype"),
        (dict(images=np.full((4, 8, 8, 3), 0.5)), r"0.5 to 0.5.*\* 255"),
        (dict(images=np.full((4, 8, 8, 3), np.nan)), r"nan"),
        (dict(labels=[0, 1, 0]), r"be 4 integers.*\(3,\)"),
        (dict(labels=[0, 1, 0, -1]), r"integers of 0 or more"),
        (dict(labels=["a", "b", "a", "b"]), r"'a'.*np.unique"),
        (dict(labels=[0, 0, 0, 0]), r"two classes.* 0"),
        (dict(labels=[[0, 2]] * 4), r"zeros and ones.* 2"),
        (dict(class_names=["a", "a"]), r"different"),
        (
            dict(test=(np.zeros((1, 8, 8, 1), "uint8"), [0])),
            r"channels.*\((3|1),\)",
        ),
        (dict(holdout=1.0), r"holdout.*1.0"),
    ],
)
def test_wrong_arrays_raise(change, words):
    arguments = {
        "images": np.zeros((4, 8, 8, 3), "uint8"),
        "labels": [0, 1, 0, 1],
        **change,
    }
    with pytest.raises(ValueError, match=words):
        keras_vit.data.from_arrays(**arguments)


def test_classes_of_a_csv_file(images, tmp_path):
    """Numbers are sorted as numbers, and other columns are ignored."""
    rows = [(i, "x", [2, 10, 9][i % 3]) for i in range(9)]
    path = write_csv(tmp_path, images[:9], rows, "file_name,note,class")
    data = keras_vit.data.load_dataset(str(path))
    assert (data.name, data.class_names) == ("photos", ("2", "9", "10"))


@pytest.mark.parametrize("delimiter", ";\t")
def test_cells_may_be_separated_as_spreadsheets_do(delimiter, images, tmp_path):
    rows = [(i, "a| b" if i % 2 else "c") for i in range(4)]
    path = write_csv(tmp_path, images[:4], rows, "file,class")
    text = path.read_text().replace(",", delimiter).replace("|", ",")
    path.write_text(text)
    data = keras_vit.data.load_dataset(str(path))
    assert data.class_names == ("a, b", "c")


@pytest.mark.parametrize(
    "header, delimiter",
    [('file,class,"notes; a; b; c"', ","), ('file;class;"notes, a, b, c"', ";")],
)
def test_quoted_names_of_columns_do_not_decide_on_the_delimiter(
    header, delimiter, images, tmp_path
):
    path = write_csv(tmp_path, images[:4], [(i, "ab"[i % 2], "") for i in range(4)])
    rows = path.read_text().partition("\n")[2].replace(",", delimiter)
    path.write_text(f"{header}\n{rows}")
    assert keras_vit.data.load_dataset(str(path)).class_names == ("a", "b")


def test_csv_file_and_folder_have_the_same_split(images, tmp_path):
    named = {f"{'abc'[i % 3]}/{i}.png": x for i, x in enumerate(images)}
    write_folder(tmp_path, named)
    rows = [f"{name},{name[0]}" for name in named]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(["path,label", *reversed(rows)]))
    folder = keras_vit.data.load_dataset(str(tmp_path), 0.2)
    data = keras_vit.data.load_dataset(str(table), 0.2)
    for split in ("train", "validation", "test"):
        assert set(data.image_names(split)) == set(folder.image_names(split))


@pytest.mark.parametrize(
    "text, options, words",
    [
        ("a,b\n0.png,1\n", {}, r"'image' or .*'a', 'b'"),
        ("image,label\n", {}, r"no rows"),
        ("", {}, r"none"),
        ("image,label\n0.png,a,b\n", {}, r"Line 2 .*2 values.*'b'"),
        ("image,label\n0.png,a\n1.png,\n", {}, r"Line 3 .*multi_label=True"),
        ("image,label\n0.png,a\n1.png,a\n", {}, r"two classes.*: a"),
        ("image,label\n0.png,a\nno.png,b\n", {}, r"no.png' \(line 3\)"),
        ("image,label\n0.png,a\n1.png,b\n", {}, r"column 'split'"),
        (
            "image,label,split\n0.png,a,x\n1.png,b,x\n",
            {},
            r"Line 2 .*train, .*'x'",
        ),
        ("image,label,split\n0.png,a,train\n1.png,b,train\n", {}, r"'train'"),
        (
            "image,label,split\n0.png,a,train\n0.png,b,test\n",
            {},
            r"Line 3 .*'test' for '0.png', before 'train'",
        ),
        ("image,label\n0.png,a\n", {"label_column": "kind"}, r"'kind'"),
        ("image,label,label\n0.png,a,b\n", {}, r"'label'. Received: 2 of"),
        ("image,label\n0.png,a\n", {"split_column": "fold"}, r"'fold'"),
        ("image,label\n0.png,\xe9\n", {}, r"UTF-8"),
        ('image,label\n"0.png,a\n', {}, r"is not a CSV file"),
        (
            "image,label\n0.png,a;b\n1.png,a\n0.png,c\n",
            {},
            r"'0.png' is 'a;b' in line 2 and 'c' in line 4.*'a;b;c'",
        ),
    ],
)
def test_wrong_csv_files_raise(text, options, words, images, tmp_path):
    path = write_csv(tmp_path, images[:2], [])
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=words):
        keras_vit.data.from_csv(path, **options)


def test_split_does_not_depend_on_how_a_csv_file_is_named(
    images, tmp_path, monkeypatch
):
    folder = tmp_path / "photos"
    rows = list(zip(range(30), LABELS, strict=True))
    path = write_csv(folder, images, rows)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    expected = None
    (folder / "x").mkdir()
    for prefix in ("", folder, tmp_path / "link", folder / "x" / ".."):
        lines = [f"{os.path.join(prefix, f'{i}.png')},{x}" for i, x in rows]
        path.write_text("\n".join(["image,label", *lines]))
        for name in ("photos.csv", "../link/photos.csv", path):
            data = keras_vit.data.load_dataset(str(name), holdout=0.2)
            found = [
                sorted(map(os.path.basename, data.image_names(split)))
                for split in ("train", "validation", "test")
            ]
            expected = expected or found
            assert found == expected
    # Computed once. A change would move images from training to test.
    assert expected[2] == ["14.png", "23.png", "25.png"]


def test_lines_that_repeat_an_image_are_in_one_split(images, tmp_path):
    """Also where the only image of a class has a small hash."""
    rows = [(i, f"class{i}") for i in range(29)] * 2 + [(29, "class28")]
    path = write_csv(tmp_path, images, rows)
    with pytest.warns(UserWarning, match="test images more than once: "):
        data = keras_vit.data.load_dataset(str(path))
    train, test = map(data.image_names, ("train", "test"))
    assert len(train) + len(test) == 59 and test
    assert not set(train) & set(test)


def test_classes_that_differ_by_case_or_spaces_are_reported(images, tmp_path):
    rows = list(zip(range(30), ["cat", "Cat", "dog"] * 10, strict=True))
    path = write_csv(tmp_path / "csv", images, rows)
    with pytest.warns(UserWarning, match="accents: 'Cat', 'cat'. They"):
        keras_vit.data.load_dataset(str(path))
    named = {f"{x.replace('Cat', 'cat ')}/{i}.png": images[i] for i, x in rows}
    write_folder(tmp_path / "folder", named)
    with pytest.warns(UserWarning, match="accents: 'cat', 'cat '. They"):
        keras_vit.data.load_dataset(str(tmp_path / "folder"))


def test_splits_of_huggingface(images):
    train = table(images[:20], LABELS[:20])
    test = table(images[20:], LABELS[20:])
    unlabeled = table(images[:4], [-1] * 4)

    def sizes(test_split=None, **splits):
        data = keras_vit.data.from_huggingface(splits, test_split=test_split)
        return data.num_train, data.num_test, data.image_names("test")[0]

    data = keras_vit.data.from_huggingface({"train": train, "test": test})
    assert data.class_names == ("cat", "dog", "owl")
    pixels, labels = images_of(data, "test")
    np.testing.assert_array_equal(pixels, images[20:])
    np.testing.assert_array_equal(labels, LABELS[20:])
    assert sizes(train=train, test=test) == (20, 10, "test[0]")
    assert sizes(test=unlabeled, validation=test, train=train) == (
        *(20, 10, "validation[0]"),
    )
    assert sizes("extra", train=train, test=test, extra=train)[1] == 20
    assert sizes(test=test)[:2] == (0, 10)


def test_huggingface_reads_only_the_needed_rows(images):
    rows = table(images, LABELS)
    data = keras_vit.data.from_huggingface(rows)
    assert rows.read == [0]  # to see whether it is an image
    take(data.train(start=10**9, **OPTIONS), 1)
    assert len(rows.read) < 100


def test_labels_of_huggingface_without_names(images):
    names = [["b", "a", "c"][i] for i in LABELS]
    data = keras_vit.data.from_huggingface(Table(None, image=images, label=names))
    assert data.class_names == ("a", "b", "c")
    _, labels = images_of(data, "test")
    numbers = [int(re.findall(r"\d+", n)[0]) for n in data.image_names("test")]
    assert [data.class_names[i] for i in labels] == [names[i] for i in numbers]


def test_huggingface_images_become_pixels(images):
    from PIL import Image

    pixels = images[0]
    np.testing.assert_array_equal(to_pixels(pixels, 3), pixels)
    encoded = {"bytes": encode(pixels), "path": None}
    np.testing.assert_array_equal(to_pixels(encoded, 3), pixels)
    gray = np.asarray(Image.fromarray(pixels).convert("L"))
    for image in (gray, Image.fromarray(gray), gray[..., None]):
        np.testing.assert_array_equal(to_pixels(image, 1)[..., 0], gray)
        assert (to_pixels(image, 3) == gray[..., None]).all()
    alpha = np.dstack([pixels, pixels[..., 0]])
    np.testing.assert_array_equal(to_pixels(pillow(alpha), 3), pixels)
    deep = Image.fromarray(gray.astype("uint16") * 256 + 7)
    np.testing.assert_array_equal(to_pixels(deep, 1)[..., 0], gray)
    # The EXIF orientation is applied.
    turned = Image.fromarray(pixels)
    exif = turned.getexif()
    exif[0x112] = 6
    content = encode(turned, "PNG", exif=exif)
    np.testing.assert_array_equal(
        to_pixels({"bytes": content}, 3), np.rot90(pixels, -1)
    )


def broken(images, labels):
    rows = table(images, labels)
    rows.columns["image"][3] = "no image"
    return rows


def test_unreadable_huggingface_image_is_named(images):
    data = keras_vit.data.from_huggingface(
        {"train": table(images, LABELS), "test": broken(images, LABELS)}
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        take(data.test(**OPTIONS), 9)
    for i in range(100):  # other workers fail before this error is raised
        with pytest.raises(ValueError):
            pipeline.unreadable(f"later {i}".encode())
    assert "'test[3]'" in str(keras_vit.data.find_data_error(caught.value))


class Stream:
    features = {"image": None, "label": None}

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(dataset=Stream()), "streaming.*Stream"),
        (dict(image_column="img"), "'img'.*'image', 'label'"),
        (dict(label_column="kind"), "'kind'.*'image', 'label'"),
        (dict(image_column="label"), "uint8 array"),
        (dict(test_split="real"), "'real'.*'train'"),
        (dict(channels=4), "width, 4"),
        (dict(names=("dog", "cat", "owl")), "same class names"),
        (dict(split="extra"), "'extra'"),
    ],
)
def test_wrong_arguments_of_huggingface_raise(change, words, images):
    change = dict(change)
    rows = table(images, LABELS)
    if names := change.pop("names", None):
        rows = {"train": rows, "test": table(images, LABELS, names)}
    elif split := change.pop("split", None):
        rows = {split: rows}
    with pytest.raises(ValueError, match=words):
        keras_vit.data.from_huggingface(**{"dataset": rows, **change})


@pytest.mark.parametrize("label", [None, 0.5, -1, 3, [1]])
def test_wrong_labels_of_huggingface_raise(label, images):
    rows = table(images, LABELS)
    rows.columns["label"][5] = label
    with pytest.raises(ValueError, match=re.escape(f"train[5]: {label!r}")):
        keras_vit.data.from_huggingface(rows)


def test_recipes_evaluate_on_the_validation_images_of_a_csv_file(images, tmp_path):
    """Without --holdout."""
    splits = ["train"] * 20 + ["validation"] * 6 + ["test"] * 4
    rows = zip(range(30), LABELS, splits, strict=True)
    path = write_csv(tmp_path, images, rows, "image,label,split")
    config = programs.Settings(dataset=str(path), output=str(tmp_path / "run"))
    _, data, _ = setup.begin(config)
    assert data.name == "photos" and len(data.class_names) == 3
    assert data.evaluation_split == "validation" and data.num_evaluation == 6


@pytest.mark.parametrize(
    "labels, test, words",
    [
        ([0, 1, 0, 1], [2, 1], "1 of 3 .* no training image.*: c"),
        (np.eye(3, dtype=int)[[0, 1, 2, 0]], None, r"argmax\(1\)"),
    ],
)
def test_unusual_labels_warn(images, labels, test, words):
    test = test and (images[:2], np.array(test))
    with pytest.warns(UserWarning, match=words):
        keras_vit.data.from_arrays(images[:4], np.array(labels), test, "abc")


def test_unusable_csv_files_raise(images, tmp_path):
    (tmp_path / "photos.txt").touch()
    for name in ("photo.csv", "photos.txt"):
        with pytest.raises((ValueError, OSError), match="not a CSV file|photo.csv"):
            keras_vit.data.load_dataset(str(tmp_path / name))
    path = write_csv(tmp_path, images[:9], [(i, LABELS[i]) for i in range(9)])
    (tmp_path / "3.png").write_bytes(encode(images[3])[:100])
    with pytest.raises(ValueError, match="3.png"):
        keras_vit.data.load_dataset(str(path))
    with pytest.warns(UserWarning, match="1 of 9 .*3.png"):
        data = keras_vit.data.load_dataset(str(path), skip_bad_images=True)
    assert data.num_train + data.num_test == 8 and data.num_skipped == 1


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("header", "row", "end"),
    [
        (" Image , LABEL ", "{} , {}", ""),
        ("image, label", '"{}", "{}"', ""),
        ("Label,image,label", "0,{},{}", ",,"),
    ],
    ids=["spaces and case", "space before a quotation mark", "row of empty cells"],
)
def test_csv_as_people_write_it(tmp_path, header, row, end):
    rows = []
    for i in range(6):
        pixels = np.zeros((8, 8, 3))
        keras.utils.save_img(tmp_path / f"x{i}.png", pixels, scale=False)
        rows.append(row.format(f"x{i}.png", ("cat", "dog")[i % 2]))
    (tmp_path / "x.csv").write_text("\n".join([header, *rows, end]))
    data = keras_vit.data.from_csv(tmp_path / "x.csv")
    assert data.class_names == ("cat", "dog")
