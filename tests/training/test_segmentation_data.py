"""Data sets with masks: folders, TFDS, digits on photographs; their batches."""

import functools
import io
import shutil
import struct
import types
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import load_segmentation
from keras_vit.data import masks as mask_files
from keras_vit.data.canvases import IGNORE, digit_canvases, single_digits
from keras_vit.data.steps import places
from keras_vit.utils.images import to_pixels
from tests.training.batches import check_order, take
from tests.training.pictures import encode

pytestmark = pytest.mark.backends("torch")


def write(folder, name, size=(12, 16), mask=None, mode="L", suffix=".jpg"):
    """An image of which each row is of one color, and a mask."""
    rng = np.random.default_rng(sum(map(ord, name)))
    image = rng.integers(0, 256, (*size, 3)).astype("uint8")
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / "images" / f"{name}{suffix}")
    if mask is None:
        mask = np.arange(size[0] * size[1]).reshape(size) % 3
    pixels = Image.fromarray(mask.astype("uint8"), "L")
    if mode == "P":
        pixels = pixels.convert("P")
        pixels.putdata(list(mask.ravel()))
        pixels.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200] + [7] * 759)
    pixels.save(folder / "masks" / f"{name}.png")
    return mask


@pytest.mark.parametrize("mode", ["L", "P"])
def test_a_folder_of_gray_or_palette_masks(mode, tmp_path):
    for part in ("train", "test"):
        for name in "ab":
            mask = write(tmp_path / part, name, mode=mode, suffix=".png")
    mask[0, :5] = 255
    write(tmp_path / "test", "a", mask=mask, mode=mode, suffix=".png")
    data = load_segmentation(str(tmp_path))
    assert (data.num_train, data.num_test, data.channels) == (2, 2, 3)
    assert data.class_names == ("0", "1", "2") and data.ignore == 255
    image, found = data.read("test", 0)
    np.testing.assert_array_equal(found, mask)
    assert image.shape == (12, 16, 3) and image.dtype == np.uint8
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\nship\n")
    with pytest.warns(UserWarning, match="1 of the 4 classes .*: ship. 0.0%"):
        data = load_segmentation(str(tmp_path))
    assert data.class_names == ("sky", "sea", "land", "ship")
    (tmp_path / "classes.txt").write_text("sky\nsea \nSea\n")
    with pytest.warns(UserWarning, match="only by case.*: 'sea', 'Sea'"):
        assert load_segmentation(str(tmp_path)).class_names == ("sky", "sea", "Sea")


def test_a_folder_without_splits(tmp_path):
    for i in range(12):
        write(tmp_path, f"p{i}")
    data = load_segmentation(str(tmp_path))
    assert data.num_train + data.num_test == 12 and data.num_test > 0
    write(tmp_path, "p12")  # moves no other image
    more = load_segmentation(str(tmp_path))
    assert more.num_test - data.num_test in (0, 1)


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_an_image_of_too_many_pixels_is_named(kind, tmp_path):
    for name in "ab":
        write(tmp_path, name, suffix=".png")
    (tmp_path / kind / "a.png").write_bytes(png(10**5, 10**5, 8))
    message = f"{kind}/a.png: Image size .10000000000 pixels. exceeds limit"
    with pytest.raises(ValueError, match=message):
        load_segmentation(str(tmp_path))


def pixels(of=np.uint8, value=None):
    """An image of 12 x 16 pixels."""
    array = np.arange(192).reshape(12, 16) % 3 if value is None else value
    return Image.fromarray(np.array(array).astype(of))


