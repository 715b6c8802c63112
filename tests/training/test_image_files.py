"""Bad image files are detected without decoding them."""

import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import image_files, load_files
from keras_vit.data.decoding import decode, read_pixels
from keras_vit.data.image_files import find_defect, median_side
from keras_vit.utils.array_files import open_array
from tests.training.pictures import encode, encode_tiff, noise

pytestmark = pytest.mark.backends("tensorflow")
PIXELS = noise(40, 56)


def changed(content, at, form, *values):
    content = bytearray(content)
    struct.pack_into(form, content, at, *values)
    return bytes(content)


def jpeg_of(height, width, **options):
    content = encode(PIXELS, "JPEG", **options)
    at = content.find(b"\xff\xc2" if options else b"\xff\xc0") + 5
    return changed(content, at, ">HH", height, width)


def png_of(height, width):
    content = changed(encode(PIXELS), 16, ">II", width, height)
    return changed(content, 29, ">I", zlib.crc32(content[12:29]))


def exif():
    found = Image.Exif()
    found[0x112] = 6
    return found


BMP, GIF = encode(PIXELS, "BMP"), encode(PIXELS, "GIF")
BMP_OF_32 = encode(Image.fromarray(PIXELS).convert("RGBA"), "BMP")

FAULTS = {
    "nothing": (b"", "is empty"),
    "text": (b"a text that is named .jpg", "is not a JPEG"),
    "PPM": (encode(PIXELS, "PPM"), "is not a JPEG"),
    "PNG bomb": (png_of(20000, 20000), "more than 134 million pixels"),
    "JPEG bomb": (jpeg_of(20000, 20000), "134 million"),
    "progressive": (jpeg_of(65000, 65000, progressive=True), "134 million"),
    "GIF bomb": (changed(GIF, 6, "<HH", 60000, 50000), "134 million"),
    "BMP bomb": (changed(BMP, 18, "<ii", 20000, -20000), "134 million"),
    "large": (jpeg_of(11000, 13000), "is 11000 x 13000 pixels: .* 134 million"),
    "high": (png_of(10000, 1), "10000 x 1 pixels: .* at most 100 times"),
    "wide": (jpeg_of(1, 10000), "1 x 10000 pixels: .* one is"),
    "palette": (encode(noise(9, 9, 1), "BMP"), "is a BMP of 8 bits"),
    "OS/2": (changed(BMP, 14, "<I", 12), "is a BMP of OS/2"),
    "masks": (changed(changed(BMP, 30, "<I", 3), 54, "<I", 255), "an order"),
}


@pytest.mark.filterwarnings("ignore:Image size")  # by Pillow
@pytest.mark.parametrize("name", FAULTS)
def test_bad_headers_are_reported(name, tmp_path):
    content, words = FAULTS[name]
    (tmp_path / "x").write_bytes(content)
    fault = find_defect(tmp_path / "x", thorough=False)
    assert fault is not None
    assert re.search(words, fault), fault


