"""Bad image files are detected without decoding them."""

import re
import struct
import zlib

import pytest
from PIL import Image

from keras_vit.data import image_files
from keras_vit.data.image_files import find_defect, median_side
from tests.training.pictures import encode, noise

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
    "WebP": (encode(PIXELS, "WEBP"), "is not a JPEG"),
    "TIFF": (encode(PIXELS, "TIFF"), "is not a JPEG"),
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
    assert find_defect(path, thorough=False) is None and not decoded
    for percent in (1, 10, 50, 90, 99):
        path.write_bytes(content[: max(1, len(content) * percent // 100)])
        assert find_defect(path, thorough=False) or decoded, percent
        decoded.clear()
    path.write_bytes(content + b"what a camera adds" * 99)
    assert find_defect(path, thorough=False) is None
    assert bool(decoded) != name.startswith("BMP")


def test_unreadable_file_is_reported(tmp_path):
    assert "cannot be read: No such file" in find_defect(tmp_path / "x")


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
