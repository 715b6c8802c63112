"""A data set of labelled images: its metadata and its batches."""

import dataclasses
import difflib
import pathlib
from typing import Any

from keras_vit.data.erasing import RandomErasing
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.protocols import height_and_width
from keras_vit.data.randaugment import AUGREG

MODES = ("tf", "torch")


@dataclasses.dataclass(frozen=True)
class Batches:
    """Options of the batches of an `ImageDataset`, checked in one place."""

    image_size: int | tuple  # becomes (height, width)
    batch_size: int
    protocol: str = "simple"
    mode: str = "tf"
    one_hot: bool = False
    shard: tuple = (0, 1)
    # For training alone.
    seed: int = 0
    augment: str = "none"
    mixup: float = 0.0
    cutmix: float = 0.0
    erase: float | RandomErasing = 0.0
    flip: bool = True
    start: int = 0
    # In how many micro-batches each batch comes. Images, augmentation and
    # mixing are those of the whole batch, which `start` counts.
    micro_batches: int = 1

    def __post_init__(self):
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
        size = height_and_width(self.image_size)
        object.__setattr__(self, "image_size", size)
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
                f"A batch of {self.batch_size} images, that of all hosts "
                f"together, cannot be shared by {count} hosts. Use a multiple "
                f"of {count}."
            )
        if self.micro_batches < 1 or len(self.own) % self.micro_batches:
            raise ValueError(
                f"{len(self.own)} images of a batch on each host cannot be "
                "split into micro-batches of the same size. Use a divisor. "
                f"Received: micro_batches={self.micro_batches}"
            )

    @property
    def micro_batch_size(self):
        """The rows of a micro-batch that are this host's."""
        return len(self.own) // self.micro_batches

    @property
    def own(self):
        """The rows of the whole batch that are this host's, as a range."""
        index, count = self.shard
        rows = self.batch_size // count
        return range(index * rows, (index + 1) * rows)

    @property
    def mixed(self):
        return self.mixup > 0 or self.cutmix > 0


