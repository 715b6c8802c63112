"""Handwritten digits on photographs, with a class for each pixel.

They are made with NumPy from 1,797 digits of 8 x 8 pixels, and from two photographs
that scikit-learn includes. No training image contains a digit, or a part of a
photograph, of the test images.
"""

import functools
from collections.abc import Sequence

import numpy as np

from keras_vit.data.array_source import scaled_dataset
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.digits import read_digits, resize
from keras_vit.data.splits import stratified_split
from keras_vit.data.steps.places import resize_image
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array

IGNORE = 255
CLASS_NAMES = ("background", *"0123456789")
SIZE = 24  # pixels of a canvas, along a side
BOXES_SIZE = 32  # of one with boxes
NUM_TRAIN, NUM_TEST = 2000, 200
MOST_DIGITS = 2
DIGIT_SIZES = (12, 15)  # pixels
BRIGHTEST_BACKGROUND, DARKEST_INK = 0.5, 0.8
# A pixel is of a digit where the ink of its neighborhood, from 0 to 1, is more
# than the second number, and ignored where it is between the two.
LEAST_INK, CERTAIN_INK = 0.2, 0.4
# The left part of each photograph is for training.
TRAIN_PART = 0.7


def digit_canvases(
    size: int = SIZE, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST
) -> ImageDataset:
    """Returns gray images of one or two digits on photographs, and masks.

    Class 0 is the background, and class `d + 1` the digit `d`, with a margin
    around its strokes. Pixels at the border of a digit are ignored.
    """

    @functools.cache  # an image takes a millisecond, and all of them 5 MB
    def read(part: str, index: int) -> tuple[Array, Array]:
        rng = np.random.default_rng((part == "test", 0, index))
        image, mask, *_ = _compose(part, rng, size, MOST_DIGITS)
        return image, mask

    return scaled_dataset(
        read,
        "mask",
        name="digits",
        class_names=CLASS_NAMES,
        channels=1,
        image_size=size,
        num_train=num_train,
        num_test=num_test,
        ignore=IGNORE,
        can_flip=False,
    )


def single_digits(
    size: int = SIZE, num_train: int = 8000, num_test: int = 400
) -> tuple[tuple[Array, Array], ...]:
    """Returns gray images of one digit on a photograph, and the digits' values. A
    classifier that is trained on them learns features of digits without masks.

    Args:
        size: Integer. Height and width of the images, 16 or more.
        num_train: Integer. Number of training images.
        num_test: Integer. Number of test images.

    Returns:
        Two pairs of uint8 images and integer labels: to train and to test on.
    """
    pairs = []
    for part, count in (("train", num_train), ("test", num_test)):
        rngs = (np.random.default_rng((part == "test", 1, i)) for i in range(count))
        made = [_compose(part, rng, size, 1) for rng in rngs]
        images = np.stack([x[0] for x in made])
        pairs.append((images, np.array([x[2][0] for x in made])))
    return tuple(pairs)


def digit_boxes(part: str, index: int) -> tuple[Array, Array]:
    """Returns a gray image of one to three digits on a photograph, and their
    values and boxes `(3, 5)`, as `load_detection` has them."""
    size, most = BOXES_SIZE, 3
    rng = np.random.default_rng((part == "test", 2, index))
    image, _, values, boxes = _compose(part, rng, size, most)
    label = np.full((most, 5), -1.0, "float32")
    for i, (value, box) in enumerate(zip(values, boxes, strict=True)):
        label[i] = value, *(box[:2] + box[2:]) / 2, *(box[2:] - box[:2])
        label[i, 1:] /= size
    return image, label


@functools.cache
def _sources(part: str) -> tuple[Array, Array, list[Array]]:
    """Returns the digits, their values and the photographs of a split."""
    images, labels = read_digits()
    train, test = stratified_split(labels)
    chosen = train if part == "train" else test
    images = images.astype("float32") / 16
    photos = [
        photo.mean(-1, keepdims=True).astype("uint8") for photo in photographs(part)
    ]
    return images[chosen], labels[chosen], photos


def _compose(
    part: str, rng: np.random.Generator, size: int, most: int
) -> tuple[Array, Array, list[int], list[Array]]:
    """Returns an image, its mask, the values of its digits, and the first x,
    first y, last x and last y of each."""
    digits, labels, photos = _sources(part)
    canvas = photo_window(rng, photos, size).astype("float32")
    canvas *= BRIGHTEST_BACKGROUND / 255
    mask = np.zeros((size, size), "int32")
    places, values, boxes = [], [], []
    for _ in range(rng.integers(1, most + 1)):
        side = int(rng.integers(DIGIT_SIZES[0], DIGIT_SIZES[1] + 1))
        place = free_place(rng, places, side, size)
        if place is None:
            continue
        places.append((*place, side))
        which = rng.integers(len(digits))
        values.append(int(labels[which]))
        digit = digits[which][None]
        window = tuple(slice(p, p + side) for p in place)
        color = rng.uniform(DARKEST_INK, 1)
        ink = resize(digit, side)[0]
        canvas[window] += ink * (color - canvas[window])
        y, x = np.nonzero(ink[..., 0] > LEAST_INK)
        corners = x.min(), y.min(), x.max() + 1, y.max() + 1
        boxes.append(np.array(corners) + [*place[::-1]] * 2)
        # The maximum of each 3 x 3 neighborhood is a margin.
        padded = np.pad(digit, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
        ink = resize(windows.max((-2, -1)), side)[0, ..., 0]
        mask[window][ink > LEAST_INK] = IGNORE
        mask[window][ink > CERTAIN_INK] = values[-1] + 1
    return (canvas * 255).round().astype("uint8"), mask, values, boxes


def photographs(part: str) -> list[Array]:
    """Returns the parts of photographs that "train" or "test" images have."""
    images = require("sklearn.datasets").load_sample_images().images
    border = round(TRAIN_PART * images[0].shape[1])
    half = slice(border) if part == "train" else slice(border, None)
    return [photo[:, half] for photo in images]


def photo_window(rng: np.random.Generator, photos: Sequence[Array], size: int) -> Array:
    """Returns a random square of a uint8 photograph, scaled to `size`."""
    photo = photos[int(rng.integers(len(photos)))]
    height, width = photo.shape[:2]
    side = int(rng.integers(size, min(3 * size, height, width) + 1))
    top = rng.integers(height - side + 1)
    left = rng.integers(width - side + 1)
    crop = photo[top : top + side, left : left + side]
    crop = np.ascontiguousarray(crop[:, :: rng.choice((-1, 1))])
    return resize_image(crop, (size, size))


def free_place(
    rng: np.random.Generator,
    boxes: Sequence[tuple[int, int, int]],
    side: int,
    size: int,
) -> tuple[int, int] | None:
    """Returns `(top, left)` of a square that overlaps no other, or None."""
    for _ in range(20):
        top, left = rng.integers(0, size - side + 1, 2)
        if all(
            top + side <= y or y + s <= top or left + side <= x or x + s <= left
            for y, x, s in boxes
        ):
            return int(top), int(left)
    return None
