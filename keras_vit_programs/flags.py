"""Command lines of the recipes: flags, generated from dataclasses."""

import argparse
import dataclasses
import inspect
import math
import operator
import signal
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import (
    PROTOCOLS,
    height_and_width,
    parse_image_size,
)
from keras_vit.data.randaugment import AUGREG
from keras_vit.data.splits import parse_holdout
from keras_vit.data.token_budget import TokenBudget
from keras_vit.training.checkpoint import Diverged, Preempted
from keras_vit.utils.logging import logger
from keras_vit.utils.logging import show as show_log
from keras_vit.utils.optional import require as require
from keras_vit.utils.scaling import Mode, scaled_channels
from keras_vit.utils.text import printable as printable
from keras_vit_programs import console
from keras_vit_programs.console import UserError as UserError
from keras_vit_programs.console import user_errors as user_errors
from keras_vit_programs.presets import Published
from keras_vit_programs.sizes import (
    MODEL_NAMES,
    check_patch_size,
    choose_patch_size,
    resolve_model_spec,
)

# What `--help` shows for a value, unless its flag says otherwise.
_METAVARS = {int: "N", float: "X", str: "NAME"}
# Limits of a flag's value: their text and their test. NaN passes none.
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "choices": ("one of {}", lambda value, names: value in names),
    "minimum": ("{} or more", operator.ge),
    "above": ("above {}", operator.gt),
    "maximum": ("{} or less", operator.le),
    "below": ("below {}", operator.lt),
}


def flag(text: str, default: Any = None, metavar: str = "", **limits: Any) -> Any:
    """Returns a dataclass field that `parse_args` turns into a flag; `limits`
    of its values, by the names of `_LIMITS`, are checked by `check_flags`."""
    metadata = {"help": text, "metavar": metavar, "limits": limits}
    return dataclasses.field(default=default, metadata=metadata)


def preset_flag(presets: Mapping[str | None, Published]) -> Any:
    """Returns the field of `--preset`, whose values are the names of published
    settings."""
    names = tuple(name for name in presets if name)
    return flag(
        "published settings for all flags that are not given: " + ", ".join(names),
        choices=names,
    )


def check_flags(config: Any) -> None:
    """Raises a `ValueError` if a field is outside the limits of its `flag`.

    None, which stands for a default that is chosen later, is inside.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            for name, limit in field.metadata.get("limits", {}).items():
                text, fits = _LIMITS[name]
                if one is None or fits(one, limit) and one != math.inf:
                    continue
                raise ValueError(
                    f"--{field.name.replace('_', '-')} must be "
                    f"{text.format(limit)}. Received: {one}"
                )


def refuse(config: Any, *names: str, reason: str, instead: str = "") -> None:
    """Raises a `ValueError` if a config has one of these flags."""
    for name in names:
        value = getattr(config, name)
        if value not in (None, False, "none", getattr(type(config), name)):
            raise ValueError(
                f"--{name.replace('_', '-')} {reason}: leave it out{instead}. "
                f"Received: {value}"
            )


def parse_args(
    config_class: type, description: str, argv: Sequence[str] | None = None
) -> Any:
    """Parses the command line into an instance of a dataclass.

    Every field `like_this: type = flag(text, default)` becomes `--like-this
    VALUE`. Its type is int, float or str, one of these or None, a union with
    str (text, which `__post_init__` parses), `tuple[int, ...]` or another tuple
    (one or more values), or bool (a flag without a value, False by default).
    Other fields are settings without a flag.
    """
    parser = console.Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(config_class)
    # `--help` lists a recipe's own flags before those of its base classes.
    names = [
        name for base in config_class.__mro__ for name in inspect.get_annotations(base)
    ]
    fields = dataclasses.fields(config_class)
    for field in sorted(fields, key=lambda f: names.index(f.name)):
        if "help" not in field.metadata:  # a setting that is no flag
            continue
        kind = _plain(hints[field.name])
        text = field.metadata["help"].replace("%", "%%")
        if field.default not in (None, False, ()):
            shown = field.default
            if isinstance(shown, tuple):
                shown = " ".join(map(str, shown))
            text += f" (default: {shown})"
        options = {"help": text, "dest": field.name, "default": field.default}
        if kind is bool:
            options["action"] = "store_true"
        else:
            if typing.get_origin(kind) is tuple:
                kind, options["nargs"] = typing.get_args(kind)[0], "+"
            options["type"] = kind
            choices = field.metadata["limits"].get("choices", ())
            name = "|".join(map(str, choices)) if len(choices) < 4 else ""
            name = name or _METAVARS[kind]
            options["metavar"] = field.metadata["metavar"] or name
        parser.add_argument("--" + field.name.replace("_", "-"), **options)
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    try:
        return config_class(**values)
    except ValueError as error:
        parser.error(console.with_flags(error, values))


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
    console.escape_unprintable_output()
    config = parse_args(config_class, description, argv)
    names = vars(config)
    console.format_warnings(names)
    try:
        main(config)
    except UserError as error:
        message = console.with_flags(error, names)
        logger.error("error: %s", console.printable_lines(message))
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


def _plain(hint: Any) -> Any:
    """Returns the type of a flag's value, such as int for `int | None`."""
    if isinstance(hint, types.UnionType):
        kinds = set(typing.get_args(hint)) - {types.NoneType}
        return str if str in kinds else kinds.pop()
    return hint


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """Flags of programs that begin with a model or with weights."""

    model: str | None = flag(
        f"one of {', '.join(MODEL_NAMES)}; default: the architecture of "
        "--weights, or without them a small one, compact-vit or compact-hybrid "
        "(docs/finetune.md, From scratch)"
    )
    weights: str | None = flag(
        "weights to begin with: the path or URL of a checkpoint of Google, "
        "timm or another library, the folder of a run, or, with --model, the "
        "name of released weights, such as imagenet21k (see "
        "keras_vit.list_weights()); default: from scratch",
        metavar="FILE|NAME",
    )


