"""Encoded pictures for tests of the input pipeline."""

import io

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


def encode(pixels, kind="PNG", **options):
    if isinstance(pixels, np.ndarray):
        pixels = Image.fromarray(pixels.squeeze())
    file = io.BytesIO()
    pixels.save(file, kind, **options)
    return file.getvalue()


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