def own_part(total, rules):
    """This host's part of a test set, and how many batches every host gives.

    Hosts give as many batches as each other, as they evaluate in step; the
    images that some of them lack are padding of weight 0. Keras divides a
    loss by the number of rows, padding included, so the weights of the images
    are a little over 1: all weights together have a mean of 1.

    Returns:
        A range of the images, the number of batches, and an image's weight.
    """
    index, count = rules.shard
    most = -(-total // count)
    part = range(min(index * most, total), min((index + 1) * most, total))
    batches = -(-most // len(rules.own))
    return part, batches, batches * rules.batch_size / total


def _raise_unless_in(name, value, known):
    if value not in known:
        raise ValueError(
            f"There is no {name} {value!r}. --{name} takes: {', '.join(known)}."
        )


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A dataset that was found and checked, before any image is resized."""

    name: str
    class_names: tuple
    channels: int
    image_size: int | None  # None where images differ in size or are no square
    num_train: int  # without those held out
    num_test: int
    num_dev: int = 0
    num_skipped: int = 0  # unreadable files
    num_unread: int = 0  # files of which only the ends were looked at
    # Whether an image may have several classes, or none. Its label is then a
    # row of float32 zeros and ones, one number for each class.
    multi_label: bool = False
    # What has `train(data, rules)` and `ordered(data, part, total, rules)`.
    source: Any = dataclasses.field(default=None, repr=False)

    def train(self, *, image_size, batch_size, seed=0, **options):
        """Returns endless batches of augmented training images.

        Batch k follows from `seed`, k and `shard` alone, so that a run which
        starts again at batch k sees what it would have seen. Every image is
        used once before any is used again.

        Args:
            image_size: Integer, the height and width of the batches' images;
                or `(height, width)`. Published protocols are for squares; see
                `keras_vit.data.protocols` for other rectangles.
            batch_size: Integer. Images in a batch, of all hosts together.
            seed: Integer. Decides the order and every augmentation.
            protocol: "simple" (the whole image, moved a little), "vit_jax",
                "big_vision", "pretrain" or "bit-hyperrule": how the published
                code cuts.
            augment: Level of RandAugment in "How to train your ViT?": "none",
                "light1", "light2", "medium1", "medium2", "strong1" or
                "strong2". Mixup is not implied.
            mixup: Float in [0, 1], the p of Beta(p, p); 0 for none.
            cutmix: The same; with both, each batch gets one of them.
            erase: Float in [0, 1]. Probability of random erasing in an image,
                0.25 in DeiT; or a `RandomErasing` with other arguments.
            flip: Boolean. Whether to mirror half of the images.
            start: Integer. The first batch to give.
            micro_batches: Integer. In how many micro-batches each batch
                comes, for accumulating gradients: the same images and labels,
                with the augmentation and mixing of the whole batch.
            shard: `(index, count)` of this host: it gets its rows of each
                batch. What all hosts get does not depend on `count`, except
                that partners in mixup and cutmix come from the same host.
            mode: "tf" for values in [-1, 1] or "torch" for ImageNet's mean
                and standard deviation; see `preprocess_input`.
            one_hot: Boolean. Labels as floats of shape `(batch, classes)`;
                always so with mixup or cutmix.

        Returns:
            An iterable of `(images, labels)` for `model.fit`.

        Raises:
            ValueError: if there is no such option, or these do not go with
                the data.
        """
        rules = Batches(image_size, batch_size, seed=seed, **options)
        if not self.num_train:
            raise ValueError(
                f"{self.name!r} has no training images: it can only be "
                "evaluated on."
            )
        return self.source.train(self, rules)

    def test(self, **options):
        """Returns batches of the test images, each once and in order.

        All batches are full: the last one is filled up with images of weight
        0, which Keras leaves out of `weighted_metrics`. The weights' mean is
        1, padding included, so that the loss is right as well.

        Args:
            image_size, batch_size, protocol, mode, one_hot: As in `train`.
            shard: `(index, count)` of this host, which gets one of `count`
                successive parts of the images. Every host gives the same
                number of batches.

        Returns:
            An iterable of `(images, labels, weights)` for `model.evaluate`.
        """
        return self._ordered("test", self.num_test, **options)

    def dev(self, **options):
        """Like `test`, with the training images that were held out."""
        if not self.num_dev:
            raise ValueError(
                f"Nothing of {self.name!r} was held out: give load_dataset a "
                "`holdout`."
            )
        return self._ordered("dev", self.num_dev, **options)

    @property
    def evaluation_split(self):
        """The split to evaluate on: "dev" if images are held out."""
        return "dev" if self.num_dev else "test"

    @property
    def num_evaluation(self):
        """The number of images to evaluate on."""
        return self.num_dev or self.num_test

    def evaluation(self, **options):
        """Like `test`, with the images of `evaluation_split`."""
        return self._ordered(
            self.evaluation_split, self.num_evaluation, **options
        )

    def once(self, part, **options):
        """Like `test`, with the images of "train", "dev" or "test"."""
        total = getattr(self, f"num_{part}")
        if not total:
            raise ValueError(f"{self.name!r} has no {part} images.")
        return self._ordered(part, total, **options)

    def names(self, part):
        """Returns the names of the images that `once` gives, in order.

        Raises:
            ValueError: if they have none.
        """
        if not hasattr(self.source, "names"):
            raise ValueError(f"The images of {self.name!r} have no names.")
        return self.source.names(part, getattr(self, f"num_{part}"))

    def _ordered(
        self,
        part,
        total,
        *,
        image_size,
        batch_size,
        protocol="simple",
        mode="tf",
        one_hot=False,
        shard=(0, 1),
    ):
        rules = Batches(image_size, batch_size, protocol, mode, one_hot, shard)
        return self.source.ordered(self, part, total, rules)

    def facts(self):
        """Returns what can be written down."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "source"
        }


def not_found(name, known=()):
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