@dataclasses.dataclass(frozen=True)
class ProgramFlags:
    """Flags of all programs that train."""

    image_size: int | None = flag(
        "images are resized to N x N; default: that of the model or of the dataset"
    )
    mode: Mode | None = flag(
        f"{console.MODE_HELP}; default: that of --weights or of published "
        "settings, else tf",
        metavar="MODE",
    )
    remat: bool = flag(
        "recompute the encoder blocks in the backward pass instead of storing "
        "their activations, to use less memory",
        False,
    )
    mixed_precision: bool = flag("compute in bfloat16, for TPUs and newer GPUs", False)
    seed: int = flag(
        "random seed of the initial weights, the order of the images and the "
        "augmentation; the split into training and validation images does not "
        "depend on it",
        0,
        minimum=0,
        below=2**32,
    )
    output: str | None = flag(
        "output folder, which all processes must share; default: runs/ "
        "followed by the name of the dataset",
        metavar="DIR",
    )
    overwrite: bool = flag("replace the files of an earlier run in --output", False)

    def __post_init__(self) -> None:
        check_flags(self)
        image_size = parse_image_size(self.image_size, "--image-size")
        object.__setattr__(self, "image_size", image_size)
        object.__setattr__(self, "mode", console.parse_mode(self.mode))

    def input_shape(self, channels: int) -> tuple[int, int, int]:
        """Returns the shape of the images of a model, of a dataset of images of
        this number of channels."""
        image_size: Any = self.image_size  # filled in by now
        size = height_and_width(image_size)
        scaled: Any = scaled_channels(self.mode or "tf", (*size, channels))
        return (*size, scaled)


