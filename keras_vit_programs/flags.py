"""Settings of programs: groups of flags, and tables of their defaults.

The settings of a program are a dataclass `Config`, whose bases are the groups
here that it uses and whose fields are its own flags. `Config.defaults` is the
table of the defaults that depend on something, which `fill` applies. This module
does not import Keras, which takes seconds, so that `--help` does not wait for it.
"""

import argparse
import copy
import dataclasses
import inspect
import math
import operator
import pathlib
import re
import signal
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from keras_vit_programs import console
from keras_vit_programs.console import UserError as UserError
from keras_vit_programs.console import require as require
from keras_vit_programs.console import user_errors as user_errors
from keras_vit_programs.logs import logger, show
from keras_vit_programs.presets import COMPACT_NAMES, Published

# Names that the library knows, which a test compares with it.
MODEL_NAMES = (
    *COMPACT_NAMES,
    *("ViTTi16", "ViTS16", "ViTS32", "ViTB8", "ViTB16", "ViTB32", "ViTL16"),
    *("ViTL32", "ViTH14", "ViTS14", "ViTB14", "ViTL14", "ViTg14", "ViTG14"),
    *("R_ViTTi16", "R26ViTS32", "R26ViTB32", "R50ViTB16", "R50ViTL32"),
    *("BiT_R50x1", "BiT_R50x3", "BiT_R101x1", "BiT_R101x3"),
    *("BiT_R152x2", "BiT_R152x4"),
)
PROTOCOLS = (
    *("simple", "whole", "vit_jax", "big_vision", "pretrain", "few-shot"),
    *("bit-hyperrule", "mae", "mae-finetune", "simmim", "timm-0.9"),
)
AUGREG = (
    *("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2"),
    *("light2-scaled", "medium1-scaled", "medium2-scaled"),
    *("strong1-scaled", "strong2-scaled"),
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


# The flags in --help of a program of more than `_SHORT`; --help-all has the others.
_SHORT = 30
_BASIC = (
    *("dataset", "model", "weights", "train", "steps", "learning_rate"),
    *("batch_size", "image_size", "output", "overwrite", "seed"),
)


class Rule(NamedTuple):
    """A row of the table of a program's defaults.

    A name that is not a setting is a value that later rows read. Without a function,
    the setting stays None, which `why` explains.
    """

    name: str
    why: str  # one line for --help and --show-settings
    value: Callable[[Any, Any], Any] | None = None  # of the settings and the data
    # What it replaces, besides None: a "published" value, or also a "given" one.
    over: str = ""


def flag(text: str, default: Any = None, metavar: str = "", **limits: Any) -> Any:
    """Returns a dataclass field that `parse_args` turns into a flag; `limits`
    of its values, by the names of `_LIMITS`, are checked by `Settings`."""
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


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_args(
    config_class: "type[S]", description: str, argv: Sequence[str] | None = None
) -> "S":
    """Parses the command line into an instance of a dataclass.

    Every field `like_this: type = flag(text, default)` becomes `--like-this
    VALUE`. Its type is int, float or str, one of these or None, a union with
    str (text, which `__post_init__` parses), `tuple[int, ...]` or another tuple
    (one or more values), or bool (a flag without a value, False by default).
    Other fields are settings without a flag.
    """
    program, usage = sys.argv[0].partition(" [")[0], None
    if program.startswith("keras-vit "):  # which has the recipes, but not as files
        description = re.sub(r"python recipes/\w+\.py", program, description)
        usage = f"{sys.argv[0]} [FLAGS]"
    parser = console.Parser(
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    others = {
        _flag_of(field.name): "is for other programs, and has no use here"
        for group in vars(sys.modules[__name__]).values()
        if dataclasses.is_dataclass(group)
        for field in dataclasses.fields(group)
        if "help" in field.metadata
    }
    parser.others = {**others, **config_class.others}
    hints = typing.get_type_hints(config_class)
    # A recipe's own flags are before those of its base classes, which are groups.
    groups: dict[str, type] = {}
    for base in config_class.__mro__:
        groups = {**dict.fromkeys(inspect.get_annotations(base), base), **groups}
    order = [
        name for base in config_class.__mro__ for name in inspect.get_annotations(base)
    ]
    # A field that is not in `help` is a setting that is no flag.
    fields = [x for x in dataclasses.fields(config_class) if "help" in x.metadata]
    is_long = len(fields) > _SHORT
    is_whole = "--help-all" in (sys.argv[1:] if argv is None else argv)
    parser.flags = [_flag_of(field.name) for field in fields]
    text = f"show all {len(fields)} flags, in groups, and exit"
    text = text if is_long else argparse.SUPPRESS
    parser.add_argument("--help-all", action="help", help=text)
    titles: dict[str, Any] = {}
    for field in sorted(fields, key=lambda f: order.index(f.name)):
        kind = _plain(hints[field.name])
        text = _help(config_class, field).replace("%", "%%")
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
        target: Any = parser
        if is_whole or not is_long:
            group = groups[field.name]
            text = "this program" if group is config_class else group.__doc__
            title = str(text).partition(".")[0]
            if title not in titles:
                titles[title] = parser.add_argument_group(title)
            target = titles[title]
        elif is_long and field.name not in _BASIC:
            options["help"] = argparse.SUPPRESS
        target.add_argument(_flag_of(field.name), **options)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    try:
        return config_class(**values)
    except ValueError as error:
        parser.error(console.with_flags(error, values))


def _help(config_class: "type[Settings]", field: "dataclasses.Field[Any]") -> str:
    """Returns what `--help` says about a flag, with its default: a value, or those
    of presets and of the program's table, or what the text of the flag says."""
    text, _, said = field.metadata["help"].partition("; default: ")
    if field.default not in (None, False, ()):
        shown = field.default
        shown = " ".join(map(str, shown)) if isinstance(shown, tuple) else shown
        return f"{text} (default: {shown})"
    presets = config_class.presets
    rules = [rule for rule in config_class.defaults if rule.name == field.name]
    found = [rule.why for rule in rules if rule.why and not rule.over]
    changes = [rule.why for rule in rules if rule.over]
    if said and not found:
        return "; ".join((field.metadata["help"], *changes))
    if any(name and published.has(field.name) for name, published in presets.items()):
        has_flag = any(x.name == "preset" for x in dataclasses.fields(config_class))
        found.insert(0, "that of --preset" if has_flag else "as published")
    if None in presets and presets[None].has(field.name):
        found.append(str(presets[None].settings[field.name]))
    default = ["default: " + ", else ".join(found)] if found else []
    return "; ".join((text, *default, *changes))


def run(
    main: "Callable[[S], Any]",
    config_class: "type[S]",
    description: str,
    argv: Sequence[str] | None = None,
) -> None:
    """Runs a recipe from the command line: `main(config)`.

    The exit status is 0 for success, 1 if training diverged, 2 for a user
    error, 130 after Ctrl-C and 143 after SIGTERM. The last two are 128 plus the
    number of the signal, from which schedulers such as SLURM and Kubernetes
    infer that the run should be restarted.
    """
    console.escape_unprintable_output()
    config = parse_args(config_class, description, argv)
    names = {f.name for f in dataclasses.fields(config) if "help" in f.metadata}
    console.format_warnings(names)
    # After `--help`, which does not wait for Keras.
    from keras_vit.training import Diverged, Preempted
    from keras_vit_programs.setup import cache_compilations

    show()
    if not getattr(config, "no_compile_cache", True):
        cache_compilations()
    try:
        if config.show_settings and config.preset and getattr(config, "model", ""):
            with user_errors():  # before a dataset or weights are downloaded
                values = config.published.values(vars(config))
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            logger.info(console.wrap_lines(f"{config.preset}: {shown}\n"))
        main(config)
    except UserError as error:
        message = console.with_flags(error, names)
        logger.error("error: %s", console.printable_lines(message))
        sys.exit(2)
    except Preempted as preempted:
        logger.info("\n%s", _resuming(config, str(preempted)))
        sys.exit(128 + preempted.number)
    except Diverged as error:
        logger.error("\nerror: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        hint = ""
        if isinstance(config, Training):
            hint = (
                "; the same command resumes from the last checkpoint, or "
                "starts again if there is none"
            )
        logger.error("\nerror: interrupted%s", _resuming(config, hint))
        sys.exit(128 + signal.SIGINT)


def _resuming(config: "Settings", text: str) -> str:
    """Returns a message on how to resume a run, which --overwrite begins again."""
    if not getattr(config, "overwrite", False):
        return text
    return text.replace("same command", "same command without --overwrite")


def _plain(hint: Any) -> Any:
    """Returns the type of a flag's value, such as int for `int | None`."""
    if isinstance(hint, types.UnionType):
        kinds = set(typing.get_args(hint)) - {types.NoneType}
        return str if str in kinds else kinds.pop()
    return hint


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every program. Each group of flags is a subclass."""

    show_settings: bool = flag(
        "print each setting, and the flag, preset or rule that set it, and exit; a "
        "program that trains downloads its dataset and weights for this",
        False,
    )

    # Why the program has no such flag, which others have.
    others: ClassVar[Mapping[str, str]] = {}
    # The table of the program's defaults, in the order in which they are set.
    defaults: ClassVar[Sequence[Rule]] = ()
    # Published settings by the value of the field `preset`.
    presets: ClassVar[Mapping[str | None, Published]] = {}
    preset: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Raises a `ValueError` if a value is outside the limits of its `flag`;
        None, which stands for a default that is chosen later, is inside."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                for name, limit in field.metadata.get("limits", {}).items():
                    text, fits = _LIMITS[name]
                    if one is None or fits(one, limit) and one != math.inf:
                        continue
                    raise ValueError(
                        f"{_flag_of(field.name)} must be "
                        f"{text.format(limit)}. Received: {one}"
                    )

    @property
    def published(self) -> Published:
        """Published settings, which flags that are None have."""
        return self.presets.get(self.preset, Published("", {}))


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def filled(value: T | None) -> T:
    """Returns the value of a flag after `fill`, which is None before."""
    return typing.cast(T, value)


def _place(function: Callable[..., Any] | None) -> list[str]:
    """Returns the file and the line of the function of a default."""
    if function is None:
        return []
    code = inspect.unwrap(function).__code__
    place = "/".join(pathlib.Path(code.co_filename).parts[-2:])
    return [f"({place}:{code.co_firstlineno})"]


def fill(given: S, data: Any = None, of_weights: tuple[str, ...] = ()) -> S:
    """Returns the settings of a program with its defaults: flags that are given, or
    that were read `of_weights`, stay, others are as published, or otherwise as in the
    table of its defaults, each row of which reads the settings so far and the data.

    With `--show-settings`, they are printed, and the program ends.
    """
    settings = copy.copy(given)
    values = vars(settings)  # which rows see, although the fields are frozen
    values["given"] = given
    fields = {f.name: f for f in dataclasses.fields(given)}
    rules = {
        name: "default" if values[name] == field.default else "given"
        for name, field in fields.items()
        if values[name] is not None
    }
    rules |= dict.fromkeys(of_weights, "that of --weights")
    published = given.published.values(values)
    images = given.published.values(values | {"batch_size": None}).get("batch_size")
    name = f"published: {given.preset}" if given.preset else given.published.source
    rules |= dict.fromkeys(published, name)
    values.update(published)
    for rule in given.defaults:
        old = values.get(rule.name)
        is_free = old is None or rule.over == "given"
        is_free |= rule.over == "published" and rule.name in published
        if rule.name in fields and not is_free:
            continue
        if rule.value:
            values[rule.name] = rule.value(settings, data)
        # The reason of a setting that stays off is not that of its value.
        is_off = rule.value and old is None and values[rule.name] is None
        if not is_off and (old is None or values[rule.name] != old):
            rules[rule.name] = " ".join([rule.why, *_place(rule.value)])
        if rule.name == "steps" and values.get("epochs"):  # of which it is a product
            rules["steps"] = f"{values['epochs']} epochs, {rules['epochs']}"
    filled = dataclasses.replace(given, **{name: values[name] for name in fields})
    is_published = rules.get("learning_rate") == name and not values.get("sweep")
    if given.preset and is_published and images not in (None, values["batch_size"]):
        scaled = values["learning_rate"] * values["batch_size"] / images
        memory = ""
        if vars(given).get("batch_size"):
            memory = ", or, to use less memory, --accumulate without --batch-size"
        warnings.warn(
            f"The learning rate of --preset {given.preset} is for batches of {images} "
            f"images, and these have {values['batch_size']} images: give "
            f"--learning-rate, in proportion {scaled:g}{memory}.",
            stacklevel=2,
        )
    if given.show_settings:
        if data is not None:
            logger.info(
                f"{data.name}: {data.num_train:,} training and "
                f"{data.num_evaluation:,} {data.evaluation_split} images"
            )
        if values.get("model") is None and values.get("weights"):
            rules["model"] = "that of --weights"
        unset = []
        for name in sorted(fields):
            text = fields[name].metadata.get("help")
            said = text and text.partition("; default: ")[2]
            why, value = rules.get(name, said), values[name]
            if value is None and text and not why:
                unset.append(name)
            elif text and name != "show_settings":
                shown = f"{value:.6g}" if isinstance(value, float) else str(value)
                shown = "-" if value is None else shown
                logger.info(f"{name:20} {shown:20} {why}".rstrip())
        logger.info(console.wrap_lines(f"not set   {', '.join(unset)}"))
        sys.exit(0)
    return filled


@dataclasses.dataclass(frozen=True)
class Output(Settings):
    """The output folder."""

    output: str | None = flag(
        "output folder, which all processes must share; default: a folder in runs/, "
        "named after the study or evaluation, if any, and the dataset",
        metavar="DIR",
    )
    overwrite: bool = flag(
        "delete the files of an earlier run in --output, and begin again", False
    )
    no_compile_cache: bool = flag(
        "do not store JAX's compiled programs in the folder of downloads for the "
        "next run",
        False,
    )


@dataclasses.dataclass(frozen=True)
class Model(Settings):
    """A model."""

    model: str | None = flag(f"architecture, one of {', '.join(MODEL_NAMES)}")


@dataclasses.dataclass(frozen=True)
class Weights(Model):
    """A model and its initial weights."""

    weights: str | None = flag(
        "initial weights: the path or URL of a checkpoint from Google, timm or "
        "another library, the folder of a run, or, with --model, the name of released "
        "weights, such as imagenet21k (see keras_vit.list_weights()); default: from "
        "scratch",
        metavar="FILE|NAME",
    )


@dataclasses.dataclass(frozen=True)
class Pixels(Settings):
    """Image size and pixel values."""

    image_size: int | str | None = flag(
        "images are resized to N x N, or to height x width, such as 64x48",
        metavar="N|HxW",
    )
    mode: console.Mode | None = flag(
        console.MODE_HELP,
        metavar="MODE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_pixels(self)

    def input_shape(self, channels: int) -> tuple[int, int, int]:
        """Returns the shape of the images of a model, of a dataset of images of
        this number of channels."""
        from keras_vit.utils.scaling import scaled_channels

        size: Any = filled(self.image_size)  # and parsed
        size = size if isinstance(size, tuple) else (size, size)
        scaled: Any = scaled_channels(self.mode or "tf", (*size, channels))
        return (*size, scaled)


def parse_pixels(config: "Pixels | Trained") -> None:
    """Parses the fields `image_size` and `mode`, which may be text."""
    from keras_vit.data.protocols import parse_image_size

    size = parse_image_size(config.image_size, "--image-size")
    object.__setattr__(config, "image_size", size)
    object.__setattr__(config, "mode", console.parse_mode(config.mode))


@dataclasses.dataclass(frozen=True)
class Compute(Settings):
    """How a model is computed."""

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


@dataclasses.dataclass(frozen=True)
class Steps(Settings):
    """Optimization steps."""

    batch_size: int | None = flag("images per step", minimum=1)
    steps: int | None = flag("training steps", minimum=1)
    learning_rate: float | None = flag("peak learning rate, after the warm-up", above=0)


@dataclasses.dataclass(frozen=True)
class Epochs(Steps):
    """Steps that may be given as epochs."""

    epochs: int | None = flag(
        "passes over the training images, instead of --steps", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        give_one(self, "steps", "epochs")


def give_one(config: Settings, one: str, other: str) -> None:
    """Raises a `ValueError` if a config has both of two flags."""
    if getattr(config, one) and getattr(config, other) is not None:
        raise ValueError(f"Give {_flag_of(one)} or {_flag_of(other)}, not both.")


@dataclasses.dataclass(frozen=True)
class Training(Output, Pixels, Compute, Steps):
    """Settings of all trainings that write checkpoints."""

    weight_decay: float | None = flag(
        "weight decay: each step multiplies kernels by 1 minus this times the "
        "learning rate",
        minimum=0,
    )
    no_flip: bool = flag(
        "do not flip images horizontally, for example if they show text or "
        "left and right hands",
        False,
    )
    patience: int | None = flag(
        "stop after this many successive evaluations without a higher "
        "accuracy, or mean average precision; default: no early stopping",
        minimum=1,
    )
    strategy: str = flag(
        "how to use several devices: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none for one device, or auto, "
        "which chooses one of them and prints its choice",
        "auto",
    )
    evaluate_every: int | None = flag("steps between two evaluations", minimum=1)
    checkpoint_every: int | None = flag(
        "steps between two checkpoints; default: --evaluate-every", minimum=1
    )
    tensorboard: bool = flag(
        "add keras.callbacks.TensorBoard, with --output/tensorboard", False
    )

    # What `setup` reads, of programs without a flag for it. With a type, they would be
    # fields, and settings of every program.
    keep, accumulate, average = "last", 1, 0.0
    average_from = holdout = layer_decay = None
    augment = mixup = cutmix = erase = momentum_dtype = protocol = None
    label_smoothing = loss = None
    optimizer, clip = "adamw", 1.0

    @property
    def one_hot(self) -> bool:
        """Boolean. Whether labels are one-hot, as mixtures of them are."""
        is_mixed = self.mixup or self.cutmix or self.label_smoothing
        return bool(is_mixed) or self.loss == "sigmoid"

    @property
    def uses_averages(self) -> bool:
        """Boolean. Whether averages of the weights are evaluated and saved."""
        return self.average > 0 or self.average_from is not None

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
            # Grayscale images are mostly digits and letters, which a flip
            # changes.
            "flip": channels != 1 and not self.no_flip,
        }


@dataclasses.dataclass(frozen=True)
class Patches(Settings):
    """Patches of an encoder."""

    patch_size: int | None = flag("height and width of a patch, in pixels", minimum=1)


@dataclasses.dataclass(frozen=True)
class Accumulate(Steps):
    """Gradient accumulation."""

    accumulate: int = flag(
        "number of micro-batches into which each batch is split, with "
        "gradient accumulation, to use less memory",
        1,
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # None is a batch size that is chosen later.
        if self.batch_size and self.batch_size % self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} must divide --batch-size "
                f"{self.batch_size}."
            )


@dataclasses.dataclass(frozen=True)
class Average(Settings):
    """Averages of the weights."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        give_one(self, "average", "average_from")


@dataclasses.dataclass(frozen=True)
class Keep(Settings):
    """Which weights are saved."""

    keep: str | None = flag(
        "which weights to save: last (those of the last step) or best (those of the "
        "evaluation with the best score, which is optimistic if test images are "
        "evaluated)",
        choices=("last", "best"),
    )


@dataclasses.dataclass(frozen=True)
class Warmup(Settings):
    """A warm-up of the learning rate."""

    warmup: float | None = flag(
        "fraction of the steps in which the learning rate is warmed up",
        minimum=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True)
class Dataset(Training):
    """A dataset of images, and how they are read."""

    dataset: str = flag(
        "'digits', the handwritten digits of scikit-learn; a name in TFDS, "
        "such as cifar10 or cifar100; a folder of images, "
        "FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of "
        "which 20% is the test set; or a CSV file with the columns image and "
        "label, and optionally split",
        "digits",
        "NAME|FOLDER|CSV",
    )
    test_split: str | None = flag(
        "for a dataset of TFDS, the split to evaluate on; default: test, or "
        "validation if test has no labels"
    )
    skip_bad_images: bool = flag(
        "decode every image of a folder before training, and leave out those "
        "that cannot be decoded, with a warning; without it, such an image is "
        "an error",
        False,
    )
    protocol: str | None = flag(
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "simple randomly shifts whole images, vit_jax is the protocol of the "
        "paper's code, and timm-0.95 that of timm with crop_pct 0.95"
    )


@dataclasses.dataclass(frozen=True)
class Holdout(Settings):
    """A validation split."""

    holdout: float | str | None = flag(
        "fraction of the training images, such as 0.1, to hold out and to "
        "evaluate on instead of the test set; 'paper' for 1% of ImageNet, 2% "
        "of CIFAR and 10% of other datasets; 0 trains on all images, even "
        "those that a publication leaves out, and evaluates on the test set",
        metavar="X|paper",
    )

    def __post_init__(self) -> None:
        from keras_vit.data.splits import parse_holdout

        super().__post_init__()
        parse_holdout("", self.holdout)
        if self.holdout not in (None, "paper"):
            object.__setattr__(self, "holdout", float(self.holdout))


@dataclasses.dataclass(frozen=True)
class RandAugment(Settings):
    """Random operations on images."""

    augment: str | None = flag(
        "level of RandAugment as in 'How to train your ViT?': " + ", ".join(AUGREG)
    )


@dataclasses.dataclass(frozen=True)
class Mixing(Settings):
    """Mixtures of labeled images."""

    mixup: float | None = flag(
        "mixup with lambda sampled from Beta(P, P), such as 0.2",
        metavar="P",
        minimum=0,
    )
    cutmix: float | None = flag(
        "cutmix with lambda sampled from Beta(P, P), such as 1; with --mixup "
        "too, one of the two is sampled for each batch",
        metavar="P",
        minimum=0,
    )
    erase: float | None = flag(
        "probability of random erasing: a rectangle of the image becomes "
        "noise; 0.25 in DeiT",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class Regularization(Compute):
    """Settings of published trainings of encoders, besides the common flags."""

    warmup_steps: int | None = flag("number of warm-up steps", minimum=0)
    clip: float | None = flag(
        "maximum norm of the gradients (the global norm, or in DINO and MoCo v3 the "
        "norm of each variable); 0 for no clipping",
        minimum=0,
    )
    drop_path: float | None = flag(
        "stochastic depth rate of the last block; it increases linearly from "
        "0 in the first block",
        minimum=0,
        below=1,
    )

    # Settings of presets.py that are no flags. A published learning rate is for
    # batches of `rate_images`, and proportional to their size, or for any.
    warmup_epochs: int | None = None
    rate_images: int | None = None

    def encoder_arguments(self) -> dict[str, Any]:
        """Returns the arguments of encoders among the flags that are not 0."""
        values = {"remat": self.remat, "drop_path": self.drop_path}
        return {name: value for name, value in values.items() if value}


@dataclasses.dataclass(frozen=True)
class Labels(Mixing, Regularization):
    """Training with labels."""

    momentum_dtype: str | None = flag(
        "dtype of the momentum: float32, or bfloat16 to use less memory",
        choices=("float32", "bfloat16"),
    )
    loss: str | None = flag(
        "cross-entropy: softmax, for images with one class each; or a sigmoid for "
        "each class, also for images with several classes, which are evaluated by the "
        "mean average precision",
        choices=("softmax", "sigmoid"),
    )
    dropout: float | None = flag(
        "dropout rate after the position embedding and after dense layers, "
        "except query, key and value",
        minimum=0,
        below=1,
    )
    label_smoothing: float | None = flag(
        "label smoothing of --loss softmax: the fraction of the probability "
        "that is distributed evenly over all classes",
        minimum=0,
        below=1,
    )

    def encoder_arguments(self) -> dict[str, Any]:
        """Returns the arguments of encoders among the flags that are not 0."""
        dropout = {"dropout": self.dropout} if self.dropout else {}
        return super().encoder_arguments() | dropout


@dataclasses.dataclass(frozen=True)
class Teacher(Pixels, Labels):
    """Training with labels and with the outputs of another model."""

    teacher: str | None = flag(
        "weights of a trained model from whose outputs the model also learns: a path "
        "or URL, the folder of a run, or, with --teacher-model, the name of released "
        "weights; default: none",
        metavar="FILE|NAME",
    )
    teacher_model: str | None = flag("the --model of the teacher, for released weights")
    teacher_size: int | str | None = flag(
        "size to which images are resized for the teacher; default: its own",
        metavar="N|HxW",
    )
    teacher_mode: console.Mode | None = flag(
        "the --mode of the teacher; default: its own, or tf if its file does not "
        "specify it",
        metavar="MODE",
    )
    distill: str | None = flag(
        "what learns from the teacher: logits (those of the model), token (the logits "
        "of DeiT's distillation token) or features (the inputs of the head); default: "
        "that of --preset, else logits",
        choices=("token", "logits", "features"),
    )
    distill_loss: str | None = flag(
        "soft (the divergence from the teacher's probabilities) or hard (the "
        "cross-entropy with its class); for features, cosine, smooth_l1 or mse; "
        "default: hard for token, soft for logits, cosine for features"
    )
    alpha: float = flag(
        "weight of the teacher's loss; the weight of the labels' loss is 1 minus this",
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
        if self.teacher is not None:
            return
        own = {
            "alpha": Teacher.alpha,
            "distill": self.published.settings.get("distill"),
        }
        names = ("distill", "distill_loss", "alpha", "temperature")
        for name in ("teacher_model", "teacher_size", "teacher_mode", *names):
            if getattr(self, name) not in (None, own.get(name)):
                raise ValueError(
                    f"{_flag_of(name)} is for training with a --teacher: leave "
                    f"it out. Received: {getattr(self, name)}"
                )

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
class Sweep(Holdout, Dataset):
    """A sweep of learning rates."""

    sweep: str | None = flag(
        "learning rates to compare, such as 0.003,0.01,0.03, or 'paper' for "
        "those of the paper's Table 4; each trains without the images of "
        "--holdout (default here: paper) and is evaluated on them; the best "
        "one then trains on all images",
        metavar="X,Y,...",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sweep is not None:
            parse_learning_rates(self.sweep)
        if self.sweep is not None and self.holdout == 0:
            raise ValueError(
                "--sweep measures learning rates on a validation split: give "
                "--holdout a fraction above 0, or leave it out."
            )


@dataclasses.dataclass(frozen=True)
class Study(RandAugment, Mixing, Accumulate, Average, Dataset):
    """Studies of several trainings, each of which is evaluated on the test images after
    its last step."""

    shots: int = flag(
        "training images per class in the few-shot evaluation", 5, minimum=1
    )

    @property
    def reading(self) -> dict[str, Any]:
        """Dict. The arguments of `ImageDataset.batches` in evaluations."""
        options = {"one_hot": False, "batch_size": self.batch_size}
        return {**self.batches(), **options}


@dataclasses.dataclass(frozen=True)
class LabelFree(Model, Patches, Epochs, Keep, Holdout, Regularization, Dataset):
    """Pre-training without labels, by a method."""

    picture_every: int | None = flag(
        "steps between two pictures; default: --evaluate-every", minimum=1
    )

    # Settings of presets.py that are no flags.
    encoder: dict | None = None  # arguments of the encoder
    initialize: str | None = None  # name of its initial weights
    not_decayed: tuple | None = None  # names of variables

    @property
    def preset(self) -> str:
        """String. The method, which each program has a flag for."""
        return vars(self)["method"]


@dataclasses.dataclass(frozen=True)
class Trained(Output):
    """A trained model, and how images are read for it."""

    weights: str | None = flag(
        "the model: the output folder of a training recipe, its model.keras, "
        "the path or URL of a checkpoint, or, with --model, the name of "
        "released weights, such as imagenet21k",
        metavar="FILE|NAME",
    )
    model: str | None = flag(
        "architecture, such as ViTB16; required if --weights is a name"
    )
    image_size: int | str | None = flag(
        "images are resized to N x N, or to height x width, such as 64x48; "
        "default: as in training",
        metavar="N|HxW",
    )
    max_tokens: int | None = flag(
        "resize images to at most N patches and keep their aspect ratio, instead of "
        "--image-size; default: as in training, unless --image-size is given",
        minimum=1,
    )
    patch_size: int | None = flag(
        "height and width of a patch, in pixels, to which the kernel of the "
        "patch embedding is resized (FlexiViT); default: that of the model",
        minimum=1,
    )
    mode: console.Mode | None = flag(
        f"{console.MODE_HELP}; default: as in training", metavar="MODE"
    )
    protocol: str | None = flag(f"how images are resized: {', '.join(PROTOCOLS)}")
    batch_size: int | None = flag("images per batch", minimum=1)
    skip_bad_images: bool = flag(
        "decode every image first, and leave out those that cannot be decoded, with "
        "a warning; default for the dataset of a run: as in its training",
        False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_pixels(self)
        if self.weights is None:
            raise ValueError("Give --weights: the model to use, such as runs/digits.")


@dataclasses.dataclass(frozen=True)
class Evaluation(Trained):
    """A trained model, and a dataset to evaluate it on."""

    dataset: str | None = flag(
        "'digits', a name in TFDS, or a folder of images; default: the dataset "
        "of the run of --weights",
        metavar="NAME|FOLDER",
    )
    test_split: str | None = flag(
        "for a dataset of TFDS, the split to evaluate on; default: that of the "
        "run if --dataset is not given, else test, or validation if test has "
        "no labels"
    )
