"""Command lines of the recipes, generated from dataclasses."""

import argparse
import dataclasses
import math
import signal
import sys
import types
import typing
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NoReturn
from typing import Self

from keras_vit import _program
from keras_vit._logging import logger
from keras_vit._logging import show as show_log
from keras_vit._program import UserError as UserError
from keras_vit._program import nearest_flag
from keras_vit._program import printable as printable
from keras_vit._program import require as require
from keras_vit._program import user_errors as user_errors
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.splits import parse_holdout
from keras_vit.training.checkpoint import Diverged
from keras_vit.training.checkpoint import Preempted
from keras_vit.training.presets import Published


def arg(default: Any, text: str, metavar: str = "N") -> Any:
    """Returns a dataclass field that `parse_args` turns into a flag."""
    metadata = {"help": text, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def parse_args(
    config_class: type, description: str, argv: Sequence[str] | None = None
) -> Any:
    """Parses the command line into an instance of a dataclass.

    Every field `like_this: type = arg(default, text)` becomes `--like-this
    VALUE`. Its type is int, float or str, one of these or None, `float | str`
    (a number or text), `int | str` (text, which `__post_init__` parses),
    `tuple[int, ...]` or another tuple (one or more values), or bool (a flag
    without a value, False by default). Other fields are settings without a
    flag.
    """
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(config_class)
    # `--help` lists a recipe's own flags before those of its base class.
    own = config_class.__annotations__
    fields = sorted(
        dataclasses.fields(config_class), key=lambda f: f.name not in own
    )
    for field in fields:
        if "help" not in field.metadata:  # a setting that is no flag
            continue
        kind = _plain(hints[field.name])
        text = field.metadata["help"].replace("%", "%%")
        if field.default not in (None, False, ()):
            text += f" (default: {_shown(field.default)})"
        options = {"help": text, "dest": field.name, "default": field.default}
        if kind is bool:
            options["action"] = "store_true"
        else:
            if typing.get_origin(kind) is tuple:
                kind, options["nargs"] = typing.get_args(kind)[0], "+"
            options["type"] = kind
            options["metavar"] = field.metadata["metavar"]
        parser.add_argument("--" + field.name.replace("_", "-"), **options)
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    try:
        return config_class(**values)
    except ValueError as error:
        parser.error(str(error))


def run(
    main: Callable[[Any], Any],
    config_class: type,
    description: str,
    argv: Sequence[str] | None = None,
) -> None:
    """Runs a recipe from the command line: `main(config)`.

    The exit status is 0 for success, 1 if training diverged, 2 for a user
    error, 130 after Ctrl-C and 143 after SIGTERM. The last two are 128 plus the
    number of the signal, from which schedulers such as SLURM and Kubernetes
    infer that the run should be restarted.
    """
    show_log()
    _program.escape_unprintable_output()
    warnings.formatwarning = _program.format_warning
    config = parse_args(config_class, description, argv)
    try:
        main(config)
    except UserError as error:
        logger.error("error: %s", _program.printable_lines(error))
        sys.exit(2)
    except Preempted as preempted:
        logger.info("\n%s", preempted)
        sys.exit(128 + signal.SIGTERM)
    except Diverged as error:
        logger.error("\nerror: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        hint = ""
        if isinstance(config, TrainingFlags):
            hint = (
                "; the same command resumes from the last checkpoint, or "
                "starts again if there is none"
            )
        logger.error("\nerror: interrupted%s", hint)
        sys.exit(128 + signal.SIGINT)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message += nearest_flag(self, message)
        self.exit(2, f"error: {message} (--help lists all flags)\n")


def _shown(default: Any) -> Any:
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return default


def _plain(hint: Any) -> Any:
    """Returns the type of a flag's value, such as int for `int | None`."""
    if isinstance(hint, types.UnionType):
        kinds = set(typing.get_args(hint)) - {types.NoneType}
        if kinds == {int, str}:
            return str
        if kinds == {float, str}:
            return _number_or_text
        (hint,) = kinds
    return hint


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def parse_image_size(
    value: Any, name: str = "--image-size"
) -> int | tuple[int, int] | None:
    """Returns the value of `--image-size`, such as 64, "64" or "64x48", as an
    integer or, if they differ, `(height, width)`; raises a `ValueError` if it
    is no size."""
    if value is None:
        return None
    sides = value if isinstance(value, tuple | list) else str(value).split("x")
    try:
        sides = [int(side) for side in sides]
    except ValueError:
        sides = []
    if len(sides) == 1:
        sides = 2 * sides
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(
            f"{name} must be 1 or more, such as 64, or height x width, such as "
            f"64x48. Received: {value}"
        )
    height, width = sides
    return height if height == width else (height, width)


def check_range(
    config: Any,
    *names: str,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises a `ValueError` if a field of a dataclass is out of range.

    None is always accepted: it stands for a default that is chosen later.
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
        # All comparisons with NaN are false, so that NaN is rejected too.
        if not all(fits(value) for _, fits in limits) or math.isinf(value):
            raise ValueError(
                f"--{name.replace('_', '-')} must be "
                f"{' and '.join(text for text, _ in limits)}. "
                f"Received: {value}"
            )


def check_choices(config: Any, **known: Iterable[str]) -> None:
    """Raises a `ValueError` if a field is none of its valid names.

    None is always accepted: it stands for a default that is chosen later.
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
    """Flags that all training recipes share.

    A recipe adds flags in a subclass, and may override the default and the
    help text of a shared flag. None stands for a value that the recipe chooses
    once it has loaded the dataset.
    """

    dataset: str = arg(
        "digits",
        "'digits', the handwritten digits of scikit-learn; a name in TFDS, "
        "such as cifar10 or cifar100; a folder of images, "
        "FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of "
        "which 20% is the test set; or a CSV file with the columns image and "
        "label, and optionally split",
        "NAME|FOLDER|CSV",
    )
    image_size: int | None = arg(
        None,
        "images are resized to N x N; default: that of the model or of the "
        "dataset",
    )
    patch_size: int | None = arg(
        None,
        "height and width of a patch, in pixels; default: that of the model, "
        "or the one that gives about 8 x 8 patches",
    )
    batch_size: int = arg(64, "images per step")
    steps: int | None = arg(None, "training steps")
    epochs: int | None = arg(
        None, "passes over the training images, instead of --steps"
    )
    learning_rate: float | None = arg(
        None, "peak learning rate, after the warm-up", "X"
    )
    accumulate: int = arg(
        1,
        "number of micro-batches into which each batch is split, with "
        "gradient accumulation, to use less memory",
    )
    average: float = arg(
        0.0,
        "decay of a moving average of the weights; if above 0, the average is "
        "evaluated and saved instead of the weights; the paper's Table 2 uses "
        "0.9999",
        "X",
    )
    average_from: float | None = arg(
        None,
        "instead of --average, average the weights of all steps after this "
        "fraction of the steps, such as 0.75, with equal weights",
        "X",
    )
    keep: str = arg(
        "last",
        "which weights to save: last, those of the last step, or best, those "
        "of the evaluation with the highest accuracy, or mean average "
        "precision; with --holdout, this is that on the validation split; "
        "without it, that on the test images, which is then an optimistic "
        "estimate",
        "last|best",
    )
    patience: int | None = arg(
        None,
        "stop after this many successive evaluations without a higher "
        "accuracy, or mean average precision; default: no early stopping",
    )
    mode: str | None = arg(
        None,
        "pixel values: tf for [-1, 1], torch for normalisation by ImageNet's "
        "mean and standard deviation",
        "NAME",
    )
    protocol: str = arg(
        "simple",
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "simple randomly shifts whole images, vit_jax is that of the paper's "
        "code",
        "NAME",
    )
    augment: str | None = arg(
        None,
        "level of RandAugment as in 'How to train your ViT?': "
        f"{', '.join(AUGREG)}; default: none",
        "LEVEL",
    )
    mixup: float | None = arg(
        None,
        "mixup with lambda sampled from Beta(P, P), such as 0.2; default: no "
        "mixup",
        "P",
    )
    cutmix: float | None = arg(
        None,
        "cutmix with lambda sampled from Beta(P, P), such as 1; default: no "
        "cutmix; with --mixup too, one of the two is sampled for each batch",
        "P",
    )
    erase: float | None = arg(
        None,
        "probability of random erasing: a rectangle of the image becomes "
        "noise; 0.25 in DeiT; default: 0",
        "P",
    )
    holdout: float | str | None = arg(
        None,
        "fraction of the training images, such as 0.1, to hold out and to "
        "evaluate on instead of the test set; 'paper' for 1% of ImageNet, 2% "
        "of CIFAR and 10% of other datasets; 0 trains on all images, even if "
        "--preset leaves some out, and evaluates on the test set",
        "X|paper",
    )
    test_split: str | None = arg(
        None,
        "for a dataset of TFDS, the split to evaluate on; default: test, or "
        "validation if test has no labels",
        "NAME",
    )
    no_flip: bool = arg(
        False,
        "do not flip images horizontally, for example if they show text or "
        "left and right hands",
    )
    skip_bad_images: bool = arg(
        False,
        "decode every image of a folder before training, and leave out those "
        "that cannot be decoded, with a warning; without it, such an image is "
        "an error",
    )
    strategy: str = arg(
        "auto",
        "how to use several devices: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none for one device, or auto, "
        "which chooses one of them and prints its choice",
        "NAME",
    )
    remat: bool = arg(
        False,
        "recompute the encoder blocks in the backward pass instead of storing "
        "their activations, to use less memory",
    )
    mixed_precision: bool = arg(
        False, "compute in bfloat16, for TPUs and newer GPUs"
    )
    seed: int = arg(
        0,
        "random seed of the initial weights, the order of the images and the "
        "augmentation; the split into training and validation images does not "
        "depend on it",
    )
    evaluate_every: int | None = arg(
        None,
        "steps between two evaluations; default: depends on the number of "
        "steps",
    )
    checkpoint_every: int | None = arg(
        None, "steps between two checkpoints; default: --evaluate-every"
    )
    output: str | None = arg(
        None,
        "output folder, which all processes must share; default: runs/ "
        "followed by the name of the dataset",
        "DIR",
    )
    tensorboard: bool = arg(
        False, "write event files for TensorBoard to --output"
    )
    overwrite: bool = arg(
        False, "replace the files of an earlier run in --output"
    )

    # The batch size that a published learning rate is for, and to which it is
    # proportional; None if it is for any. It is no flag.
    rate_images: int | None = None

    def __post_init__(self) -> None:
        image_size = parse_image_size(self.image_size)
        object.__setattr__(self, "image_size", image_size)
        sizes = ("patch_size", "batch_size", "steps", "epochs")
        counts = (*sizes, "accumulate", "evaluate_every", "checkpoint_every")
        counts += ("patience",)
        check_range(self, *counts, minimum=1)
        check_range(self, "average", "average_from", minimum=0, below=1)
        if self.average and self.average_from is not None:
            raise ValueError(
                "--average is a moving average, and --average-from one with "
                "equal weights: give one of them. Received: --average "
                f"{self.average:g} --average-from {self.average_from:g}"
            )
        check_range(self, "learning_rate", above=0)
        for name in ("mixup", "cutmix"):
            check_range(self, name, minimum=0)
        check_range(self, "erase", minimum=0)
        check_choices(self, keep=("last", "best"))
        parse_holdout("", self.holdout)
        if self.holdout not in (None, "paper"):
            # The type is `float | str`, so that "0.1" may be given too.
            object.__setattr__(self, "holdout", float(self.holdout))
        check_range(self, "seed", minimum=0, below=2**32)
        if self.steps and self.epochs:
            raise ValueError("Give --steps or --epochs, not both.")
        # None is a batch size that the recipe chooses later.
        if self.batch_size and self.batch_size % self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} must divide --batch-size "
                f"{self.batch_size}."
            )

    def with_defaults(self, **defaults: Any) -> Self:
        """Returns a config in which fields that are None have other values."""
        missing = {
            name: value
            for name, value in defaults.items()
            if getattr(self, name) is None
        }
        return dataclasses.replace(self, **missing)

    def raise_if_given(self, *names: str) -> None:
        """Raises a `ValueError` if a flag of encoders is given for a BiT."""
        given = [name for name in names if getattr(self, name)]
        if given:
            raise ValueError(
                f"--{given[0].replace('_', '-')} is for Vision Transformers "
                "and hybrids. A BiT has no encoder: leave it out. Received: "
                f"{getattr(self, given[0])}"
            )

    def encoder_arguments(self) -> dict[str, Any]:
        """Returns the arguments of encoders among the flags that are not 0."""
        names = ("remat", "dropout", "drop_path")
        values = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in values.items() if value}

    def published_holdout(self) -> float:
        """Returns the fraction of the training images that a preset leaves out.

        The model does not train on these images. Unlike with `--holdout`, it
        is evaluated on the test set, as in the published code.
        """
        name = self.dataset.partition(":")[0]
        return self.published.left_out.get(name, 0.0)

    def scaled_rate(self, rate: float, batch_size: int) -> float:
        """Returns a published learning rate for a batch size."""
        return (
            rate * (batch_size / self.rate_images) if self.rate_images else rate
        )

    @property
    def published(self) -> Published:
        """Published settings, which flags that are None have."""
        return Published("none", {})

    @property
    def uses_averages(self) -> bool:
        """Boolean. Whether averages of the weights are evaluated and saved."""
        return self.average > 0 or self.average_from is not None

    def optimizer_options(self) -> dict[str, Any]:
        """Returns the arguments of `PublishedSGD` and `PublishedAdamW` that
        all recipes share: decay of kernels, accumulation and averages, for
        which `steps` must be filled in."""
        averages = {
            "use_ema": self.average > 0,
            "ema_momentum": self.average or 0.99,
        }
        if self.average_from is not None:
            steps: Any = self.steps  # filled in by now
            averages = {"average_from": math.floor(self.average_from * steps)}
        return {
            "decay_kernels_only": True,
            "gradient_accumulation_steps": (
                self.accumulate if self.accumulate > 1 else None
            ),
            **averages,
        }

    @property
    def one_hot(self) -> bool:
        """Boolean. Whether labels are one-hot, as mixup and cutmix need."""
        return bool(self.mixup or self.cutmix)

    def batches(self) -> dict[str, Any]:
        """Returns the arguments that all methods of `ImageDataset` share."""
        return {
            "image_size": self.image_size,
            "protocol": self.protocol,
            "mode": self.mode,
            "one_hot": self.one_hot,
        }

    def augmentation(self, channels: int) -> dict[str, Any]:
        """Returns the arguments of `ImageDataset.train` for augmentation."""
        return {
            "augment": self.augment or "none",
            "mixup": self.mixup or 0.0,
            "cutmix": self.cutmix or 0.0,
            "erase": self.erase or 0.0,
            # Greyscale images are mostly digits and letters, which a flip
            # changes.
            "flip": channels == 3 and not self.no_flip,
        }

    def whole_batch(self, wanted: int, count: int) -> int:
        """Returns the largest multiple of `--accumulate` up to the `wanted`
        batch size and the number of training images; raises a `ValueError` if
        there is none."""
        if count < self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} is more than the {count} "
                "training images."
            )
        if wanted < self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} divides each batch, and a "
                f"batch has {wanted} images: give a lower --accumulate, or a "
                "higher --batch-size."
            )
        return min(wanted, count) // self.accumulate * self.accumulate