@dataclasses.dataclass(frozen=True)
class TrainingFlags(ProgramFlags):
    """Flags that all training recipes share.

    A recipe adds flags in a subclass, and may override the default and the
    help text of a shared flag. None stands for a value that the recipe chooses
    once it has loaded the dataset.
    """

    dataset: str = flag(
        "'digits', the handwritten digits of scikit-learn; a name in TFDS, "
        "such as cifar10 or cifar100; a folder of images, "
        "FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of "
        "which 20% is the test set; or a CSV file with the columns image and "
        "label, and optionally split",
        "digits",
        "NAME|FOLDER|CSV",
    )
    patch_size: int | None = flag(
        "height and width of a patch, in pixels; default: that of the model, "
        "or the one that gives about 8 x 8 patches",
        minimum=1,
    )
    batch_size: int = flag("images per step", 64, minimum=1)
    steps: int | None = flag("training steps", minimum=1)
    epochs: int | None = flag(
        "passes over the training images, instead of --steps", minimum=1
    )
    learning_rate: float | None = flag(
        "peak learning rate, after the warm-up; default: chosen by the recipe, "
        "or as published for the batch size",
        above=0,
    )
    accumulate: int = flag(
        "number of micro-batches into which each batch is split, with "
        "gradient accumulation, to use less memory",
        1,
        minimum=1,
    )
    average: float = flag(
        "decay of a moving average of the weights; if above 0, the average is "
        "evaluated and saved instead of the weights; the paper's Table 2 uses "
        "0.9999",
        0.0,
        minimum=0,
        below=1,
    )
    average_from: float | None = flag(
        "instead of --average, average the weights of all steps after this "
        "fraction of the steps, such as 0.75, with equal weights",
        minimum=0,
        below=1,
    )
    keep: str = flag(
        "which weights to save: last, those of the last step, or best, those "
        "of the evaluation with the highest accuracy, or mean average "
        "precision; with --holdout, this is that on the validation split; "
        "without it, that on the test images, which is then an optimistic "
        "estimate",
        "last",
        choices=("last", "best"),
    )
    patience: int | None = flag(
        "stop after this many successive evaluations without a higher "
        "accuracy, or mean average precision; default: no early stopping",
        minimum=1,
    )
    protocol: str = flag(
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "simple randomly shifts whole images, vit_jax is that of the paper's "
        "code",
        "simple",
    )
    augment: str | None = flag(
        "level of RandAugment as in 'How to train your ViT?': "
        f"{', '.join(AUGREG)}; default: none"
    )
    mixup: float | None = flag(
        "mixup with lambda sampled from Beta(P, P), such as 0.2; default: no mixup",
        metavar="P",
        minimum=0,
    )
    cutmix: float | None = flag(
        "cutmix with lambda sampled from Beta(P, P), such as 1; default: no "
        "cutmix; with --mixup too, one of the two is sampled for each batch",
        metavar="P",
        minimum=0,
    )
    erase: float | None = flag(
        "probability of random erasing: a rectangle of the image becomes "
        "noise; 0.25 in DeiT; default: 0",
        minimum=0,
    )
    holdout: float | str | None = flag(
        "fraction of the training images, such as 0.1, to hold out and to "
        "evaluate on instead of the test set; 'paper' for 1% of ImageNet, 2% "
        "of CIFAR and 10% of other datasets; 0 trains on all images, even if "
        "--preset leaves some out, and evaluates on the test set",
        metavar="X|paper",
    )
    test_split: str | None = flag(
        "for a dataset of TFDS, the split to evaluate on; default: test, or "
        "validation if test has no labels"
    )
    no_flip: bool = flag(
        "do not flip images horizontally, for example if they show text or "
        "left and right hands",
        False,
    )
    skip_bad_images: bool = flag(
        "decode every image of a folder before training, and leave out those "
        "that cannot be decoded, with a warning; without it, such an image is "
        "an error",
        False,
    )
    strategy: str = flag(
        "how to use several devices: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none for one device, or auto, "
        "which chooses one of them and prints its choice",
        "auto",
    )
    evaluate_every: int | None = flag(
        "steps between two evaluations; default: depends on the number of steps",
        minimum=1,
    )
    checkpoint_every: int | None = flag(
        "steps between two checkpoints; default: --evaluate-every", minimum=1
    )
    tensorboard: bool = flag(
        "add keras.callbacks.TensorBoard, with --output/tensorboard", False
    )

    # Published settings by `preset`. It and what `build_optimizer` reads are
    # fields of the programs that have a flag or a setting for them.
    presets: ClassVar[Mapping[str | None, Published]] = {None: Published("none", {})}
    preset = layer_decay = momentum_dtype = None
    optimizer, weight_decay, clip = "adamw", 0.0, 1.0

    # The batch size that a published learning rate is for, and to which it is
    # proportional; None if it is for any. It is no flag.
    rate_images: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_holdout("", self.holdout)
        if self.holdout not in (None, "paper"):
            object.__setattr__(self, "holdout", float(self.holdout))
        for one, other in (("steps", "epochs"), ("average", "average_from")):
            if getattr(self, one) and getattr(self, other) is not None:
                one, other = (x.replace("_", "-") for x in (one, other))
                raise ValueError(f"Give --{one} or --{other}, not both.")
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

    def with_sizes(self, spec: dict[str, Any], *image_sizes: Any) -> Self:
        """Returns a config with an image size, by default the first of
        `image_sizes` that is not None, and a patch size that divides it, for
        the `resolve_model_spec` of the model."""
        image_size = next(x for x in (self.image_size, *image_sizes) if x)
        patch_size = spec["patch_size"]
        if spec["stride"]:  # not of a ResNet, which has no patches
            patch_size = patch_size or choose_patch_size(image_size)
            check_patch_size(image_size, patch_size * spec["stride"])
        return dataclasses.replace(self, image_size=image_size, patch_size=patch_size)

    def encoder_arguments(self) -> dict[str, Any]:
        """Returns the arguments of encoders among the flags that are not 0."""
        names = ("remat", "dropout", "drop_path")
        values = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in values.items() if value}

    def scaled_rate(self, rate: float, batch_size: int) -> float:
        """Returns a published learning rate for a batch size."""
        return rate * (batch_size / self.rate_images) if self.rate_images else rate

    @property
    def published(self) -> Published:
        """Published settings, which flags that are None have."""
        return self.presets[self.preset]

    @property
    def uses_averages(self) -> bool:
        """Boolean. Whether averages of the weights are evaluated and saved."""
        return self.average > 0 or self.average_from is not None

    @property
    def one_hot(self) -> bool:
        """Boolean. Whether labels are one-hot, as mixup and cutmix need."""
        return bool(self.mixup or self.cutmix)

    def batches(self) -> dict[str, Any]:
        """Returns the arguments that all methods of `ImageDataset` share."""
        size: Any = self.image_size
        most = getattr(self, "max_tokens", None)
        patch_size: Any = self.patch_size  # filled in by now
        if most:
            size = TokenBudget(most, patch_size)
        return {
            "image_size": size,
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
        images = min(wanted, count)
        if images < self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} divides each batch, and a "
                f"batch has {images} images: give a lower --accumulate."
            )
        return images // self.accumulate * self.accumulate


