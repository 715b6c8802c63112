"""Image classification data by name: digits, TFDS, or a folder."""

import dataclasses
import difflib
import math
import pathlib
from typing import Any

from keras_vit.training._batches import Batches

TEST_SHARE = 0.2
# Shares of the training set that were held out to choose the learning rate:
# vit_jax/configs and the paper, Section 4.1. Of others, a tenth.
HOLDOUT = {
    "cifar10": 0.02,
    "cifar100": 0.02,
    "imagenet2012": 0.01,
    "oxford_flowers102": 0.1,
    "oxford_iiit_pet": 0.1,
}


@dataclasses.dataclass(frozen=True)
class Data:
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
    # What has `train(data, rules)` and `ordered(data, part, total, rules)`.
    source: Any = dataclasses.field(default=None, repr=False)

    def train(self, *, image_size, batch_size, seed=0, **options):
        """Returns endless batches of augmented training images.

        Batch k follows from `seed`, k and `shard` alone, so that a run which
        starts again at batch k sees what it would have seen. Every image is
        used once before any is used again.

        Args:
            image_size: Integer. Height and width.
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
                f"Nothing of {self.name!r} was held out: give find_data a "
                "`holdout`."
            )
        return self._ordered("dev", self.num_dev, **options)

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


def find_data(name, holdout=0.0, skip_bad_images=False, test_split=None):
    """Finds a dataset by its name.

    Args:
        name: "digits"; a folder, with `train/CLASS/*` and `test/CLASS/*` or
            only `CLASS/*`; or a name in TFDS, which may be downloaded.
        holdout: Float in [0, 1). Share of the training images to hold out for
            `Data.dev`, always the same ones; or "paper" for that of the
            paper: 1% of ImageNet, 2% of CIFAR, 10% of others.
        skip_bad_images: Boolean. For a folder, whether to read every image
            now and to leave out, with a warning that names them, those that
            cannot be read. Otherwise they are errors: now if the beginning
            or the end of a file tells (another format, cut, too large), else
            when their batch is made, which ends a run after its last
            checkpoint.
        test_split: String. For a name in TFDS, the split to evaluate on. None
            takes "test", or "validation" ("val") where there is no such split
            or its images have no labels, as of ImageNet and iNaturalist.

    Returns:
        A `Data`. A data set without a test set of its own is split about 80
        to 20, always in the same way, so that weights trained in one run have
        not seen the test images of another. In a folder, a hash of each
        image's path decides (relative to the folder, so with the name of its
        class). Therefore adding, removing or renaming an image moves no other
        one between training, validation and test, with two exceptions: a
        class always keeps one training image, and the test set is never
        empty. The first matters only if all images of a class would be test
        images: for n images, once in 5^n classes.

    Raises:
        ValueError: if there is no such dataset, or it cannot be used.
        ImportError: if a package is missing; the message says how to get it.
    """
    holdout = share_of(name, holdout)
    is_folder = pathlib.Path(name).expanduser().exists()
    if test_split is not None and (name == "digits" or is_folder):
        raise ValueError(
            "--test-split is for data sets in TFDS. Received: "
            f"{test_split!r} with --dataset {name!r}"
        )
    if skip_bad_images and (name == "digits" or not is_folder):
        raise ValueError(
            "--skip-bad-images is for a folder of images. There is no folder "
            f"{name!r}: leave the flag out, or give a folder."
        )
    # Each source is imported when it is asked for: digits need no TensorFlow.
    if name == "digits":
        from keras_vit.training._digits import digits

        return digits(holdout)
    if is_folder:
        from keras_vit.training._folders import folder

        return folder(name, holdout, skip_bad_images)
    from keras_vit.training._tfds import from_tfds

    return from_tfds(name, holdout, test_split)


def share_of(name, holdout):
    """Returns the share of a dataset's training images to hold out.

    Args:
        name: String.
        holdout: A share, also as text; "paper"; None for nothing.
    """
    if holdout == "paper":
        return HOLDOUT.get(name.split(":")[0], 0.1)
    try:
        share = float(holdout or 0)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise ValueError(
            "--holdout must be a share of the training images from 0 to below "
            f"1, or 'paper'. Received: {holdout!r}"
        )
    return share


def not_found(name, known=()):
    """The error for a name that is neither a folder nor in TFDS."""
    if name.split(":")[0] == "imagenet21k":
        return ValueError(
            "ImageNet-21k is not in TFDS: give a folder of it, "
            "FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or prepare a TFDS "
            f"set named {name!r} with splits 'train' and 'test' in the folder "
            "that TFDS_DATA_DIR names."
        )
    path = pathlib.Path(name).expanduser()
    beside = []
    if path.parent.is_dir():
        folders = [p for p in path.parent.iterdir() if p.is_dir()]
        beside = [str(path.parent / p.name) for p in folders]
    close = difflib.get_close_matches(name, ["digits", *known, *beside])
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(
        f"There is no folder {name!r}, and TFDS has no dataset of that "
        f"name.{hint} --dataset takes 'digits', a name in TFDS such as "
        "'cifar10', or a folder."
    )
