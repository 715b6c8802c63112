"""Encoded pictures for tests of the input pipeline."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def noise(height, width, channels=3, seed=0):
    """Smooth noise, which JPEG preserves, unlike independent noise of
    pixels."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels))
    planes = [
        Image.fromarray(small[..., i].astype(np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for i in range(channels)
    ]
    return np.stack([np.asarray(plane) for plane in planes], -1)


def cropped(make, encoded, seed, size, channels=3):
    """The pixels of an image after the step that `make` makes for a size."""
    example = {"image": encoded, "channels": channels}
    return make(size)(example, seed)["image"]


def encode(pixels, kind="PNG", **options):
    if isinstance(pixels, np.ndarray):
        pixels = Image.fromarray(pixels.squeeze())
    file = io.BytesIO()
    pixels.save(file, kind, **options)
    return file.getvalue()


def encode_tiff(x, order="<", planes=1, predictor=1, tile=None, turn=1, alpha=()):
    """Encodes an array as a TIFF, by its specification: strips of 7 rows, or tiles,
    compressed by deflate if a `predictor` is given; `planes` is 1 for channels side
    by side and 2 for one after the other."""
    height, width, channels = x.shape
    size, step = x.dtype.itemsize, tile or 7
    columns = tile or width
    padded = np.pad(x, ((0, -height % step), (0, -width % columns), (0, 0)))
    parts = []
    for plane in [padded] if planes == 1 else np.split(padded, channels, -1):
        for top in range(0, len(padded), step):
            for left in range(0, padded.shape[1], columns):
                end = top + step if tile else min(height, top + step)
                part = plane[top:end, left : left + columns]
                if predictor == 3:
                    part = np.ascontiguousarray(part).astype(f">f{size}")
                    part = part.reshape(len(part), -1, 1).view("u1").swapaxes(1, 2)
                    part = part.reshape(len(part), -1, plane.shape[-1])
                if predictor != 1:
                    zero = np.zeros_like(part[:, :1])
                    part = np.diff(part, axis=1, prepend=zero)
                if predictor != 3:
                    part = part.astype(part.dtype.newbyteorder(order))
                content = part.tobytes()
                parts.append(content if predictor == 1 else zlib.compress(content))
    tags = {256: [width], 257: [height], 258: [8 * size] * channels}
    tags |= {259: [1 if predictor == 1 else 8], 262: [1], 274: [turn], 277: [channels]}
    tags |= {284: [planes], 317: [predictor], 339: [3 if x.dtype.kind == "f" else 1]}
    tags |= {338: alpha} if alpha else {}
    places = np.cumsum([8, *map(len, parts)]).tolist()[:-1]
    offsets, lengths = (324, 325) if tile else (273, 279)
    tags |= {322: [tile], 323: [tile]} if tile else {278: [step]}
    tags |= {offsets: places, lengths: list(map(len, parts))}
    values, entries = b"".join(parts), b""
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}I", *numbers)
        place = struct.pack(f"{order}I", 8 + len(values))
        values += packed if len(numbers) > 1 else b""
        entry = struct.pack(f"{order}HHI", tag, 4, len(numbers))
        entries += entry + (place if len(numbers) > 1 else packed)
    name = b"II" if order == "<" else b"MM"
    header = name + struct.pack(f"{order}HI", 42, 8 + len(values))
    count = struct.pack(f"{order}H", len(tags))
    return header + values + count + entries + bytes(4)


def write_folder(root, images):
    """Writes images, or what they are encoded to, by their paths."""
    for name, image in images.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG"
        is_encoded = isinstance(image, (bytes, bytearray))
        path.write_bytes(image if is_encoded else encode(image, kind))
    return root


def bilinear(image, size):
    """Resizes without antialiasing, with half-pixel centers."""
    for axis in (0, 1):
        old = image.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)))
        image = np.moveaxis(np.tensordot(weights, image, (1, axis)), 0, axis)
    return image