@dataclasses.dataclass(frozen=True)
class PresetFlags(TrainingFlags):
    """Flags of which those that are None have published values."""

    model: str | None = flag(
        "a Vision Transformer such as ViTB16, with the published settings of "
        "the method; default: compact-vit, of 4 layers of width 64"
    )
    batch_size: int | None = flag(
        "images per step; default: that of --preset or --method, else 64; in "
        "pre-training at most a 20th of the dataset (a 10th with --method dino "
        "or mocov3)",
        minimum=1,
    )
    weight_decay: float | None = flag(
        "weight decay: each step multiplies kernels by 1 minus this times the "
        "learning rate; default: that of --preset or --method, else 0.05 "
        "(with sgd in fine-tuning none)",
        minimum=0,
    )
    warmup_steps: int | None = flag(
        "number of warm-up steps; default: as published, and in pre-training "
        "at most a fifth of the steps",
        minimum=0,
    )
    clip: float | None = flag(
        "maximum global norm of the gradients, 0 for no clipping; default: "
        "that of --preset or --method, else 1",
        minimum=0,
    )
    drop_path: float | None = flag(
        "stochastic depth rate of the last block; it increases linearly from "
        "0 in the first block; default: that of --preset or --method, else 0",
        minimum=0,
        below=1,
    )
    protocol: str | None = flag(
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "default: that of --preset or --method, else simple, which shifts "
        "whole images; in pre-training simple for images below 96 pixels"
    )
    # A setting of presets.py that is no flag.
    warmup_epochs: int | None = None