GOOD = {
    "JPEG": encode(PIXELS, "JPEG"),
    "progressive": encode(PIXELS, "JPEG", progressive=True),
    "CMYK": encode(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
    "with EXIF": encode(PIXELS, "JPEG", exif=exif()),
    "PNG": encode(PIXELS),
    "GIF": GIF,
    "BMP": BMP,
    "BMP of 32 bits": BMP_OF_32,
    "WebP": encode(PIXELS, "WEBP"),
    "TIFF": encode(PIXELS, "TIFF"),
    "one pixel": encode(noise(1, 1), "JPEG"),
    "100 times": png_of(100, 1),
}


@pytest.mark.parametrize("name", GOOD)
def test_truncated_images_are_detected(name, tmp_path, monkeypatch):
    """Complete files are accepted without decoding them; truncated ones are
    decoded, unless their header is bad."""
    decoded = []
    monkeypatch.setattr(image_files, "decode", lambda *_: decoded.append(1))
    content, path = GOOD[name], tmp_path / "x"
    path.write_bytes(content)
    assert find_defect(path, thorough=False) is None
    assert bool(decoded) == (name == "TIFF")
    decoded.clear()
    for percent in (1, 10, 50, 90, 99):
        path.write_bytes(content[: max(1, len(content) * percent // 100)])
        assert find_defect(path, thorough=False) or decoded, percent
        decoded.clear()
    path.write_bytes(content + b"what a camera adds" * 99)
    assert find_defect(path, thorough=False) is None
    assert bool(decoded) != name.startswith(("BMP", "WebP"))


LONG = np.random.default_rng(0).integers(0, 65536, (20, 27, 5)).astype("uint16")
FLOATS = LONG.astype("float32") / 257
ARRAYS = {
    "NumPy": lambda path: np.save(path, LONG),
    "big-endian": lambda path: np.save(path, LONG.astype(">u2")),
    "floats": lambda path: np.save(path, FLOATS.astype("float64")),
    "by columns": lambda path: np.save(path, np.asfortranarray(FLOATS)),
    "TIFF": encode_tiff(LONG),
    "alpha": encode_tiff(np.insert(LONG, 3, 7, axis=-1), alpha=[0, 2, 0, 0]),
    "planes": encode_tiff(LONG, ">", planes=2),
    "differences": encode_tiff(LONG, ">", predictor=2),
    "tiles": encode_tiff(LONG, predictor=2, tile=16),
    "planes of tiles": encode_tiff(FLOATS, planes=2, predictor=3, tile=16),
    "differences of floats": encode_tiff(FLOATS, predictor=3),
    "pages": lambda path: Image.fromarray(LONG[..., 0]).save(
        path,
        "TIFF",
        save_all=True,
        append_images=[Image.fromarray(LONG[..., i]) for i in range(1, 5)],
        compression="tiff_lzw",
    ),
}


def write_array(folder, content):
    path = folder / ("x.tif" if isinstance(content, bytes) else "x.npy")
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    return path


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_channels_are_read(name, tmp_path):
    """Those of 16 bits are divided by 257, and floats are as they are."""
    path = write_array(tmp_path, ARRAYS[name])
    if name == "pages":
        path = path.rename(path.with_suffix(".tiff"))
    assert find_defect(path, thorough=False) is None
    array = open_array(path)
    assert array.shape == (20, 27, 5)
    found = array.read()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, FLOATS, rtol=1e-6)
    assert median_side([path]) == 24
    path.write_bytes(path.read_bytes()[: len(LONG.tobytes()) // 3])
    assert find_defect(path, thorough=False)


@pytest.mark.parametrize("turn", range(1, 9))
def test_arrays_are_turned_as_pictures(turn, tmp_path):
    path = write_array(tmp_path, encode_tiff(PIXELS[..., [0, 1, 2, 0]], turn=turn))
    picture = Image.fromarray(PIXELS)
    picture.getexif()[0x112] = turn
    expected = np.asarray(ImageOps.exif_transpose(picture))[..., [0, 1, 2, 0]]
    assert open_array(path).shape == expected.shape
    np.testing.assert_array_equal(open_array(path).read(), expected)


@pytest.mark.parametrize(
    "content, words",
    [
        (lambda path: np.save(path, LONG.astype("int32")), "type int32, from"),
        (lambda path: np.save(path, FLOATS / 255), r"float32, from .*\* x`"),
        (lambda path: np.save(path, FLOATS * np.nan), "from nan"),
        (lambda path: np.save(path, np.moveaxis(LONG, -1, 0)), "moveaxis"),
        (lambda path: np.save(path, [{}], allow_pickle=True), "Python objects"),
        (lambda path: path.write_bytes(b"text"), "EOF"),
        (encode_tiff(FLOATS - 9), "from -8"),
        (encode_tiff(np.zeros((4, 4, 17), "uint8")), "up to 16"),
    ],
)
def test_arrays_that_are_no_images_are_reported(content, words, tmp_path):
    path = write_array(tmp_path, content)
    assert re.search(words, find_defect(path, thorough=False))


def test_unreadable_file_is_reported(tmp_path):
    assert "cannot be read: No such file" in find_defect(tmp_path / "x")
    # NumPy's message ends in a period.
    np.save(tmp_path / "x.npy", np.array([None]))
    assert find_defect(tmp_path / "x.npy").endswith("objects in dtype.")


def test_median_side_of_a_sample_of_images(tmp_path):
    """Only headers are read, of a sample of the whole list."""
    paths = []
    sizes = [(28, 28)] * 5 + [(40, 44)] * 5 + [(10, 900)]
    for i, (height, width) in enumerate(sizes):
        content = (png_of, jpeg_of)[i % 2](height, width)
        paths.append(tmp_path / str(i))
        paths[-1].write_bytes(content[:-20])
    assert median_side(paths) == 34  # between 28 and 40
    assert median_side(paths[:5]) == 28
    assert median_side(paths[:10], sample=2) == 34  # of 28, 28, 40, 44
    assert median_side([]) is None


def test_a_truncated_tiff_is_refused_or_skipped(tmp_path):
    image = Image.new("RGB", (40, 20))
    for name in ("a.tif", "b.tif"):
        image.save(tmp_path / name)
    content = (tmp_path / "b.tif").read_bytes()
    (tmp_path / "b.tif").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(ValueError, match=r"b\.tif' cannot be decoded"):
        load_files([tmp_path])
    with pytest.warns(UserWarning, match="1 of 2 images cannot be used"):
        _, files = load_files([tmp_path], skip_bad_images=True)
    assert [file.name for file in files] == ["a.tif"]


def test_bad_images_are_found_without_decoding_the_others(tmp_path, monkeypatch):
    good = {"a.png": encode(PIXELS), "b.jpg": encode(PIXELS, "JPEG")}
    content = good["a.png"]
    middle = len(content) // 2
    damaged = content[:middle] + bytes(20) + content[middle + 20 :]
    bad = {"c.jpg": b"text", "d.png": content[:middle], "e.png": damaged}
    for name, of_file in (good | bad).items():
        (tmp_path / name).write_bytes(of_file)
    decoded = []
    monkeypatch.setattr(image_files, "decode", lambda *given: decoded.append(given))
    with pytest.warns(UserWarning, match="3 of 5 images cannot be used"):
        _, files = load_files([tmp_path], skip_bad_images=True, decode_all=False)
    assert [file.name for file in files] == [*good] and not decoded
    with pytest.raises(ValueError, match=r"No image can be used: .*e\.png' cannot be"):
        load_files([tmp_path / "e.png"], skip_bad_images=True, decode_all=False)


def test_a_jpeg_that_simplejpeg_refuses_is_read_by_pillow(tmp_path):
    """`decode` reads it, with bytes between two parts of the header."""
    content = encode(PIXELS, "JPEG", quality=95)
    at = content.find(b"\xff\xc4")
    path = tmp_path / "a.jpg"
    path.write_bytes(content[:at] + bytes(9) + content[at:])
    simplejpeg = pytest.importorskip("simplejpeg")
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(path.read_bytes(), strict=False)
    expected = decode(path.read_bytes(), 3).numpy().astype(int)
    assert np.abs(read_pixels(path, 3) - expected).max() <= 16
