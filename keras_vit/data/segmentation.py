"""A data set of images with a class for each pixel: its batches, in NumPy."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vit._program import printable
from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.data.dataset import PipelineOptions
from keras_vit.data.dataset import local_evaluation_rows
from keras_vit.data.digits import batch_indices
from keras_vit.preprocessing import preprocess_input

_THREADS = min(8, os.cpu_count() or 1)


@dataclasses.dataclass(frozen=True)
class SegmentationDataset:
    """A data set of images and masks: its metadata and its batches.

    `load_segmentation` makes one.

    Attributes:
        name: String.
        class_names: Tuple of strings.
        channels: Integer, 1 or 3.
        image_size: Integer, the height and width of all images; None if they
            differ.
        num_train, num_test: Integers. Numbers of images.
        ignore: Integer. Value of the pixels of masks that have no class.
        read: Function of "train" or "test" and an index that returns a uint8
            image `(height, width, channels)` and an integer mask
            `(height, width)`.
        can_flip: Boolean. Whether a mirrored image is one of the same classes.
    """

    name: str
    class_names: tuple
    channels: int
    image_size: int | None
    num_train: int
    num_test: int
    ignore: int
    read: Callable[[str, int], tuple[Array, Array]]
    can_flip: bool = True
    num_validation: int = 0
    num_unverified: int = 0
    multi_label: bool = False
    evaluation_split = "test"

    def __post_init__(self) -> None:
        names = tuple(map(printable, self.class_names))
        object.__setattr__(self, "class_names", names)

    @property
    def num_evaluation(self) -> int:
        return self.num_test

    def train(
        self,
        *,
        image_size: int,
        batch_size: int,
        mode: str = "tf",
        seed: int = 0,
        start: int = 0,
        shard: tuple[int, int] = (0, 1),
        flip: bool = True,
        scale: float = 2.0,
    ) -> keras.utils.PyDataset:
        """Returns endless batches of randomly scaled and cropped images.

        The short side of an image is scaled to `image_size` times a random
        factor between `1 / scale` and `scale`; a square is cropped, padded with
        grey and pixels to ignore where the image is smaller, and flipped in
        half of all cases. All of it depends only on the seed and the position
        of an image in the run.

        Args:
            image_size: Integer. Height and width of the crops.
            batch_size: Integer. Images of a batch, of all processes together.
            mode: String. The `mode` of `preprocess_input`.
            seed: Integer. Random seed.
            start: Integer. The batch to begin with.
            shard: `(index, count)` of this process; see `ImageDataset.train`.
            flip: Boolean. Whether to flip images horizontally.
            scale: Float, 1 or more; 1 for no random scale.

        Returns:
            A `keras.utils.PyDataset` of images and int32 masks.
        """
        options = PipelineOptions(
            image_size,
            batch_size,
            mode=mode,
            seed=seed,
            start=start,
            shard=shard,
            flip=flip,
        )
        return _TrainBatches(self, options, scale)

    def evaluation(
        self,
        *,
        image_size: int,
        batch_size: int,
        mode: str = "tf",
        shard: tuple[int, int] = (0, 1),
        pad: bool = False,
    ) -> keras.utils.PyDataset:
        """Returns batches of the test images, each image once and in order.

        Images and masks are resized to squares, masks to the nearest pixel.
        The last batch may be smaller than the others.

        Args:
            image_size, batch_size, mode, shard: As in `train`.
            pad: Boolean. Whether to pad the last batch to the size of the
                others with images whose pixels are all ignored, so that
                several devices can split it. With several processes it always
                is padded.

        Returns:
            A `keras.utils.PyDataset` of images and int32 masks. If it is
            padded, there are also weights of shape `(batch, 1, 1)`, with which
            a batch counts in a loss as it has images. `metrics` take none.
        """
        options = PipelineOptions(
            image_size, batch_size, mode=mode, shard=shard, pad=pad
        )
        return _EvaluationBatches(self, options)

    def metadata(self) -> dict[str, Any]:
        """Returns a dict of the fields that can be written as JSON."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "read"
        }