@dataclasses.dataclass(frozen=True)
class SupervisedFlags(PresetFlags):
    """Flags of training with labels."""

    momentum_dtype: str | None = flag(
        "dtype of the momentum: float32, or bfloat16 to use less memory; "
        "default: that of --preset, else float32",
        choices=("float32", "bfloat16"),
    )
    loss: str | None = flag(
        "cross-entropy: softmax, for images of one class each; or sigmoid for "
        "each class, also for images of several classes, which are evaluated "
        "by the mean average precision; default: that of --preset, else "
        "softmax",
        choices=("softmax", "sigmoid"),
    )
    dropout: float | None = flag(
        "dropout rate after the position embedding and after dense layers, "
        "except query, key and value; default: that of --preset, else 0",
        minimum=0,
        below=1,
    )
    label_smoothing: float | None = flag(
        "label smoothing of --loss softmax: the fraction of the probability "
        "that is distributed evenly over all classes; default: that of "
        "--preset, else 0",
        minimum=0,
        below=1,
    )
    teacher: str | None = flag(
        "weights of a trained model whose outputs the model learns too, as "
        "--weights; default: none",
        metavar="FILE|NAME",
    )
    teacher_model: str | None = flag("the --model of the teacher, for released weights")
    teacher_size: int | str | None = flag(
        "images are resized to this size for the teacher; default: its own",
        metavar="N|HxW",
    )
    teacher_mode: Mode | None = flag(
        "the --mode of the teacher; default: its own, or tf if its file does not tell",
        metavar="MODE",
    )
    distill: str | None = flag(
        "what learns from the teacher: logits, those of the model; token, "
        "those of the distillation token of DeiT; or features, what the head "
        "reads; default: that of --preset, else logits",
        choices=("token", "logits", "features"),
    )
    distill_loss: str | None = flag(
        "soft, the divergence from the teacher's probabilities, or hard, the "
        "cross-entropy with its class; of features cosine, smooth_l1 or mse; "
        "default: hard for token, soft for logits, cosine for features"
    )
    alpha: float = flag(
        "weight of the teacher's loss; that of the labels' is 1 minus this",
        0.5,
        minimum=0,
        maximum=1,
    )
    temperature: float | None = flag(
        "temperature of --distill-loss soft; default: 1", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        teacher_mode = console.parse_mode(self.teacher_mode, "--teacher-mode")
        object.__setattr__(self, "teacher_mode", teacher_mode)
        if self.teacher is None:
            names = [f"teacher_{x}" for x in ("model", "size", "mode")]
            if self.distill != self.published.settings.get("distill"):
                names.append("distill")
            names += ["distill_loss", "alpha", "temperature"]
            refuse(self, *names, reason="is for training with a --teacher")

    @property
    def one_hot(self) -> bool:
        """Boolean. Whether labels are one-hot."""
        smooth = bool(self.label_smoothing)
        return super().one_hot or smooth or self.loss == "sigmoid"

    def encoder_arguments(self) -> dict[str, Any]:
        """Returns the arguments of encoders among the flags."""
        arguments = super().encoder_arguments()
        if self.teacher and self.distill == "token":
            arguments |= {"distillation": True, "pooling": "token"}
        return arguments


# "An Image is Worth 16x16 Words", Table 4
_RATES = (0.001, 0.003, 0.01, 0.03)
_RATES_OF = {"imagenet2012": (0.003, 0.01, 0.03, 0.06)}


def parse_learning_rates(text: str, dataset: str = "") -> tuple[float, ...]:
    """Returns the learning rates of `--sweep`, from low to high: numbers with
    commas between them, or for "paper" those of Table 4 for a dataset. It
    raises a `ValueError` if they are not two or more different rates above 0.
    """
    if text == "paper":
        return _RATES_OF.get(dataset.split(":")[0], _RATES)
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    if len(rates) < 2 or not 0 < rates[0] <= rates[-1] < float("inf"):
        raise ValueError(
            "--sweep must be 'paper', or two or more learning rates above 0 "
            f"such as 0.003,0.01,0.03. Received: {text!r}"
        )
    return tuple(rates)


@dataclasses.dataclass(frozen=True)
class SweepFlags(SupervisedFlags):
    """Flags of training with labels and of a sweep."""

    sweep: str | None = flag(
        "learning rates to compare, such as 0.003,0.01,0.03, or 'paper' for "
        "those of the paper's Table 4; each trains without the images of "
        "--holdout (default here: paper) and is evaluated on them; the best "
        "one then trains on all images",
        metavar="X,Y,...",
    )
    keep: str | None = flag(
        "which weights to save: last, those of the last step, or best, those "
        "of the evaluation with the highest accuracy, or mean average "
        "precision; default: best with a validation split (--holdout, or that "
        "of a CSV file), but last with --preset or --sweep and where test "
        "images are evaluated, whose accuracy would be optimistic if it chose "
        "the weights",
        choices=("last", "best"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sweep is None:
            return
        parse_learning_rates(self.sweep)
        if self.holdout == 0:
            raise ValueError(
                "--sweep measures learning rates on a validation split: give "
                "--holdout a fraction above 0, or leave it out."
            )
        object.__setattr__(self, "holdout", self.holdout or "paper")
        object.__setattr__(self, "keep", self.keep or "last")


@dataclasses.dataclass(frozen=True)
class StudyFlags(TrainingFlags):
    """Flags of studies."""

    shots: int = flag(
        "training images per class in the few-shot evaluation", 5, minimum=1
    )
    weight_decay: float | None = flag("weight decay of AdamW", 0.05, minimum=0)
    output: str | None = flag(
        "output folder; default: runs/ followed by the name of the study and "
        "that of the dataset",
        metavar="DIR",
    )
    warmup: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep != "last" or self.holdout is not None:
            raise ValueError(
                "Models are compared on the test images after their last step: "
                "leave out --keep best and --holdout."
            )

    @property
    def reading(self) -> dict[str, Any]:
        """Dict. The arguments of `ImageDataset.batches` in evaluations."""
        options = {"one_hot": False, "batch_size": self.batch_size}
        return {**self.batches(), **options}


@dataclasses.dataclass(frozen=True)
class LabelFreeFlags(PresetFlags):
    """Flags of pre-training without labels, by a method."""

    picture_every: int | None = flag(
        "steps between two pictures; default: --evaluate-every", minimum=1
    )
    method: str = ""  # each recipe has a flag of its own methods
    encoder: dict | None = None  # arguments of the encoder
    initialize: str | None = None  # name of its initial weights
    not_decayed: tuple | None = None  # names of variables

    @property
    def published(self) -> Published:
        """Published settings of the method."""
        return self.presets[self.method]

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            self,
            *("mixup", "cutmix", "erase"),
            reason="is for training with labels, which are not read here",
        )


def check_is_vit(model: str | None) -> None:
    """Raises a `ValueError` if a model is no Vision Transformer."""
    if resolve_model_spec(model, None)["stride"] != 1:
        raise ValueError(f"{model} is no Vision Transformer: give one, such as ViTB16.")


def resolve_pretraining(
    given: Any,
    data: ImageDataset,
    share: int = 20,
    min_size: int = 0,
    small_patch: int | None = None,
) -> Any:
    """Returns a config whose settings that are None have values.

    Published values that are not given are reduced for small datasets: the
    batch to a `share` of the images, and the warm-up to a fifth of the steps.
    Small images are enlarged to `min_size`, and have patches of `small_patch`.
    """
    config = given.published.fill(given)
    spec = resolve_model_spec(config.model, None, config.patch_size)
    small = data.image_size is not None and data.image_size < 96
    spec["patch_size"] = spec["patch_size"] or (small_patch if small else None)
    enlarged = data.image_size and max(min_size, data.image_size)
    config = config.with_sizes(spec, spec["image_size"], enlarged, 64)
    batch = config.batch_size
    if given.batch_size is None:
        power_of_two = 2 ** max(0, (data.num_train // share).bit_length() - 1)
        batch = max(min(batch, power_of_two), config.accumulate)
    batch = config.whole_batch(batch, data.num_train)
    epoch = data.num_train / batch
    steps = config.steps or max(1, round(config.epochs * epoch))
    warmup = given.warmup_steps
    if warmup is None:
        published = config.warmup_steps or round(config.warmup_epochs * epoch)
        warmup = min(published, steps // 5)
    protocol, mode = config.protocol, config.mode
    if given.protocol is None and small:
        protocol = "simple"
    if given.mode is None and data.channels != 3:
        mode = "tf"
    every = given.evaluate_every or max(1, min(steps // 10, round(10 * epoch)))
    return dataclasses.replace(
        config,
        steps=steps,
        epochs=None,  # converted to steps
        evaluate_every=every,
        batch_size=batch,
        learning_rate=given.learning_rate
        or config.scaled_rate(config.learning_rate, batch),
        warmup_steps=warmup,
        mode=mode,
        protocol=protocol,
    )