# What is done to the files of image a, and the error.
WRONG = {
    "no mask": (
        lambda _, m: m.unlink(),
        "PNG files.* an image or a mask of a$",
    ),
    "no image": (lambda x, _: x.unlink(), "an image or a mask of a$"),
    "size": (
        lambda _, m: pixels(value=np.zeros((8, 16))).save(m),
        "a.png is of 8 x 16 .* a.jpg of 12 x 16: resize",
    ),
    "colors": (
        lambda _, m: pixels().convert("RGB").save(m),
        r"masks/a.png: its pixels are colors \(mode 'RGB'\)",
    ),
    "class": (
        lambda _, m: pixels(value=[[0] * 16] + [[7] * 16] * 11).save(m),
        "a.png has the class 7, and classes.txt names 3: 0 to",
    ),
    "text": (
        lambda _, m: m.write_bytes(b"none"),
        "masks/a.png: cannot identify",
    ),
    "JPEG": (
        lambda _, m: pixels().save(m, "JPEG"),
        "a.png: it is a file of JPEG",
    ),
    "truncated": (
        lambda x, _: x.write_bytes(x.read_bytes()[:-60]),
        "images/a.jpg: image file is truncated",
    ),
    "two": (
        lambda x, _: pixels().save(x.with_suffix(".png")),
        "images/a.png has the same mask as a.jpg",
    ),
    **{
        kind: (
            lambda x, _, kind=kind: pixels(kind).save(x.with_suffix(".tif")),
            "a.tif: its pixels are .*8 bits",
        )
        for kind in ("float32", "int32")
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_named(name, tmp_path):
    change, words = WRONG[name]
    for image in "abc":
        write(tmp_path, image)
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    (tmp_path / "images" / "._a.png").write_bytes(b"hidden")
    image = tmp_path / "images" / "a.jpg"
    change(image, tmp_path / "masks" / "a.png")
    if name in ("float32", "int32"):
        image.unlink()
        with pytest.raises(ValueError, match="its pixels are"):
            to_pixels(pixels(name), 3)
    with pytest.raises(ValueError, match=words):
        load_segmentation(str(tmp_path))
    if name == "class":  # 7 may be that of pixels without a class
        assert load_segmentation(str(tmp_path), ignore=7).num_test


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_and_masks_are_turned_by_exif(orientation, tmp_path):
    """A mask is drawn on the upright photo, or stored like the photo."""
    upright = np.zeros((16, 24), "uint8")
    upright[:8] = upright[:, :8] = 1
    exif = Image.Exif()
    exif[0x112] = orientation
    turns = [np.rot90(upright, k) for k in range(4)]
    stored = next(
        array
        for array in (*turns, *(x[:, ::-1] for x in turns))
        if np.array_equal(turned(array, exif), upright)
    )
    for part in ("train", "test"):
        for name, suffix in (("a", ".jpg"), ("b", ".png"), ("c", ".tif")):
            write(tmp_path / part, name, upright.shape, upright, suffix=suffix)
            path = tmp_path / part / "images" / f"{name}{suffix}"
            Image.fromarray(stored * 200).save(path, exif=exif)
        mask = Image.fromarray(stored.astype("uint16"))
        mask.save(tmp_path / part / "masks" / "c.png", exif=exif)
    data = load_segmentation(str(tmp_path))
    for i in range(3):
        image, mask = data.read("test", i)
        np.testing.assert_array_equal(mask, upright)
        np.testing.assert_array_equal(image[..., 0] > 100, upright)


def turned(array, exif):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png", exif=exif)
    return np.asarray(ImageOps.exif_transpose(Image.open(file)))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_gray_masks_of_few_bits(bits, tmp_path):
    classes = min(2**bits, 20)
    mask = np.arange(64).reshape(8, 8) % classes
    rows = b"".join(
        b"\0"
        + np.packbits(
            (row[:, None] >> np.arange(bits)[::-1] & 1).astype("uint8")
        ).tobytes()
        for row in mask
    )
    for part in ("train", "test"):
        write(tmp_path / part, "a", size=(8, 8))
        path = tmp_path / part / "masks" / "a.png"
        path.write_bytes(png(8, 8, bits, rows))
    data = load_segmentation(str(tmp_path))
    np.testing.assert_array_equal(data.read("test", 0)[1], mask)
    assert len(data.class_names) == classes


def test_sub_folders_of_images_and_masks(tmp_path):
    for part in ("train", "test"):
        folder = tmp_path / part
        for name in ("a", "b"):
            write(folder, name)
        for kind, suffix in (("images", ".jpg"), ("masks", ".png")):
            (folder / kind / "more").mkdir()
            shutil.copy(folder / kind / f"b{suffix}", folder / kind / "more")
        (folder / "images" / "c.psd").write_bytes(b"8BPS")
    with pytest.warns(UserWarning, match="1 file is left out.*c.psd"):
        data = load_segmentation(str(tmp_path))
    assert (data.num_train, data.num_test) == (3, 3)


def test_images_and_masks_of_16_bits(tmp_path):
    for name in "ab":
        write(tmp_path / "train", name, suffix=".png")
        write(tmp_path / "test", name, suffix=".png")
    gray = np.arange(192).reshape(12, 16).astype("uint16") * 300
    Image.fromarray(gray).save(tmp_path / "test" / "images" / "a.png")
    mask = tmp_path / "test" / "masks" / "a.png"
    Image.fromarray((gray > 9000).astype("uint16")).save(mask)
    image, found = load_segmentation(str(tmp_path)).read("test", 0)
    np.testing.assert_array_equal(image, np.repeat(gray[..., None] // 256, 3, 2))
    np.testing.assert_array_equal(found, gray > 9000)
    Image.fromarray(gray // 300 + 65).save(mask)
    with pytest.raises(ValueError, match=r"below 256.*classes\.txt.*to 256"):
        load_segmentation(str(tmp_path))


@pytest.mark.parametrize("name", ["oxford_iiit_pet", "scene_parse150"])
def test_tfds(name, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    feature = mask_files.TFDS_MASKS[name][0]
    mask = np.array([[1, 2, 3], [3, 1, 0]], "uint8")
    stored = mask
    if name == "scene_parse150":
        stored = np.repeat(mask[..., None], 3, -1)
    example = {
        "image": encode(np.zeros((2, 3, 3), "uint8")),
        feature: encode(stored),
    }
    test = "test" if name == "oxford_iiit_pet" else "validation"
    builder = types.SimpleNamespace(
        info=types.SimpleNamespace(splits={"train": 0, test: 0}),
        is_prepared=lambda: True,
        download_and_prepare=lambda: None,
        as_dataset=lambda split, decoders: [example] * (2 if split == "train" else 1),
    )
    monkeypatch.setattr(tfds, "builder", lambda name: builder)
    monkeypatch.setattr(tfds, "as_numpy", lambda examples: examples)
    data = load_segmentation(name)
    assert (data.num_train, data.num_test) == (2, 1)
    image, found = data.read("test", 0)
    np.testing.assert_array_equal(found, [[0, 1, 2], [2, 0, 255]])
    assert image.shape == (2, 3, 3)
    count = {"oxford_iiit_pet": 3, "scene_parse150": 150}[name]
    assert len(data.class_names) == count
    with pytest.raises(ValueError, match="ignore=2"):
        load_segmentation(name, ignore=2)


def crop(image, mask, size, rng, scale, flip):
    found = places.draw_crop(mask.shape, size, rng, scale, flip)
    image = places.resize_image(image, found.scaled)
    mask = places.resize_mask(mask, found.scaled)
    return (places.cut(x, found, size, fill) for x, fill in ((image, 127), (mask, 99)))


def test_image_and_mask_are_cropped_alike():
    """The mask of an image is made of its pixels."""
    y, x = np.mgrid[:24, :40]
    image = np.stack([6 * y, 6 * x, 0 * x], -1).astype("uint8")
    mask = (y // 8 * 5 + x // 8).astype("int32")
    rng = np.random.default_rng(0)
    for flip in (False, True):
        for _ in range(20):
            pixels, classes = crop(image, mask, (16, 16), rng, 2.0, flip)
            assert pixels.shape == (16, 16, 3) and classes.shape == (16, 16)
            kept = classes != 99
            rows, columns = pixels[..., 0] / 6, pixels[..., 1] / 6
            for place, truth in ((rows, classes // 5), (columns, classes % 5)):
                assert (np.abs(place - (8 * truth + 3.5))[kept] < 5.1).all()
            assert (pixels[~kept] == 127).all()
    whole, same = crop(image, mask, (24, 40), rng, 1.0, False)
    np.testing.assert_array_equal(whole, image)
    np.testing.assert_array_equal(same, mask)


def test_evaluation_has_each_image_once(tmp_path):
    for part, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            write(tmp_path / part, name, size=(12, 12))
    data = load_segmentation(str(tmp_path))
    evaluation = functools.partial(data.evaluation, image_size=12, batch_size=2)
    assert [len(evaluation()[i][0]) for i in range(2)] == [2, 1]
    assert len(evaluation(pad=True)) == 2
    images, masks, weights = map(np.concatenate, take(evaluation(pad=True), 2))
    assert len(images) == 4 and (masks[3] == 255).all()
    assert weights.shape == (4, 1, 1) and weights.mean() == 1
    for i in range(3):
        image, mask = data.read("test", i)
        np.testing.assert_allclose(images[i], image / 127.5 - 1, atol=1e-6)
        np.testing.assert_array_equal(masks[i], mask)
    sharded = [evaluation(shard=(i, 2)) for i in (0, 1)]
    assert [len(x) for x in sharded] == [2, 2]
    parts = np.concatenate([b[1] for x in sharded for b in x])
    assert sum((m != 255).any() for m in parts) == 3


def test_digits_on_photographs():
    data = digit_canvases()
    assert len(data.class_names) == 11 and data.channels == 1
    found = set()
    for index in range(12):
        image, mask = data.read("train", index)
        again = data.read("train", index)
        np.testing.assert_array_equal(image, again[0])
        assert image.shape == (24, 24, 1) and mask.shape == (24, 24)
        values = set(np.unique(mask)) - {0, IGNORE}
        assert 1 <= len(values) <= 2
        ink = image[..., 0]
        assert ink[np.isin(mask, list(values))].mean() > ink[mask == 0].mean()
        found |= values
    assert len(found) > 5
    train, test = (data.read(part, 0)[0] for part in ("train", "test"))
    assert np.abs(train.astype(int) - test).max() > 20
    (images, labels), (others, _) = single_digits(16, 20, 10)
    assert images.shape == (20, 16, 16, 1) and others.shape == (10, 16, 16, 1)
    assert labels.min() >= 0 and labels.max() <= 9


@pytest.mark.parametrize(
    "files, ignore, words",
    [
        (None, None, "'nn'"),
        ("", None, "must hold .*/images"),
        ("a", None, "must hold"),
        ("ab", None, "2 or more classes"),
        ("ab", 0, r"Received: \[\], and 100.0% .* value 0"),
    ],
)
def test_no_data(files, ignore, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in files or "":
        write(tmp_path, file, mask=np.zeros((12, 16)))
    options = {} if ignore is None else {"ignore": ignore}
    with pytest.raises(ValueError, match=words):
        load_segmentation("nn" if files is None else str(tmp_path), **options)


def test_binary_masks_of_255_are_refused(tmp_path):
    """The object would be ignored, and the mean IoU would be 1."""

    def load(mask, classes, **options):
        for part in ("train", "test"):
            write(tmp_path / part, "a", mask=mask)
        (tmp_path / "classes.txt").write_text("\n".join(classes))
        return load_segmentation(str(tmp_path), **options)

    mask = np.zeros((12, 16))
    mask[:3] = 255
    names = ["background", "object"]
    for options, words in (
        ({}, r"2 or more classes.*: \[0\], and 25.0% of .* 255"),
        ({"ignore": -1}, "the class 255"),
        ({"ignore": 1}, "is 'object'"),
    ):
        with pytest.raises(ValueError, match=words):
            load(mask, names, **options)
    mask[5:] = 1  # of three classes, the last is that of ignored pixels
    with pytest.warns(UserWarning, match="1 of the 3 classes .*: border"):
        load(mask, [*names, "border"])
    with pytest.raises(ValueError, match="ignore=255, which is '255'"):
        load(None, map(str, range(256)))
    with pytest.warns(UserWarning, match="1 of the 3 classes .*: void"):
        assert load(None, ["void", "sky", "sea"], ignore=0).ignore == 0


def png(height, width, bits, rows=b""):
    """Returns a PNG of gray values of 1, 2, 4 or 8 bits."""

    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        )
    )


def test_batches_depend_on_seed_and_number(tmp_path):
    for name in "abcdefgh":
        write(tmp_path, name, size=(20, 30))
    data = load_segmentation(str(tmp_path))
    check_order(functools.partial(data.train, image_size=16, batch_size=4), 4)