class _TrainBatches(keras.utils.PyDataset):
    num_batches = None  # endless

    def __init__(
        self, data: SegmentationDataset, options: PipelineOptions, scale: float
    ) -> None:
        super().__init__()
        if not scale >= 1:
            raise ValueError(f"`scale` must be 1 or more. Received: {scale!r}")
        self.data, self.options, self.scale = data, options, scale

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        options = self.options
        first = (options.start + index) * options.batch_size
        chosen = batch_indices(self.data.num_train, first, options)

        def one(row: int) -> tuple[Array, Array]:
            rng = np.random.default_rng((options.seed, 1, first + row))
            pair = self.data.read("train", int(chosen[row]))
            return random_crop(
                *pair,
                options.image_size,
                rng,
                self.scale,
                options.flip,
                self.data.ignore,
            )

        return _stack(one, options.local_rows, options.mode)


class _EvaluationBatches(keras.utils.PyDataset):
    def __init__(
        self, data: SegmentationDataset, options: PipelineOptions
    ) -> None:
        super().__init__()
        self.data, self.options = data, options
        self.rows, self.count, self.weight = local_evaluation_rows(
            data.num_test, options
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        size, channels = self.options.image_size, self.data.channels
        batch = len(self.options.local_rows)
        rows = list(self.rows[index * batch : (index + 1) * batch])
        missing = batch - len(rows) if self.options.pads else 0

        def one(i: int | None) -> tuple[Array, Array]:
            if i is None:
                image = np.zeros((*size, channels), "uint8")
                return image, np.full(size, self.data.ignore)
            image, mask = self.data.read("test", i)
            return resize_image(image, size), resize_mask(mask, size)

        pairs = _stack(one, [*rows, *[None] * missing], self.options.mode)
        if not self.options.pads:
            return pairs
        # Keras averages a batch over the pixels that are not ignored, and
        # counts it as often as it has images, padding included.
        weight = self.weight * len(rows) / batch
        return *pairs, np.full((batch, 1, 1), weight, "float32")


def _stack(
    one: Callable[[Any], tuple[Array, Array]],
    indices: Iterable[int | None],
    mode: str,
) -> tuple[Array, Array]:
    """Returns preprocessed images and masks of the function `one`."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        images, masks = zip(*threads.map(one, indices), strict=True)
    images = preprocess_input(np.stack(images).astype("float32"), mode=mode)
    return np.asarray(images), np.stack(masks).astype("int32")


def random_crop(
    image: Array,
    mask: Array,
    size: tuple[int, int],
    rng: np.random.Generator,
    scale: float,
    flip: bool,
    ignore: int,
) -> tuple[Array, Array]:
    """Scales, crops and flips an image `(height, width, channels)` and its mask
    randomly.

    The short side of the image becomes that of the crop times a factor between
    `1 / scale` and `scale`; where the image is padded, the mask is `ignore`.
    """
    factor = np.exp(rng.uniform(-1, 1) * np.log(scale))
    factor *= min(size) / min(mask.shape)
    height, width = (max(1, round(n * factor)) for n in mask.shape)
    scaled = height, width
    image, mask = resize_image(image, scaled), resize_mask(mask, scaled)
    missing = [max(0, n - old) for n, old in zip(size, scaled, strict=True)]
    if any(missing):
        pad = [(n // 2, n - n // 2) for n in missing]
        image = np.pad(image, (*pad, (0, 0)), constant_values=127)
        mask = np.pad(mask, pad, constant_values=ignore)
    top, left = (
        rng.integers(old - n + 1)
        for n, old in zip(size, mask.shape, strict=True)
    )
    window = slice(top, top + size[0]), slice(left, left + size[1])
    image, mask = image[window], mask[window]
    if flip and rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    return image, mask


def resize_image(image: Array, size: tuple[int, int]) -> Array:
    """Resizes a uint8 image bilinearly, with antialiasing."""
    if image.shape[:2] == tuple(size):
        return image
    pillow = require("PIL.Image")
    grey = image.shape[-1] == 1
    resized = pillow.fromarray(image[..., 0] if grey else image).resize(
        size[::-1], pillow.Resampling.BILINEAR
    )
    return np.asarray(resized).reshape(*size, image.shape[-1])


def resize_mask(mask: Array, size: tuple[int, int]) -> Array:
    """Resizes a mask to the nearest pixels."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]
