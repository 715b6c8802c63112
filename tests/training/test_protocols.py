"""Each protocol against a definition in NumPy."""

import functools
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import decoding
from keras_vit.data.protocols import (
    PROTOCOLS,
    find_protocol,
    protocol_of,
    resizing_of,
)
from keras_vit.utils.images import read_image
from tests.training.pictures import bilinear, cropped, encode, noise

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")
SEED = (3, 5)


def positions_in(small, large):
    size = small.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(large, small.shape)
    errors = np.abs(windows[:, :, 0] - small).max((2, 3, 4))
    assert windows.shape[:2] == tuple(n - size + 1 for n in large.shape[:2])
    return np.argwhere(errors < 1e-2)


def random_area(encoded, channels, seed):
    window = functools.partial(decoding.sample_crop_window, seed=seed)
    return decoding.decode(encoded, channels, window)


def window(image, seed):
    """The published call, on the whole decoded image."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        image.shape,
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0,
        area_range=(0.05, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    (y, x, _), (height, width, _) = begin.numpy(), size.numpy()
    return slice(y, y + height), slice(x, x + width)


# main_pretrain.py of facebookresearch/mae; data/data_simmim.py of
# microsoft/SimMIM, whose interpolation is torchvision's default.
MASKED = {
    "mae": ((0.2, 1.0), Image.Resampling.BICUBIC),
    "mae-finetune": ((0.08, 1.0), Image.Resampling.BICUBIC),
    "simmim": ((0.67, 1.0), Image.Resampling.BILINEAR),
}


@pytest.mark.parametrize("name", MASKED)
def test_random_resized_crops_match_pillow(name):
    scale, resampling = MASKED[name]
    train = PROTOCOLS[name].for_training(None)
    for i, shape in enumerate([(61, 83), (20, 90), (300, 200)]):
        pixels = noise(*shape)
        window = decoding.sample_resized_crop_window((*shape, 3), (0, i), scale)
        top, left, height, width = window.numpy().tolist()
        part = Image.fromarray(pixels).crop((left, top, left + width, top + height))
        expected = np.asarray(part.resize((32, 32), resampling)).astype(int)
        found = cropped(train, encode(pixels), (0, i), (32, 32)).numpy()
        assert np.abs(found - expected).max() <= 1
        np.testing.assert_array_equal(found, np.round(found))


# In narrow images some crops do not fit.
@pytest.mark.parametrize(
    "name, shape",
    [("mae", (375, 500)), ("mae-finetune", (60, 400)), ("simmim", (400, 60))],
)
def test_random_resized_crop_windows_match_torchvision(name, shape):
    transforms = pytest.importorskip("torchvision.transforms")
    torch = pytest.importorskip("torch")
    from scipy import stats

    scale, _ = MASKED[name]
    count = 800
    image = torch.zeros(3, *shape)
    torch.manual_seed(0)
    sample = transforms.RandomResizedCrop.get_params
    expected = np.array([sample(image, scale, (3 / 4, 4 / 3)) for _ in range(count)])
    seeds = tf.constant([[0, i] for i in range(count)], tf.int64)

    @tf.function
    def windows(seeds):
        return tf.map_fn(
            lambda seed: decoding.sample_resized_crop_window((*shape, 3), seed, scale),
            seeds,
            fn_output_signature=tf.int32,
        )

    found = windows(seeds).numpy()
    assert (found[:, :2] >= 0).all()
    assert (found[:, :2] + found[:, 2:] <= shape).all()
    for column in range(4):
        p = stats.ks_2samp(found[:, column], expected[:, column]).pvalue
        assert p > 1e-3, column


@pytest.mark.parametrize("name", MASKED)
def test_masked_protocols_evaluate_the_center_crop(name):
    """`Resize` and `CenterCrop` of torchvision, for 56 as for 224 pixels."""
    transforms = pytest.importorskip("torchvision.transforms")
    bicubic = transforms.InterpolationMode.BICUBIC
    both = transforms.Compose(
        [transforms.Resize(64, bicubic), transforms.CenterCrop(56)]
    )
    for shape in ((90, 150), (150, 91), (40, 51)):
        pixels = noise(*shape)
        expected = np.asarray(both(Image.fromarray(pixels))).astype(int)
        found = cropped(PROTOCOLS[name].test, encode(pixels), SEED, (56, 56)).numpy()
        assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("crop_pct", [0.9, 0.875, 0.95, 1.0])
def test_protocols_of_timm_evaluate_as_its_transform(crop_pct, tmp_path):
    """Exactly with Pillow, which reads files, and within one gray level otherwise."""
    transform = pytest.importorskip("timm.data").create_transform(
        (3, 56, 56), crop_pct=crop_pct, interpolation="bicubic", mean=0, std=1
    )
    protocol = find_protocol(f"timm-{crop_pct}")
    for shape in ((90, 150), (150, 91), (40, 51), (56, 56)):
        pixels = noise(*shape)
        picture = Image.fromarray(pixels)
        expected = np.asarray(transform(picture)).transpose(1, 2, 0) * 255
        found = cropped(protocol.test, encode(pixels), SEED, (56, 56)).numpy()
        assert np.abs(found - expected).max() <= 1.01
        picture.save(tmp_path / "a.png")
        example = {"image": tmp_path / "a.png", "channels": 3}
        exact = protocol.test((56, 56))(example, None)["image"]
        np.testing.assert_allclose(exact, expected, atol=1e-4)
    assert protocol_of({"crop_pct": crop_pct, "crop_mode": "center"})
    assert find_protocol(protocol_of({"crop_pct": crop_pct})).test


@pytest.mark.parametrize("side", [224, 384])
def test_resizing_of_a_protocol_is_read_as_its_test_images(side):
    pixels = encode(noise(300, 451))
    for name in (*PROTOCOLS, "timm-0.95"):
        resizing = resizing_of(name, side)
        if name in ("big_vision", "pretrain", "few-shot", "whole"):
            assert resizing is None
        if resizing is None:
            continue
        expected, found = (
            cropped(find_protocol(x).test, pixels, SEED, (side, side)).numpy()
            for x in (name, protocol_of(resizing))
        )
        np.testing.assert_array_equal(found, expected)


def test_other_resizing_of_timm_has_no_protocol():
    for resizing in (
        None,
        {"interpolation": "bicubic"},
        {"interpolation": "bilinear", "crop_pct": 0.9},
        {"crop_mode": "squash", "crop_pct": 0.9},
        {"crop_pct": 1.5},
    ):
        assert protocol_of(resizing) is None
    for name in ("timm", "timm-", "timm-2", "timm-0.0", "timm-.9", None):
        with pytest.raises(ValueError, match="`protocol` must be one of"):
            find_protocol(name)


@pytest.mark.parametrize("image_size, larger", [(32, 40), (95, 40), (96, 34)])
def test_bit_hyperrule_size_depends_on_the_image_area(image_size, larger):
    """The sizes are 160 and 128, or 512 and 480, scaled to 32."""
    pixels = noise(50, 60)
    train = PROTOCOLS["bit-hyperrule"].for_training(image_size)
    whole = bilinear(pixels.astype(float), larger)
    for i in range(5):
        found = cropped(train, encode(pixels), (0, i), (32, 32)).numpy()
        assert len(positions_in(found, whole)) == 1


def test_simple_protocol_shifts_the_whole_image():
    pixels = noise(16, 16)
    protocol = PROTOCOLS["simple"]
    padded = np.pad(pixels.astype(float), ((2, 2), (2, 2), (0, 0)), mode="reflect")
    for i in range(5):
        found = cropped(protocol.train, encode(pixels), (0, i), (16, 16)).numpy()
        assert len(positions_in(found, padded)) == 1
    whole = cropped(protocol.test, encode(pixels), SEED, (16, 16)).numpy()
    np.testing.assert_array_equal(whole, pixels)


@pytest.mark.parametrize("height, width", [(60, 50), (40, 90)])
def test_crops_keep_the_aspect_ratio(height, width):
    """A horizontal and a vertical gradient keep equal slopes."""
    rows, columns = np.indices((height, width))
    image = np.stack([rows, columns, rows], -1).astype(np.uint8)
    size = (24, 32)
    scale = max(size[0] / height, size[1] / width)
    for name, ratio in (
        ("pretrain", 256 / 224),
        ("big_vision", 448 / 384),
        ("mae", 256 / 224),
    ):
        encoded = encode(image)
        found = cropped(PROTOCOLS[name].test, encoded, SEED, size)
        down = np.diff(found[2:-2, 2:-2, 0], axis=0).mean()
        right = np.diff(found[2:-2, 2:-2, 1], axis=1).mean()
        assert down == pytest.approx(1 / (scale * ratio), rel=0.1)
        assert right == pytest.approx(1 / (scale * ratio), rel=0.1)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_accept_rectangles(name):
    """An evaluated transposed image gives the transposed result."""
    image = noise(60, 50)
    encoded = encode(image)
    turned = encode(image.transpose(1, 0, 2))
    cut = PROTOCOLS[name].test
    for size in ((16, 40), (300, 24)):
        found = cropped(cut, encoded, SEED, size)
        assert found.shape == (*size, 3)
        other = cropped(cut, turned, SEED, size[::-1])
        # Rows and columns are resized, and rounded to integers, in the other
        # order: measured, up to 2 gray levels and 0.18 on average. A crop that
        # is moved by one pixel differs by 2 or more on average.
        difference = np.abs(found - np.transpose(other, (1, 0, 2)))
        assert difference.max() <= 2 and difference.mean() < 0.5
    for image_size in (None, 32):  # of the data set
        cut = PROTOCOLS[name].for_training(image_size)
        found = cropped(cut, encoded, SEED, (16, 40))
        assert found.shape == (16, 40, 3)
        gray = cropped(cut, encode(image[..., :1]), SEED, (16, 40), 1)
        assert gray.shape == (16, 40, 1)
        # Not one number throughout, as of padding.
        assert 0 <= found.numpy().min() < found.numpy().max() <= 256


def formats():
    """Yields names, encoded images and the expected pixels."""
    rgb, gray = noise(20, 30), noise(20, 30, 1)
    alpha = np.concatenate([rgb, noise(20, 30, 1, seed=1)], -1)
    deep = gray.astype(np.uint16)[..., 0] * 256 + 77
    frames = [Image.fromarray(noise(20, 30, seed=i)) for i in (0, 1)]
    cmyk = Image.fromarray(rgb).convert("CMYK")
    yield "gray", encode(gray), np.repeat(gray, 3, -1)
    yield "gray JPEG", encode(gray, "JPEG"), np.repeat(gray, 3, -1)
    yield "RGBA", encode(alpha), rgb
    two = Image.fromarray(alpha[..., 2:], "LA")
    yield "gray and alpha", encode(two), np.repeat(alpha[..., 2:3], 3, -1)
    yield "16 bits", encode(Image.fromarray(deep)), np.repeat(gray, 3, -1)
    yield "CMYK JPEG", encode(cmyk, "JPEG", quality=95), rgb
    yield "BMP", encode(rgb, "BMP"), rgb
    yield "BMP of 32 bits", encode(Image.fromarray(alpha), "BMP"), rgb
    few = Image.fromarray(rgb).quantize(16)
    yield "palette", encode(few), np.asarray(few.convert("RGB"))
    clear = np.asarray(few.convert("RGB")) * (np.asarray(few) != 3)[..., None]
    yield "transparent GIF", encode(few, "GIF", transparency=3), clear
    moving = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    first = np.asarray(frames[0].quantize(256).convert("RGB"))
    yield "animated GIF", moving, first


def assert_equal_without_tensorflow(encoded, expected, folder):
    (folder / "image").write_bytes(encoded)
    found = decoding.read_pixels(folder / "image", expected.shape[-1])
    np.testing.assert_array_equal(found, expected)
    if encoded.startswith(b"GIF") and expected.shape[-1] == 3:  # so for boxes
        np.testing.assert_array_equal(read_image(folder / "image"), expected)


@pytest.mark.parametrize("kind, encoded, expected", list(formats()))
def test_image_formats_are_decoded(kind, encoded, expected, tmp_path):
    found = decoding.decode(encoded, 3).numpy()
    assert found.shape == expected.shape and found.dtype == np.uint8
    error = np.abs(found.astype(int) - expected)
    exact = not ("JPEG" in kind or "GIF" in kind)
    assert error.max() == 0 if exact else error.mean() < 6
    gray = np.asarray(Image.fromarray(found).convert("L")).astype(int)
    found_gray = decoding.decode(encoded, 1).numpy()
    for pixels in (found, found_gray):
        assert_equal_without_tensorflow(encoded, pixels, tmp_path)
    assert np.abs(found_gray[..., 0] - gray).max() <= (1 if exact else 4)
    part = random_area(encoded, 1, SEED)
    assert part.shape[-1] == 1
    part = random_area(encoded, 3, SEED).numpy()
    top, left, height, width = decoding.sample_crop_window(found.shape, SEED).numpy()
    whole = found[top : top + height, left : left + width].astype(int)
    assert np.abs(part - whole).mean() < (0.01 if exact else 1)


XMP = b"""<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 5.5.0">
<rdf:Description tiff:Orientation="%d" xmlns:xap="http://ns.adobe.com/xap/1.0/"/>"""


def turned(kind, how):
    """Returns the encoded file of an image with an orientation."""
    pixels = noise(24, 40)
    if kind == "XMP":
        return encode(pixels, "JPEG", xmp=XMP % how)
    exif = Image.Exif()
    exif.endian = "<" if how % 2 else ">"
    exif[0x10F], exif[0x112] = "a maker", how
    if kind != "PNG at its end":
        return encode(pixels, kind, exif=exif, lossless=True)
    chunk = b"eXIf" + exif.tobytes()[6:]  # Pillow writes it before the pixels
    chunk = struct.pack(">I", len(chunk) - 4) + chunk
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    content = encode(pixels)
    return content[:-12] + chunk + content[-12:]


@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "PNG at its end", "WEBP", "TIFF", "XMP"]
)
def test_orientation_is_that_of_pillow(kind, tmp_path):
    for how in range(10):  # of which 0 and 9 are nothing
        encoded = turned(kind, how)
        with Image.open(io.BytesIO(encoded)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
        assert expected.shape == ((40, 24, 3) if 4 < how < 9 else (24, 40, 3))
        found = decoding.decode(encoded, 3).numpy()
        assert found.shape == expected.shape
        limit = 8 if kind in ("JPEG", "XMP") else 1
        assert np.abs(found - expected).max() < limit, how
        assert_equal_without_tensorflow(encoded, found, tmp_path)
        part = random_area(encoded, 3, SEED).numpy()
        # A crop is taken before the image is turned, where the file allows it.
        shape = expected.shape if kind in ("WEBP", "TIFF") else (24, 40, 3)
        size = tuple(decoding.sample_crop_window(shape, SEED).numpy()[2:])
        is_turned = 4 < how < 9 and shape == (24, 40, 3)
        assert part.shape[:2] == (size[::-1] if is_turned else size)


def test_invalid_exif_data_is_ignored():
    exif = Image.Exif()
    exif[0x112] = 6
    encoded = encode(noise(24, 40), "JPEG", exif=exif)
    at = encoded.find(b"Exif")
    rng = np.random.default_rng(0)
    for _ in range(20):
        content = bytearray(encoded)
        content[at + 6 : at + 28] = rng.bytes(22)
        shape = decoding.decode(bytes(content), 3).shape
        assert sorted(shape) == [3, 24, 40]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_inception_crop_of_vit_jax_matches_the_definition(kind):
    """It keeps fractions; test_published_pictures.py has the others."""
    encoded = encode(noise(61, 83), kind)
    pixels = tf.io.decode_image(encoded).numpy()
    train = PROTOCOLS["vit_jax"].for_training(None)
    for seed in (SEED, (0, 1), (0, 2)):
        rows, columns = window(pixels, seed)
        expected = bilinear(pixels[rows, columns].astype(float), 24)
        found = cropped(train, encoded, seed, (24, 24)).numpy()
        error = np.abs(found - expected)
        # libjpeg upsamples colors in another way at a window's edge.
        inside = error[1:-1, 1:-1] if kind == "JPEG" else error
        assert inside.max() < (1.6 if kind == "JPEG" else 1e-3)
        assert error.mean() < 0.5
