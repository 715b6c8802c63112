"""Command lines of the recipes, made from dataclasses."""

import argparse
import dataclasses
import math
import signal
import sys
import types
import typing

from keras_vit import _logging
from keras_vit import _program
from keras_vit._logging import logger
from keras_vit._program import UserError
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.splits import parse_holdout
from keras_vit.training.checkpoint import Diverged
from keras_vit.training.checkpoint import Preempted


def flag(default, text, metavar="N"):
    """A field of a recipe's dataclass, with its help text."""
    metadata = {"help": text, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def flags(config_class, description, argv=None):
    """Reads the command line into a dataclass.

    Every field `like_this: type = flag(default, text)` becomes `--like-this
    VALUE`. Its type is int, float, str, one of them or None, `float | str` (a
    number, or text), `tuple[int, ...]` and the like (one value or more), or
    bool (a flag without a value, False by default).

    Args:
        config_class: A dataclass whose `__post_init__` may raise a
            `ValueError` for values that do not go together.
        description: String. Shown by `--help` above the flags.
        argv: List of strings; None takes the command line.

    Returns:
        An instance of `config_class`. A wrong command line ends the process
        with one line and status 2.
    """
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(config_class)
    # A class's own flags come before those it shares with other recipes.
    own = config_class.__annotations__
    fields = sorted(
        dataclasses.fields(config_class), key=lambda f: f.name not in own
    )
    for field in fields:
        kind = _plain(hints[field.name])
        text = field.metadata.get("help", "").replace("%", "%%")
        if field.default not in (None, False, ()):
            text += f" (default: {_shown(field.default)})"
        options = {"help": text, "dest": field.name, "default": field.default}
        if kind is bool:
            options["action"] = "store_true"
        else:
            if typing.get_origin(kind) is tuple:
                kind, options["nargs"] = typing.get_args(kind)[0], "+"
            options["type"] = kind
            options["metavar"] = field.metadata.get("metavar", "N")
        parser.add_argument("--" + field.name.replace("_", "-"), **options)
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    try:
        return config_class(**values)
    except ValueError as error:
        parser.error(str(error))


def run(main, config_class, description, argv=None):
    """Runs a recipe from the command line: `main(config)`.

    Exit status: 0 done, 1 diverged, 2 wrong usage, 130 interrupted, 143 ended
    by SIGTERM. The last two are 128 and the number of the signal, by which
    schedulers such as SLURM and Kubernetes know to start the run again.
    """
    _logging.show()
    _program.escape_unprintable_output()
    config = flags(config_class, description, argv)
    try:
        main(config)
    except UserError as error:
        logger.error("error: %s", error)
        sys.exit(2)
    except Preempted as preempted:
        logger.info("\n%s", preempted)
        sys.exit(128 + signal.SIGTERM)
    except Diverged as error:
        logger.error("\nerror: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        logger.error("\nerror: interrupted")
        sys.exit(128 + signal.SIGINT)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"error: {message} (--help lists all flags)\n")


def _shown(default):
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return default


def _plain(hint):
    """The type of a flag's value: int for `int | None`."""
    if isinstance(hint, types.UnionType):
        kinds = set(typing.get_args(hint)) - {types.NoneType}
        if kinds == {float, str}:
            return _number_or_text
        (hint,) = kinds
    return hint


def _number_or_text(text):
    try:
        return float(text)
    except ValueError:
        return text


def check_numbers(config, *names, minimum=None, above=None, below=None):
    """Raises a `ValueError` if fields of a dataclass are out of a range.

    None, which stands for a default that is found later, is always right.
    """
    limits = []
    if minimum is not None:
        limits.append((f"{minimum} or more", lambda value: value >= minimum))
    if above is not None:
        limits.append((f"above {above}", lambda value: value > above))
    if below is not None:
        limits.append((f"below {below}", lambda value: value < below))
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        # Comparisons with NaN are false, so it is in no range.
        if not all(fits(value) for _, fits in limits) or math.isinf(value):
            raise ValueError(
                f"--{name.replace('_', '-')} must be "
                f"{' and '.join(text for text, _ in limits)}. "
                f"Received: {value}"
            )


def check_names(config, **known):
    """Raises a `ValueError` if a field is none of the names known for it.

    None, which stands for a default that is found later, is always right.
    """
    for name, names in known.items():
        value, names = getattr(config, name), list(names)
        if value is not None and value not in names:
            raise ValueError(
                f"--{name.replace('_', '-')} takes {', '.join(names)}. "
                f"Received: {value}"
            )


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
    """What recipes that train share; theirs are fields of a subclass.

    A field that the subclass has too takes its default and its text. None
    stands for what the recipe decides when it has seen the data.
    """

    dataset: str = flag(
        "digits",
        "'digits' (in scikit-learn), a name in TFDS such as cifar10 or "
        "cifar100, or a folder: FOLDER/train/CLASS/* with "
        "FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of which 20% is the test set; "
        "or a CSV file with the columns image and label, and perhaps split",
        "NAME|FOLDER|CSV",
    )
    image_size: int | None = flag(None, "images are resized to N x N")
    patch_size: int | None = flag(None, "pixels a side of a patch")
    batch_size: int = flag(64, "images a step")
    steps: int | None = flag(None, "training steps")
    epochs: int | None = flag(
        None, "passes over the images, instead of --steps"
    )
    learning_rate: float | None = flag(None, "peak", "X")
    accumulate: int = flag(
        1, "parts in which a batch is computed, for less memory"
    )
    average: float = flag(
        0.0,
        "decay of a moving average of the weights, which is then evaluated "
        "and saved: 0.9999 in the paper's Table 2",
        "X",
    )
    keep: str = flag(
        "last",
        "which weights to save in the end: last, or best, those of the "
        "evaluation with the highest accuracy; with --holdout it is of "
        "held-out images, without it of the test images, whose accuracy is "
        "then optimistic",
        "last|best",
    )
    patience: int | None = flag(
        None,
        "stop after so many successive evaluations without a better "
        "accuracy; without it, all steps are trained",
    )
    mode: str | None = flag(
        None,
        "pixels: tf for [-1, 1], torch for ImageNet's mean and deviation",
        "NAME",
    )
    protocol: str = flag(
        "simple",
        f"how images are cut and resized: {', '.join(PROTOCOLS)}; "
        "simple moves whole images a little, vit_jax is the paper's code",
        "NAME",
    )
    augment: str = flag(
        "none",
        f"RandAugment as in 'How to train your ViT?': {', '.join(AUGREG)}",
        "LEVEL",
    )
    mixup: float | None = flag(
        None, "p of mixup's Beta(p, p), such as 0.2; none without it", "P"
    )
    cutmix: float | None = flag(
        None,
        "p of cutmix's Beta(p, p), such as 1; with --mixup, each batch gets "
        "one of them",
        "P",
    )
    erase: float = flag(
        0.0,
        "probability of random erasing: a rectangle of the image becomes "
        "noise; 0.25 in DeiT",
        "P",
    )
    holdout: float | str | None = flag(
        None,
        "evaluate on a share of the training images, such as 0.1, which are "
        "then not trained on, and not on the test set; 'paper' for 1% of "
        "ImageNet, 2% of CIFAR and 10% of others; 0 trains on all images and "
        "evaluates on the test set, also where a preset leaves some out",
        "X|paper",
    )
    test_split: str | None = flag(
        None,
        "for a name in TFDS, the split to evaluate on; default: test, or "
        "validation where test has no labels",
        "NAME",
    )
    no_flip: bool = flag(
        False, "do not mirror images (text, left and right hands)"
    )
    skip_bad_images: bool = flag(
        False,
        "read every image of a folder first, and leave out with a warning "
        "what cannot be read; otherwise that is an error",
    )
    strategy: str = flag(
        "auto",
        "how several devices share a batch: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none, or auto, which says "
        "what it takes",
        "NAME",
    )
    remat: bool = flag(
        False, "compute blocks twice instead of keeping them: less memory"
    )
    mixed_precision: bool = flag(
        False, "compute in bfloat16 (TPUs and newer GPUs)"
    )
    seed: int = flag(0, "of weights, order and augmentation, not of the split")
    evaluate_every: int | None = flag(
        None,
        "steps between two evaluations; without it, chosen by the length of "
        "the run",
    )
    checkpoint_every: int | None = flag(
        None, "steps between two checkpoints; default: between evaluations"
    )
    output: str | None = flag(
        None,
        "default: runs/ and the dataset's name; several hosts must share it",
        "DIR",
    )
    tensorboard: bool = flag(
        False, "write event files for TensorBoard into --output"
    )
    overwrite: bool = flag(False, "replace an earlier run's files in --output")

    def __post_init__(self):
        sizes = ("image_size", "patch_size", "batch_size", "steps", "epochs")
        counts = (*sizes, "accumulate", "evaluate_every", "checkpoint_every")
        counts += ("patience",)
        check_numbers(self, *counts, minimum=1)
        check_numbers(self, "average", minimum=0, below=1)
        check_numbers(self, "learning_rate", above=0)
        for name in ("mixup", "cutmix"):
            check_numbers(self, name, minimum=0)
        check_numbers(self, "erase", minimum=0)
        check_names(self, keep=("last", "best"))
        parse_holdout("", self.holdout)
        if self.holdout not in (None, "paper"):
            # A number, also where it was given as text.
            object.__setattr__(self, "holdout", float(self.holdout))
        check_numbers(self, "seed", minimum=0, below=2**32)
        if self.steps and self.epochs:
            raise ValueError("Give --steps or --epochs, not both.")
        # None is a size that the recipe chooses when it has seen the data.
        if self.batch_size and self.batch_size % self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} must divide --batch-size "
                f"{self.batch_size}."
            )

    def published_holdout(self):
        """Returns the share of the training images that a preset leaves out.

        They are not trained on. Unlike with `--holdout`, the test set is
        evaluated all the same, as the published code does.
        """
        return 0.0

    def optimizer_options(self):
        """Returns the arguments of `SGD` and `AdamW` that all recipes share:
        the published conventions, and what these flags decide."""
        return {
            "convention": "optax",
            "decay_kernels_only": True,
            "gradient_accumulation_steps": (
                self.accumulate if self.accumulate > 1 else None
            ),
            "use_ema": self.average > 0,
            "ema_momentum": self.average or 0.99,
        }

    @property
    def one_hot(self):
        """Whether labels are rows of numbers: mixed labels are no integers."""
        return bool(self.mixup or self.cutmix)

    def batches(self):
        """Returns the arguments of all batches of an `ImageDataset`."""
        return {
            "image_size": self.image_size,
            "protocol": self.protocol,
            "mode": self.mode,
            "one_hot": self.one_hot,
        }

    def augmentation(self, channels):
        """Returns the further arguments of `ImageDataset.train`."""
        return {
            "augment": self.augment,
            "mixup": self.mixup or 0.0,
            "cutmix": self.cutmix or 0.0,
            "erase": self.erase,
            # Grey images are mostly signs, whose mirror images mean nothing.
            "flip": channels == 3 and not self.no_flip,
        }

    def whole_batch(self, wanted, count):
        """Returns the batch of whole parts that `count` images allow.

        Raises:
            ValueError: if there are fewer images than parts.
        """
        if count < self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} is more than the {count} "
                "training images."
            )
        return min(wanted, count) // self.accumulate * self.accumulate
