"""Defaults that programs share: rows of their tables."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_vit_programs import sizes
from keras_vit_programs.flags import Rule

if TYPE_CHECKING:
    from keras_vit.data import ImageDataset
    from keras_vit.utils.scaling import Mode


def spec_of(settings: Any, data: "ImageDataset") -> dict[str, Any]:
    """Returns the sizes of the model of a program's settings."""
    weights = getattr(settings, "weights", None)
    return sizes.resolve_model_spec(settings.model, weights, settings.patch_size)


def first(*values: Any) -> Any:
    """Returns the first of some values that is not None."""
    return next(value for value in values if value is not None)


def patch_size(settings: Any, data: "ImageDataset") -> int | None:
    """Returns the patch size of the model, or one that suits the image size,
    which it must divide."""
    spec, size = settings.spec, settings.image_size
    if not spec["stride"]:  # a ResNet has no patches
        return spec["patch_size"]
    patch = spec["patch_size"] or sizes.choose_patch_size(size)
    sizes.check_patch_size(size, patch * spec["stride"])
    return patch


SPEC = Rule("spec", "", spec_of)
PATCH_SIZE = Rule(
    "patch_size",
    "that of the model, or a size that gives about 8 x 8 patches",
    patch_size,
    over="given",
)


def mode(settings: Any, data: "ImageDataset") -> "Mode":
    """Returns the scaling of pixels of the weights; a warning says if it is unknown."""
    if settings.spec["mode"] is None:
        from keras_vit.evaluation.runs import warn_of_scaling

        warn_of_scaling(settings.weights)
    return settings.spec["mode"] or "tf"


MODE = Rule("mode", "that of --weights, else tf", mode)


def holdout(settings: Any, data: "ImageDataset | None" = None) -> float | str | None:
    """Returns the fraction of the training images to hold out, which is asked for
    before there is a dataset."""
    is_swept = settings.holdout is None and getattr(settings, "sweep", None)
    return "paper" if is_swept else settings.holdout


HOLDOUT = Rule("holdout", "paper with --sweep", holdout)


def whole_batch(settings: Any, data: "ImageDataset") -> int:
    """Returns the largest multiple of `--accumulate` up to the batch size and
    the number of training images; raises a `ValueError` if there is none."""
    images = min(settings.batch_size, data.num_train)
    if images < settings.accumulate:
        raise ValueError(
            f"--accumulate {settings.accumulate} divides each batch, and a "
            f"batch has {images} images: give a lower --accumulate."
        )
    return images // settings.accumulate * settings.accumulate


def batch_size(size: int) -> tuple[Rule, Rule]:
    """Returns the rows of a batch size: a default, and whole batches."""
    return (
        Rule("batch_size", str(size), lambda settings, data: size),
        Rule("batch_size", "at most the number of images", whole_batch, over="given"),
    )


def scaled_rate(settings: Any, rate: float) -> float:
    """Returns a published learning rate for the batch size."""
    images = settings.rate_images
    return rate * (settings.batch_size / images) if images else rate


PUBLISHED_RATE = Rule(
    "learning_rate",
    "a published rate is proportional to the batch size",
    lambda settings, data: scaled_rate(settings, settings.learning_rate),
    over="published",
)
NO_EPOCHS = Rule("epochs", "converted to --steps", lambda s, data: None, over="given")


def constant(name: str, value: Any) -> Rule:
    """Returns the row of a default that depends on nothing but the program."""
    return Rule(name, str(value), lambda settings, data: value)


def pretraining(
    share: int = 20, min_size: int = 0, small_patch: int | None = None
) -> tuple[Rule, ...]:
    """Returns rows of pre-training, whose published settings are reduced for
    small datasets: the batch to a `share` of the images, and the warm-up to a
    fifth of the steps. Small images are enlarged to `min_size`, and have
    patches of `small_patch`."""

    def is_small(data: "ImageDataset") -> bool:
        return data.image_size is not None and data.image_size < 96

    def patches(s: Any, data: "ImageDataset") -> int | None:
        own = small_patch if is_small(data) else None
        s.spec["patch_size"] = s.spec["patch_size"] or own
        return patch_size(s, data)

    def few_images(s: Any, data: "ImageDataset") -> int:
        power_of_two = 2 ** max(0, (data.num_train // share).bit_length() - 1)
        return max(min(s.batch_size, power_of_two), s.accumulate)

    def epochs(s: Any, data: "ImageDataset") -> int:
        return max(1, round(s.epochs * data.num_train / s.batch_size))

    def warmup(s: Any, data: "ImageDataset") -> int:
        epoch = data.num_train / s.batch_size
        return min(s.warmup_steps or round(s.warmup_epochs * epoch), s.steps // 5)

    return (
        SPEC,
        Rule(
            "image_size",
            "that of the model, else of the dataset",
            lambda s, data: first(
                s.spec["image_size"],
                data.image_size and max(min_size, data.image_size),
                64,
            ),
        ),
        PATCH_SIZE._replace(value=patches),
        Rule(
            "batch_size",
            f"at most a {share}th of the images",
            few_images,
            over="published",
        ),
        Rule("batch_size", "rounded to whole micro-batches", whole_batch, over="given"),
        Rule("steps", "the published epochs", epochs),
        Rule(
            "warmup_steps",
            "at most a fifth of the steps",
            warmup,
            over="published",
        ),
        Rule(
            "protocol",
            "simple for images below 96 pixels",
            lambda s, data: "simple" if is_small(data) else s.protocol,
            over="published",
        ),
        Rule(
            "mode",
            "tf for images without colors",
            lambda s, data: s.mode if data.channels == 3 else "tf",
            over="published",
        ),
        NO_EPOCHS,
        PUBLISHED_RATE,
    )


def label_free(**options: Any) -> tuple[Rule, ...]:
    """Returns rows of pre-training without labels; see `pretraining`."""

    def every(s: Any, data: "ImageDataset") -> int:
        epoch = data.num_train / s.batch_size
        return max(1, min(s.steps // 10, round(10 * epoch)))

    return (
        Rule("model", "compact-vit (4 layers of width 64), with settings for it"),
        *pretraining(**options),
        Rule("evaluate_every", "10 epochs, or a tenth of --steps", every),
        constant("keep", "last"),
    )


def evaluate_every(parts: int) -> Rule:
    """Returns the row of evaluations after parts of the steps."""
    return Rule(
        "evaluate_every",
        "--steps" if parts == 1 else f"1/{parts} of --steps",
        lambda s, data: max(1, s.steps // parts),
    )


def steps(why: str, default: Callable[[Any, "ImageDataset"], int]) -> Rule:
    """Returns the row of the steps for `--epochs`, or for the default."""

    @functools.wraps(default)  # of which --show-settings tells the line
    def value(s: Any, data: "ImageDataset") -> int:
        if s.epochs:
            return s.epochs * math.ceil(data.num_train / s.batch_size)
        return default(s, data)

    return Rule("steps", why, value)


STUDY = (
    constant("protocol", "simple"),
    constant("weight_decay", 0.05),
    constant("mode", "tf"),
)
