"""Folders of small images, to measure training from scratch.

    python -m tests.small_sets make digits /tmp/digits
    python recipes/finetune_cifar.py --dataset /tmp/digits
    python -m tests.small_sets logistic /tmp/digits --image-size 46

`make` writes DIR/{train,test}/CLASS/*.png with a fixed seed, from what
scikit-learn contains: its digits and its two photographs. `logistic` prints the
test accuracy of logistic regression on the pixels of such a folder.
"""

import argparse
import pathlib

import numpy as np
from PIL import Image

# A fifth of the digits, and the middle of each cell of the photographs, are
# only in the test set.
TEST_EVERY = 5
TEST_BAND = (0.4, 0.6)
GRID = (2, 3)  # rows and columns of cells of a photograph
CROP = 32


def digits(rng):
    """Gray digits on canvases of 28 to 64 pixels."""
    for split, label, digit in _digits():
        for _ in range(3 if split == "train" else 2):
            side = rng.integers(28, 65)
            digit_side = _digit_side(rng, side)
            top, left = _position(rng, side, digit_side)
            canvas = np.zeros((side, side))
            _paste(canvas, _resized(digit, digit_side), top, left)
            yield split, str(label), canvas


def textures(rng):
    """Crops of 32 pixels; the class is the cell of the photograph."""
    rows, columns = GRID
    for photo, image in _photos().items():
        height, width = image.shape[0] // rows, image.shape[1] // columns
        for row in range(rows):
            for column in range(columns):
                cell = image[row * height :, column * width :]
                for split, count in (("train", 300), ("test", 60)):
                    for _ in range(count):
                        top = rng.integers(height - CROP)
                        left = _left(rng, width, split)
                        crop = cell[top : top + CROP, left : left + CROP]
                        crop = crop[:, :: rng.choice([-1, 1])]
                        light = rng.uniform(0.5, 1.5, (1, 1, 3))
                        yield split, f"{photo}_{row}_{column}", crop * light


def colored(rng):
    """Colored digits on crops of the photographs, of 32 to 48 pixels."""
    photos = list(_photos().values())
    for split, label, digit in _digits():
        for _ in range(3 if split == "train" else 2):
            side = rng.integers(32, 49)
            photo = photos[rng.integers(2)]
            top, left = (rng.integers(n - side) for n in photo.shape[:2])
            canvas = photo[top : top + side, left : left + side].copy()
            digit_side = _digit_side(rng, side)
            top, left = _position(rng, side, digit_side)
            mask = _resized(digit, digit_side) / 255
            color = rng.uniform(0, 255, 3)
            # Light on dark places, and dark on light ones.
            if color.mean() > 127:
                canvas *= 0.5
            else:
                canvas = 255 - (255 - canvas) * 0.5
            _paste(canvas, color, top, left, mask)
            yield split, str(label), canvas


SETS = {"digits": digits, "textures": textures, "colored": colored}


def make(name, folder, seed=0):
    """Writes a set as PNG files.

    Args:
        name: String. One of `SETS`.
        folder: Path of the folder to write.
        seed: Integer. Random seed.
    """
    images = SETS[name](np.random.default_rng(seed))
    for i, (split, label, pixels) in enumerate(images):
        path = pathlib.Path(folder, split, label, f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(path)


def logistic(folder, image_size):
    """Returns the test accuracy of logistic regression on the pixels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=100))
    model.fit(*_pixels(pathlib.Path(folder, "train"), image_size))
    return model.score(*_pixels(pathlib.Path(folder, "test"), image_size))


def _pixels(folder, image_size):
    paths = sorted(folder.glob("*/*"))
    size = (image_size, image_size)
    images = [Image.open(path).resize(size) for path in paths]
    pixels = np.stack([np.asarray(image, "float32") for image in images])
    return pixels.reshape(len(paths), -1), [path.parent.name for path in paths]


def _digits():
    from sklearn.datasets import load_digits

    loaded = load_digits()
    for i, (digit, label) in enumerate(zip(loaded.images, loaded.target, strict=True)):
        split = "train" if i % TEST_EVERY else "test"
        yield split, label, digit * (255 / 16)


def _photos():
    from sklearn.datasets import load_sample_image

    names = ("china", "flower")
    return {n: load_sample_image(f"{n}.jpg").astype("float64") for n in names}


def _resized(digit, side):
    image = Image.fromarray(digit.astype("float32"))
    resized = image.resize((side, side), Image.Resampling.BICUBIC)
    return np.clip(resized, 0, 255)


def _digit_side(rng, side):
    return round(side * rng.uniform(0.6, 0.9))


def _position(rng, side, digit_side):
    """Returns the top and left of a digit of which up to 2 pixels are cut."""
    return rng.integers(-2, side - digit_side + 3, 2)


def _paste(canvas, color, top, left, mask=None):
    """Draws onto the part of an array at a position that may be outside."""
    drawn = color if mask is None else mask
    rows = np.arange(len(drawn)) + top
    columns = np.arange(len(drawn)) + left
    rows_in = (rows >= 0) & (rows < len(canvas))
    columns_in = (columns >= 0) & (columns < len(canvas))
    at = np.ix_(rows[rows_in], columns[columns_in])
    inside = np.ix_(rows_in, columns_in)
    if mask is None:
        canvas[at] = color[inside]
    else:
        opacity = mask[inside][..., None]
        canvas[at] = canvas[at] * (1 - opacity) + color * opacity


def _left(rng, width, split):
    """Returns the left side of a crop, on its split's side of a cell."""
    low, high = (int(width * x) for x in TEST_BAND)
    if split == "test":
        return rng.integers(low, high - CROP + 1)
    # Training crops end before the band, or begin after it.
    choices = [*range(low - CROP + 1), *range(high, width - CROP + 1)]
    return rng.choice(choices)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make", help="write a set")
    command.add_argument("name", choices=SETS)
    command.add_argument("folder")
    command = commands.add_parser("logistic", help="logistic regression")
    command.add_argument("folder")
    command.add_argument("--image-size", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.name, arguments.folder)
    else:
        print(f"{logistic(arguments.folder, arguments.image_size):.4f}")


if __name__ == "__main__":
    main()
