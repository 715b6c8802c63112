"""A data set of labelled images: its metadata and its batches."""

import dataclasses
import difflib
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_vit._program import printable
from keras_vit._types import Array
from keras_vit._types import ArrayLike
from keras_vit.data.crops import MultiCrop
from keras_vit.data.erasing import RandomErasing
from keras_vit.data.patch_sizes import RandomPatchSizes
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.protocols import height_and_width
from keras_vit.data.randaugment import AUGREG

MODES = ("tf", "torch", "clip")


@dataclasses.dataclass(frozen=True)
class PipelineOptions:
    """Options of the batches of an `ImageDataset`, checked in one place."""

    # An integer or `(height, width)`, which it becomes.
    image_size: Any
    batch_size: int
    protocol: str = "simple"
    mode: str = "tf"
    one_hot: bool = False
    shard: tuple = (0, 1)
    # Whether the last batch of an evaluation is as large as the others.
    pad: bool = False
    # The others are for training only.
    seed: int = 0
    augment: str = "none"
    mixup: float = 0.0
    cutmix: float = 0.0
    # A probability or a `RandomErasing`, which it becomes.
    erase: Any = 0.0
    flip: bool = True
    start: int = 0
    # Number of micro-batches that each batch is split into. Images,
    # augmentation and mixing are those of the whole batch, and `start` counts
    # whole batches.
    micro_batches: int = 1
    # A float for each class: the weight of its images in the loss.
    class_weights: tuple | None = None
    # Random crops for self-supervised training, instead of one image.
    crops: MultiCrop | None = None
    # A random patch size in each step.
    patch_sizes: RandomPatchSizes | None = None

    def __post_init__(self) -> None:
        _raise_unless_in("protocol", self.protocol, PROTOCOLS)
        _raise_unless_in("augment", self.augment, AUGREG)
        _raise_unless_in("mode", self.mode, MODES)
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if not 0 <= value <= 1:  # also not NaN
                raise ValueError(
                    f"--{name} must be 0 (none) to 1. Received: {value}"
                )
        if isinstance(self.erase, int | float):
            object.__setattr__(self, "erase", RandomErasing(self.erase))
        if not isinstance(self.erase, RandomErasing):
            raise ValueError(
                "`erase` must be a probability or a `RandomErasing`. Received: "
                f"{self.erase!r}"
            )
        self._check_crops()
        size = height_and_width(self.image_size)
        object.__setattr__(self, "image_size", size)
        self._check_patch_sizes()
        for name, least in (("batch_size", 1), ("start", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be {least} or more. Received: "
                    f"{getattr(self, name)}"
                )
        index, count = self.shard
        if not 0 <= index < count:
            raise ValueError(
                "`shard` must be (index, count) with 0 <= index < count. "
                f"Received: {self.shard}"
            )
        if self.batch_size % count:
            raise ValueError(
                "`batch_size`, the images of all processes together, must be a "
                f"multiple of the {count} processes. Received: "
                f"{self.batch_size}"
            )
        if self.micro_batches < 1 or len(self.local_rows) % self.micro_batches:
            raise ValueError(
                "`micro_batches` must divide the images of a batch in each "
                f"process, {len(self.local_rows)}. Received: "
                f"{self.micro_batches}"
            )

    def _check_crops(self) -> None:
        if self.crops is None:
            return
        if not isinstance(self.crops, MultiCrop):
            raise ValueError(
                "`crops` must be a `MultiCrop`, such as "
                'keras_vit.data.CROPS["dino"]. Received: '
                f"{self.crops!r}"
            )
        if (
            self.uses_mixing
            or self.augment != "none"
            or self.erase.probability
            or self.protocol != "simple"
        ):
            raise ValueError(
                "`crops` replaces `protocol`, and has its own augmentations: "
                "leave out `protocol`, `augment`, `mixup`, `cutmix` and "
                f"`erase`. Received: protocol={self.protocol!r}, "
                f"augment={self.augment!r}, mixup={self.mixup}, "
                f"cutmix={self.cutmix}, erase={self.erase.probability}"
            )

    def _check_patch_sizes(self) -> None:
        if self.patch_sizes is None:
            return
        if not isinstance(self.patch_sizes, RandomPatchSizes):
            raise ValueError(
                "`patch_sizes` must be a `RandomPatchSizes`, such as "
                "keras_vit.data.RandomPatchSizes((8, 16), patch_size=16). "
                f"Received: {self.patch_sizes!r}"
            )
        if self.crops is not None:
            raise ValueError(
                "`patch_sizes` is for one image, and `crops` makes several: "
                "leave out one of them."
            )
        self.patch_sizes.check(self.image_size)

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

    @property
    def uses_mixing(self) -> bool:
        """Whether images and labels are mixed by mixup or cutmix."""
        return self.mixup > 0 or self.cutmix > 0


def local_evaluation_rows(
    total: int, options: PipelineOptions
) -> tuple[range, int, float]:
    """Returns this process's rows of an evaluation set, the number of batches
    of each process, and the weight of an image.

    Several processes evaluate in step, so each has the same number of full
    batches. Missing images are then padding of weight 0, as with `options.pad`.
    Keras divides a loss by the number of rows, padding included, so the weights
    of images are slightly above 1: the mean of all weights is 1.
    """
    index, count = options.shard
    most = -(-total // count)
    rows = range(min(index * most, total), min((index + 1) * most, total))
    batches = -(-most // len(options.local_rows))
    padded = batches * options.batch_size if options.pads else total
    return rows, batches, padded / total


def _raise_unless_in(name: str, value: Any, known: Iterable[str]) -> None:
    if value not in known:
        raise ValueError(
            f"There is no {name} {value!r}. --{name} takes: {', '.join(known)}."
        )


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A data set of labelled images: its metadata and its batches.

    `load_dataset`, `from_arrays`, `from_csv` and `from_huggingface` make one.
    """

    name: str
    class_names: tuple
    channels: int
    # Height and width; None if the images differ in size or are not square.
    image_size: int | None
    # Median of the heights and widths of a sample of the training images, in
    # pixels; None if it is unknown.
    median_side: int | None = dataclasses.field(default=None, kw_only=True)
    num_train: int  # without the images that are held out
    num_test: int
    num_validation: int = 0
    num_skipped: int = 0  # files that cannot be read
    # Files of which only the header and the trailer were checked.
    num_unverified: int = 0
    # Whether an image may have several classes, or none. Its label is then a
    # row of float32 zeros and ones, one number for each class.
    multi_label: bool = False
    # An object with the methods `train(data, options)`,
    # `evaluation_batches(data, split, total, options)` and, for
    # `class_counts`, `class_counts(data)`.
    source: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        names = tuple(map(printable, self.class_names))
        object.__setattr__(self, "class_names", names)

    def train(
        self,
        *,
        image_size: int | tuple[int, int],
        batch_size: int,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Returns endless batches of augmented training images.

        Batch k depends on `seed`, k and `shard` only, so a run that resumes at
        batch k gets the same batches as one that was not interrupted. Every
        image is used once before any image is used again.

        Args:
            image_size: Integer, the height and width of the batches' images;
                or `(height, width)`. Published protocols are for squares; see
                `keras_vit.data.protocols` for other rectangles.
            batch_size: Integer. Number of images in a batch, of all processes
                together.
            seed: Integer. Seed of the order and of every augmentation.
            protocol: String. How images are cropped and resized: "simple" (the
                whole image, translated a little), or the name of published
                code, such as "vit_jax", "big_vision" or "pretrain". See
                `keras_vit.data.PROTOCOLS`.
            augment: Level of RandAugment in "How to train your ViT?": "none",
                "light1", "light2", "medium1", "medium2", "strong1" or
                "strong2". It does not include mixup.
            mixup: Float in [0, 1], the p of Beta(p, p); 0 for none.
            cutmix: Likewise. With both, each batch gets one of the two.
            erase: Float in [0, 1]. Probability of random erasing in an image,
                0.25 in DeiT; or a `RandomErasing` with other arguments.
            flip: Boolean. Whether to flip half of the images horizontally.
            start: Integer. Number of the first batch.
            micro_batches: Integer. Number of micro-batches that each batch is
                split into, to accumulate gradients. Images, augmentation and
                mixing are those of the whole batch.
            shard: `(index, count)` of this process, which gets its rows of each
                batch. The rows of all processes together do not depend on
                `count`, except that the partners of mixup and cutmix come
                from the same process.
            mode: "tf" for values in [-1, 1] or "torch" for ImageNet's mean
                and standard deviation; see `preprocess_input`.
            one_hot: Boolean. Whether labels are floats of shape
                `(batch, classes)`. With mixup or cutmix, and for a multi-label
                data set, they always are.
            class_weights: List of floats of 0 or more, one for each class, such
                as `balanced_class_weights(data.class_counts())`. Each image
                gets the weight of its class.
            crops: A `MultiCrop`, such as `CROPS["dino"]`: random crops of each
                image for `keras_vit.pretraining.DINO` and `MoCoV3`, instead of
                one image. `image_size` is that of the global crops.
            patch_sizes: A `RandomPatchSizes`: each batch is for another patch
                size, and its images have another size.

        Returns:
            An iterable of `(images, labels)` for `model.fit`, or with
            `class_weights` of `(images, labels, weights)`. With `crops`,
            `images` is a dict of `global`, of shape `(batch, 2, height, width,
            channels)`, and `local`.

        Raises:
            ValueError: if an option is invalid, or the data set does not
                support it.
        """
        checked = PipelineOptions(image_size, batch_size, seed=seed, **options)
        if not self.num_train:
            raise ValueError(
                f"{self.name!r} has no training images, and can only be "
                "evaluated on."
            )
        if checked.class_weights is not None:
            self._check_class_weights(checked)
        return self.source.train(self, checked)

    def _check_class_weights(self, options: PipelineOptions) -> None:
        if self.multi_label or options.uses_mixing:
            raise ValueError(
                "Class weights are for images of one class each. Received: "
                + (
                    f"{self.name!r}, which is a multi-label data set."
                    if self.multi_label
                    else f"mixup={options.mixup}, cutmix={options.cutmix}, "
                    "which mix images of different classes. Set them to 0."
                )
            )
        weights = np.asarray(options.class_weights, "float64")
        if (
            weights.shape != (len(self.class_names),)
            or not (np.isfinite(weights) & (weights >= 0)).all()
        ):
            raise ValueError(
                f"`class_weights` must be {len(self.class_names)} numbers of 0 "
                "or more, one for each class. Received: "
                f"{options.class_weights}"
            )

    def class_counts(self) -> Array:
        """Returns the number of training images of each class.

        Without the images that are held out. The records of a TFDS data set
        are read for it, but its images are not decoded.

        Returns:
            Integer array of shape `(classes,)`. An image of a multi-label data
            set counts for each of its classes.
        """
        return self.source.class_counts(self)

    def test(self, **options: Any) -> Any:
        """Returns batches of the test images, each image once and in order.

        The last batch may be smaller than the others, and weights are 1. An
        image without a label, of which ImageNet's ReaL labels have some, has a
        weight of 0 and only counts in `metrics`, not in `weighted_metrics`.

        Args:
            image_size, batch_size, protocol, mode, one_hot: As in `train`.
            shard: `(index, count)` of this process, which gets one of `count`
                successive slices of the images. Every process gets the same
                number of batches, which are padded.
            pad: Boolean. Whether to pad the last batch to the size of the
                others, so that several devices can split it, and JAX and
                `jit_compile` compile one program instead of two. The images
                of the padding have a weight of 0, which counts in
                `weighted_metrics`, but not in `metrics` and `predict`. The
                mean of the weights is 1, padding included, so that the loss is
                right as well.

        Returns:
            An iterable of `(images, labels, weights)` for `model.evaluate`.
        """
        return self._evaluation_batches("test", **options)

    def validation(self, **options: Any) -> Any:
        """Like `test`, with the training images that are held out."""
        if not self.num_validation:
            raise ValueError(
                f"Nothing of {self.name!r} was held out: give load_dataset a "
                "`holdout`."
            )
        return self._evaluation_batches("validation", **options)

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
        return self._evaluation_batches(self.evaluation_split, **options)

    def batches(self, split: str, **options: Any) -> Any:
        """Like `test`, with the images of "train", "validation" or "test"."""
        if not getattr(self, f"num_{split}"):
            raise ValueError(f"{self.name!r} has no {split} images.")
        return self._evaluation_batches(split, **options)

    def sample(self, split: str, count: int) -> "ImageDataset":
        """Returns the data set with a random sample of the images of a split.

        The first images of a folder or a file are those of the first classes.
        A random sample has images of all. It depends only on the numbers of
        images.

        Args:
            split: "train", "validation" or "test".
            count: Integer. Number of images. All remain if there are not more.

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

    def image_names(self, split: str) -> list[str]:
        """Returns the names of the images of `batches(split)`, in order.

        Raises:
            ValueError: if the images have no names.
        """
        if not hasattr(self.source, "image_names"):
            raise ValueError(f"The images of {self.name!r} have no names.")
        return self.source.image_names(split, getattr(self, f"num_{split}"))

    def _evaluation_batches(
        self,
        split: str,
        *,
        image_size: int | tuple[int, int],
        batch_size: int,
        protocol: str = "simple",
        mode: str = "tf",
        one_hot: bool = False,
        shard: tuple[int, int] = (0, 1),
        pad: bool = False,
    ) -> Any:
        options = PipelineOptions(
            image_size, batch_size, protocol, mode, one_hot, shard, pad
        )
        total = getattr(self, f"num_{split}")
        return self.source.evaluation_batches(self, split, total, options)

    def metadata(self) -> dict[str, Any]:
        """Returns a dict of the fields that can be written as JSON."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "source"
        }


def balanced_class_weights(counts: ArrayLike) -> Array:
    """Returns weights that give every class the same part in the loss.

    They are those of scikit-learn's `class_weight="balanced"`: the number of
    images divided by the number of classes and by the number of images of the
    class. Their mean over the images is 1.

    Args:
        counts: List or array of the numbers of images of each class, such as
            `ImageDataset.class_counts()`.

    Returns:
        Float array of the shape of `counts`. Classes without images do not
        count, and have a weight of 0.

    Raises:
        ValueError: if there are no images.

    Example:

    ```python
    import keras_vit

    data = keras_vit.data.load_dataset("digits")
    weights = keras_vit.data.balanced_class_weights(data.class_counts())
    batches = data.train(image_size=8, batch_size=64, class_weights=weights)
    ```
    """
    counts = np.asarray(counts)
    if counts.ndim != 1 or not (counts >= 0).all() or not counts.any():
        raise ValueError(
            "`counts` must be the number of images of each class, one or more "
            f"in all. Received: {counts.tolist()}"
        )
    weights = counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 0.0)


def unknown_dataset_error(name: str, known: Iterable[str] = ()) -> ValueError:
    """Returns the error for a name that is no folder or file, nor in TFDS."""
    if name.split(":")[0] == "imagenet21k":
        return ValueError(
            "ImageNet-21k is not in TFDS: give a folder of it, "
            "FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or prepare a TFDS "
            f"set named {name!r} with splits 'train' and 'test' in the folder "
            "that TFDS_DATA_DIR names."
        )
    path = pathlib.Path(name).expanduser()
    nearby = []
    if path.parent.is_dir():
        nearby = [
            str(path.parent / p.name)
            for p in path.parent.iterdir()
            if p.is_dir() or p.suffix.lower() == ".csv"
        ]
    close = difflib.get_close_matches(name, ["digits", *known, *nearby])
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(
        f"There is no folder or file {name!r}, and TFDS has no dataset of "
        f"that name.{hint} --dataset takes 'digits', a name in TFDS such as "
        "'cifar10', a folder, or a CSV file of paths and labels."
    )
