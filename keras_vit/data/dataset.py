"""A dataset of labeled images: its metadata and its batches."""

import dataclasses
import inspect
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.decoding import read_pixels
from keras_vit.data.short_way import Lists, build, given
from keras_vit.data.steps.base import StepFunction, checked
from keras_vit.data.steps.erasing import RandomErasing
from keras_vit.data.steps.multi_crops import MultiCrop
from keras_vit.data.token_budget import TokenBudget
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, ArrayLike


@dataclasses.dataclass(frozen=True)
class Batching:
    """The assignment of images to batches: arguments of `ImageDataset.train` and
    `test`, checked in one place."""

    batch_size: int
    seed: int = 0
    start: int = 0
    shard: tuple = (0, 1)
    # Number of micro-batches that each batch is split into. Images, augmentation and
    # mixing are those of the whole batch, and `start` counts whole batches.
    micro_batches: int = 1
    # Whether the last batch of an evaluation is as large as the others.
    pad: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("start", 0)):
            value = getattr(self, name)
            checks.require(value >= least, name, value, f"{least} or more")
        index, count = self.shard
        if (
            not 0 <= index < count
            or self.batch_size % count
            or self.micro_batches < 1
            or len(self.local_rows) % self.micro_batches
        ):
            raise ValueError(
                "`shard` must be (index, count) with 0 <= index < count, which "
                "must divide `batch_size`, and `micro_batches` must divide the "
                f"images of each process. Received: shard={self.shard}, "
                f"batch_size={self.batch_size}, "
                f"micro_batches={self.micro_batches}"
            )

    @property
    def micro_batch_size(self) -> int:
        """The number of images in a micro-batch of this process."""
        return len(self.local_rows) // self.micro_batches

    @property
    def local_rows(self) -> range:
        """The rows of the whole batch that this process gets, as a range."""
        index, count = self.shard
        rows = self.batch_size // count
        return range(index * rows, (index + 1) * rows)

    @property
    def pads(self) -> bool:
        """Whether all batches of an evaluation are full."""
        return self.pad or self.shard[1] > 1

    def evaluation_rows(self, total: int) -> tuple[range, int, float]:
        """Returns this process's rows of an evaluation set, the number of batches
        of each process, and the weight of an image.

        Several processes evaluate in step, so each has the same number of full
        batches. Missing images are then padding of weight 0, as with `pad`. Keras
        divides a loss by the number of rows, padding included, so the weights of
        images are slightly above 1: the mean of all weights is 1.
        """
        index, count = self.shard
        most = -(-total // count)
        rows = range(min(index * most, total), min((index + 1) * most, total))
        batches = -(-most // len(self.local_rows))
        padded = batches * self.batch_size if self.pads else total
        return rows, batches, padded / total


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A dataset of labeled images: its metadata and its batches.

    `load_dataset`, `from_arrays`, `from_csv` and `from_huggingface` return such a
    dataset; `load_segmentation` returns one whose labels are masks.

    Attributes:
        name: String.
        class_names: Tuple of strings.
        channels: Integer, 1 or 3, or up to 16 for arrays.
        image_size: Integer, the height and width of all images; None if they
            differ or are not squares.
        median_side: Integer. Median of the heights and widths of a sample of
            the training images, in pixels; None if it is unknown.
        num_train: Integer, excluding the images that are held out.
        num_test: Integer.
        num_validation: Integer.
        num_skipped: Integer. Number of files that cannot be read.
        num_unverified: Integer. Number of files whose header and trailer alone were
            checked.
        multi_label: Boolean. Whether an image may have several classes, or none. Labels
            are then rows of float32 zeros and ones, with one number for each class.
        ignore: Integer. Value of mask pixels that have no class; None if labels are
            those of whole images.
        can_flip: Boolean. Whether a mirrored image has the same classes.
        max_value: Integer. The largest pixel value in the original images.
        source: Object with the methods `train(data, steps, batch_steps, batching)`,
            `evaluation_batches(data, split, total, steps, batching)`, `sample`,
            `class_counts(data)`, `example(split, index)`, `builder(options)`, the
            function of `short_way` that makes the steps, and `of(options)`.
    """

    name: str
    class_names: tuple
    channels: int
    image_size: int | None
    median_side: int | None = dataclasses.field(default=None, kw_only=True)
    num_train: int
    num_test: int
    num_validation: int = 0
    num_skipped: int = 0
    num_unverified: int = 0
    multi_label: bool = False
    ignore: int | None = None
    can_flip: bool = True
    max_value: int = 255
    source: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        names = tuple(map(printable, self.class_names))
        object.__setattr__(self, "class_names", names)

    @property
    def has_protocols(self) -> bool:
        """Whether images can be cropped by the published `PROTOCOLS`."""
        builder = self.source.builder({})
        return "protocol" in inspect.signature(builder).parameters

    def read(self, split: str, index: int) -> tuple[Array, Array]:
        """Returns an unchanged image, and its label or mask.

        Args:
            split: "train", "validation" or "test".
            index: Integer. The image's position in `batches(split)`.

        Returns:
            Array of shape `(height, width, channels)`, and the class, a row of
            zeros and ones, or an integer mask of shape `(height, width)`.
        """
        image, label = self.source.example(split, index)
        if isinstance(image, pathlib.Path):
            image = read_pixels(image, self.channels)
        return image, label

    def train(
        self,
        *,
        batch_size: int,
        image_size: int | tuple[int, int] | TokenBudget | None = None,
        steps: Sequence[StepFunction | None] | None = None,
        batch_steps: Sequence[StepFunction | None] = (),
        seed: int = 0,
        start: int = 0,
        shard: tuple[int, int] = (0, 1),
        micro_batches: int = 1,
        protocol: str = "simple",
        augment: str | StepFunction = "none",
        mixup: float = 0.0,
        cutmix: float = 0.0,
        erase: float | RandomErasing = 0.0,
        flip: bool = True,
        mode: ModeLike = "tf",
        one_hot: bool = False,
        class_weights: Sequence[float] | None = None,
        crops: MultiCrop | None = None,
        scale: float | None = None,
    ) -> Any:
        """Returns endless batches of augmented training images.

        Batch k depends on `seed`, k and `shard` only, so a run that resumes at
        batch k gets the same batches as one that was not interrupted. Every
        image is used once before any image is used again.

        There are two ways to specify how an image is processed: `image_size` and the
        arguments from `protocol` on, or a list of `steps`. `training_steps` returns the
        steps that correspond to the arguments.

        Args:
            batch_size: Integer. Number of images in a batch, over all processes
                together.
            image_size: Integer, the height and width of the batches' images;
                or `(height, width)`. Published protocols are for squares; see
                `keras_vit.data.protocols` for other rectangles. Or a `TokenBudget`, for
                images that keep their aspect ratio.
            steps: List of functions `step(example, seed)` that return the modified
                example, such as those in `keras_vit.data.steps`. None in the list keeps
                the place of a step that is left out.
            batch_steps: Like `steps`, but for whole batches and applied afterwards,
                such as `keras_vit.data.steps.mix(mixup=0.2)`.
            seed: Integer. Seed of the order of the images and of every augmentation.
            start: Integer. Number of the first batch.
            shard: `(index, count)` of this process, which gets its share of the rows of
                each batch. The rows of all processes together do not depend on `count`,
                except that the partners of mixup and cutmix come from the same process.
            micro_batches: Integer. Number of micro-batches that each batch is
                split into, to accumulate gradients. Images, augmentation and
                mixing are those of the whole batch.
            protocol: String. How images are cropped and resized: "simple" (the
                whole image, translated a little), or the name of published
                code, such as "vit_jax", "big_vision" or "pretrain". See
                `keras_vit.data.PROTOCOLS`.
            augment: Level of RandAugment in "How to train your ViT?": "none",
                "light1", "light2", "medium1", "medium2", "strong1" or
                "strong2". It does not include mixup. Alternatively, a step of your own,
                which gets pixels in [0, 255].
            mixup: Float in [0, 1], the parameter p of Beta(p, p); 0 for no mixup.
            cutmix: Like `mixup`, for cutmix. With both, one of the two is applied to
                each batch.
            erase: Float in [0, 1]. Probability that a random rectangle of an image is
                erased, 0.25 in DeiT; or a `RandomErasing` with other arguments.
            flip: Boolean. Whether to flip half of the images horizontally.
            mode: "tf" for values in [-1, 1], "torch" for ImageNet's mean and
                standard deviation, or other values as `(mean, std)`; see
                `preprocess_input`, which repeats the channel of gray images.
            one_hot: Boolean. Whether labels are floats of shape
                `(batch, classes)`. With mixup or cutmix, and for a multi-label
                dataset, they always are.
            class_weights: List of floats of 0 or more, one for each class, such
                as `balanced_class_weights(data.class_counts())`. Each image
                gets the weight of its class.
            crops: A `MultiCrop`, such as `CROPS["dino"]`: random crops of each
                image for `keras_vit.pretraining.DINO` and `MoCoV3`, instead of
                one image. `image_size` is that of the global crops.
            scale: Float of 1 or more, 2 by default, for datasets with masks:
                the short side of an image is scaled to `image_size` times a
                random factor between `1 / scale` and `scale`. Where the image is
                smaller than a crop, the image is padded with gray, and its mask with
                pixels to ignore.

        Returns:
            An iterable of `(images, labels)` for `model.fit`; with `class_weights`, of
            `(images, labels, weights)`. With `crops`, `images` is a dict with the keys
            `global`, of shape `(batch, 2, height, width, channels)`, and `local`. For a
            dataset with masks, labels are int32 masks, cropped and flipped like their
            images.

        Raises:
            ValueError: if an argument is invalid, or does not apply to the images of
                the dataset.

        Example:

        ```python
        import numpy as np
        import tensorflow as tf
        import keras_vit
        from keras_vit.data import steps

        def darken(example, seed):
            factor = tf.random.stateless_uniform((), seed, 0.5, 1.0)
            return example | {"image": example["image"] * factor}

        images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3))
        data = keras_vit.data.from_arrays(images.astype("uint8"), np.arange(60) % 3)
        batches = data.train(
            batch_size=8,
            steps=[steps.inception_crop(16), steps.flip(), darken, steps.normalize()],
        )
        ```
        """
        batching = Batching(batch_size, seed, start, shard, micro_batches)
        if not self.num_train:
            raise ValueError(
                f"{self.name!r} has no training images, and can only be used for "
                "evaluation."
            )
        options = {
            "image_size": image_size,
            "protocol": protocol,
            "augment": augment,
            "mixup": mixup,
            "cutmix": cutmix,
            "erase": erase,
            "flip": flip,
            "mode": mode,
            "one_hot": one_hot,
            "class_weights": class_weights,
            "crops": crops,
            "scale": scale,
        }
        options = given(options, ImageDataset.train)
        source = self.source.of(options)
        steps, made = self._steps(steps, True, options)
        of_batch = [*made, *checked("batch_steps", batch_steps)]
        return source.train(self, steps, of_batch, batching)

    def training_steps(self, **options: Any) -> Lists:
        """Returns the lists of steps that correspond to arguments of `train`.

        Args:
            image_size, protocol, augment, mixup, cutmix, erase, flip, mode, one_hot,
                class_weights, crops, scale: As in `train`.

        Returns:
            The steps for an image, with None for those that are left out, and the steps
            for a batch: `steps` and `batch_steps` of `train`.
        """
        return self._steps(None, True, given(options, ImageDataset.train))

    def _steps(
        self,
        steps: Sequence[StepFunction | None] | None,
        training: bool,
        options: dict[str, Any],
    ) -> Lists:
        if steps is None:
            wanted = "a size, or `steps` a list"
            checks.require("image_size" in options, "image_size", None, wanted)
            return build(self.source.builder(options), self, training, options)
        if options:
            raise ValueError(
                "`steps` specifies all that is done with an image: leave out "
                f"{', '.join(f'`{x}`' for x in options)}, or give it to a step."
            )
        return checked("steps", steps), []

    def checked_class_weights(
        self, weights: Sequence[float], mixup: float, cutmix: float
    ) -> Array:
        """Returns the weights of classes as an array; raises a `ValueError` if they
        do not fit."""
        if self.multi_label or mixup > 0 or cutmix > 0:
            raise ValueError(
                "`class_weights` are for images of one class each, without mixup and "
                f"cutmix: leave them out. Received: mixup={mixup}, cutmix={cutmix}, "
                f"multi-label: {self.multi_label}"
            )
        found = np.asarray(weights, "float64")
        expected = (len(self.class_names),)
        if found.shape != expected or not (np.isfinite(found) & (found >= 0)).all():
            raise ValueError(
                f"`class_weights` must be {len(self.class_names)} numbers of 0 or "
                f"more. Received: {weights}"
            )
        return found

    def class_counts(self) -> Array:
        """Returns the number of training images of each class.

        Images that are held out are not counted. For a TFDS dataset, all records are
        read, but images are not decoded.

        Returns:
            Integer array of shape `(classes,)`. An image of a multi-label dataset
            counts for each of its classes.
        """
        return self.source.class_counts(self)

    def test(self, **options: Any) -> Any:
        """Returns batches of the test images, each image once and in order.

        The last batch may be smaller than the others, and weights are 1. Images
        and masks of a dataset with masks are resized, masks to the nearest
        pixel. An image without a label (ImageNet's ReaL labels have some) has a
        weight of 0: it counts in `metrics`, but not in `weighted_metrics`.

        Args:
            image_size, batch_size, steps, protocol, mode, one_hot: As in `train`.
            shard: `(index, count)` of this process, which gets one of `count`
                successive slices of the images. Every process gets the same
                number of batches, which are padded.
            pad: Boolean. Whether to pad the last batch to the size of the
                others, so that several devices can split it, and JAX and
                `jit_compile` compile one program instead of two. The padding has a
                weight of 0, which `weighted_metrics` take into account, but not
                `metrics` and `predict`. The mean of the weights, padding included, is
                1, so that the loss is correct as well.

        Returns:
            An iterable of `(images, labels, weights)` for `model.evaluate`. For a
            dataset with masks, an iterable of `(images, masks)`, which `metrics` take;
            if it is padded, there are also weights of shape `(batch, 1, 1)`, so that a
            batch counts in a loss in proportion to its number of images.
        """
        return self.batches("test", **options)

    def validation(self, **options: Any) -> Any:
        """Like `test`, for the training images that are held out."""
        return self.batches("validation", **options)

    @property
    def evaluation_split(self) -> str:
        """The split to evaluate on: "validation" if images are held out."""
        return "validation" if self.num_validation else "test"

    @property
    def num_evaluation(self) -> int:
        """The number of images to evaluate on."""
        return self.num_validation or self.num_test

    def evaluation(self, **options: Any) -> Any:
        """Like `test`, with the images of `evaluation_split`."""
        return self.batches(self.evaluation_split, **options)

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        image_size: int | tuple[int, int] | TokenBudget | None = None,
        steps: Sequence[StepFunction | None] | None = None,
        protocol: str = "simple",
        mode: ModeLike = "tf",
        one_hot: bool = False,
        shard: tuple[int, int] = (0, 1),
        pad: bool = False,
    ) -> Any:
        """Like `test`, with the images of "train", "validation" or "test"."""
        total = getattr(self, f"num_{split}")
        if not total:
            hint = "; give load_dataset a `holdout`" if split == "validation" else ""
            raise ValueError(f"{self.name!r} has no {split} images{hint}.")
        options = {
            "image_size": image_size,
            "protocol": protocol,
            "mode": mode,
            "one_hot": one_hot,
        }
        options = given(options, ImageDataset.batches)
        source = self.source.of(options)
        steps, _ = self._steps(steps, False, options)
        batching = Batching(batch_size, shard=shard, pad=pad)
        return source.evaluation_batches(self, split, total, steps, batching)

    def sample(self, split: str, count: int) -> "ImageDataset":
        """Returns the dataset with a random sample of the images of a split.

        The first images of a folder or a file are those of the first classes, whereas a
        random sample has images of all classes. The sample depends only on the numbers
        of images.

        Args:
            split: "train", "validation" or "test".
            count: Integer. Number of images. If the split has no more images, all of
                them are kept.

        Returns:
            An `ImageDataset` to evaluate on. Its images keep their order.
        """
        total = getattr(self, f"num_{split}")
        if count >= total:
            return self
        chosen = np.random.default_rng(0).choice(total, count, replace=False)
        return dataclasses.replace(
            self,
            source=self.source.sample(split, total, np.sort(chosen)),
            **{f"num_{split}": count},
        )

    def image_names(self, split: str, rows: range | None = None) -> list[str]:
        """Returns the names of the images of `batches(split)`, in order, or of those in
        `rows`."""
        source = self.source.of({})
        if not hasattr(source, "image_names"):
            raise ValueError(f"The images of {self.name!r} have no names.")
        every = range(getattr(self, f"num_{split}"))
        return source.image_names(split, every if rows is None else rows)

    def metadata(self) -> dict[str, Any]:
        """Returns a dict of the fields that can be written as JSON."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "source"
        }


def balanced_class_weights(counts: ArrayLike) -> Array:
    """Returns weights that give every class the same share of the loss.

    They are those of scikit-learn's `class_weight="balanced"`: the number of
    images divided by the number of classes and by the number of images of the
    class. Their mean over the images is 1.

    Args:
        counts: List or array of the numbers of images of each class, such as
            `ImageDataset.class_counts()`.

    Returns:
        Float array of the shape of `counts`. Classes without images are not counted and
        have a weight of 0.

    Example:

    ```python
    import keras_vit

    data = keras_vit.data.load_dataset("digits")
    weights = keras_vit.data.balanced_class_weights(data.class_counts())
    batches = data.train(image_size=8, batch_size=64, class_weights=weights)
    ```
    """
    counts = np.asarray(counts)
    weights = counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 0.0)
