"""Bad image files are detected without decoding them."""

import re
import struct
import zlib

import pytest
from PIL import Image

from keras_vit.data._image_headers import check_header_and_trailer
from keras_vit.data._image_headers import median_side
from tests.training.pictures import encode
from tests.training.pictures import noise

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
    "PNG bomb": (png_of(20000, 20000), "20000 x 20000 pixels.*134 million"),
    "JPEG bomb": (jpeg_of(20000, 20000), "20000 x 20000"),
    "progressive": (jpeg_of(65000, 65000, progressive=True), "65000 x 65000"),
    "GIF bomb": (changed(GIF, 6, "<HH", 60000, 50000), "50000 x 60000"),
    "BMP bomb": (changed(BMP, 18, "<ii", 20000, -20000), "20000 x 20000"),
    "high": (png_of(10000, 1), "10000 x 1 pixels: one side may be 100 times"),
    "wide": (jpeg_of(1, 10000), "1 x 10000 pixels: one side"),
    "palette": (encode(noise(9, 9, 1), "BMP"), "is a BMP of 8 bits"),
    "OS/2": (changed(BMP, 14, "<I", 12), "is a BMP of OS/2"),
    "masks": (changed(changed(BMP, 30, "<I", 3), 54, "<I", 255), "an order"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_headers_are_reported(name, tmp_path):
    content, words = FAULTS[name]
    (tmp_path / "x").write_bytes(content)
    fault, _ = check_header_and_trailer(tmp_path / "x")
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
def test_truncated_images_are_detected(name, tmp_path):
    """Complete files are accepted; truncated ones are bad or lack the end
    marker."""
    content, path = GOOD[name], tmp_path / "x"
    path.write_bytes(content)
    assert check_header_and_trailer(path) == (None, True)
    for percent in (1, 10, 50, 90, 99):
        path.write_bytes(content[: max(1, len(content) * percent // 100)])
        fault, has_end = check_header_and_trailer(path)
        assert fault or not has_end, percent
    path.write_bytes(content + b"what a camera adds" * 99)
    fault, has_end = check_header_and_trailer(path)
    assert fault is None and has_end == name.startswith("BMP")


def test_unreadable_file_is_reported(tmp_path):
    assert (
        "cannot be read: No such file"
        in check_header_and_trailer(tmp_path / "x")[0]
    )


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
    (tmp_path / "text").write_bytes(b"a text")
    assert median_side([tmp_path / "text"]) is None
    assert median_side([]) is None
