"""Flags and settings that the recipes of pre-training share."""

import dataclasses
from typing import Any

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.training.command_line import TrainingFlags
from keras_vit.training.command_line import arg
from keras_vit.training.command_line import check_range
from keras_vit.training.models import resolve_model_spec
from keras_vit.training.models import resolve_sizes


@dataclasses.dataclass(frozen=True)
class PretrainingFlags(TrainingFlags):
    """Flags of pre-training. Those that are None have published values."""

    model: str | None = arg(
        None,
        "a Vision Transformer such as ViTB16, with the published settings of "
        "the method; default: compact-vit, of 4 layers of width 64",
        "NAME",
    )
    batch_size: int | None = arg(
        None,
        "images per step; default: as published, and at most a 20th of the "
        "dataset (a 10th with --method dino or mocov3)",
    )
    learning_rate: float | None = arg(
        None,
        "peak learning rate; default: as published for the batch size",
        "X",
    )
    weight_decay: float | None = arg(
        None, "weight decay; default: as published", "X"
    )
    warmup_steps: int | None = arg(
        None,
        "number of warm-up steps; default: as published, and at most a fifth "
        "of the steps",
    )
    clip: float | None = arg(
        None,
        "maximum global norm of the gradients, 0 for no clipping; default: as "
        "published",
        "X",
    )
    drop_path: float | None = arg(
        None,
        "stochastic depth rate of the last block; it increases linearly from "
        "0 in the first block; default: as published",
        "P",
    )
    protocol: str | None = arg(
        None,
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "default: simple for images below 96 pixels, else as published",
        "NAME",
    )
    mode: str | None = arg(
        None,
        "pixel values: tf for [-1, 1], torch for normalization by ImageNet's "
        "mean and standard deviation; default: as published for color images, "
        "else tf",
        "NAME",
    )
    # A setting of presets.py that is no flag.
    warmup_epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "weight_decay", "warmup_steps", "clip", minimum=0)
        check_range(self, "drop_path", minimum=0, below=1)


@dataclasses.dataclass(frozen=True)
class LabelFreeFlags(PretrainingFlags):
    """Flags of pre-training without labels, by a method."""

    picture_every: int | None = arg(
        None, "steps between two pictures; default: --evaluate-every"
    )
    method: str = ""  # each recipe has a flag of its own methods
    encoder: dict | None = None  # arguments of the encoder
    initialize: str | None = None  # name of its initial weights
    not_decayed: tuple | None = None  # names of variables

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "picture_every", minimum=1)

    def raise_if_of_other_methods(self, **flags: tuple[str, ...]) -> None:
        """Raises a `ValueError` if a given flag is of another method."""
        method = self.method
        for owner, names in flags.items():
            for name in names:
                value = getattr(self, name)
                default = type(self).__dataclass_fields__[name].default
                if owner != method and value != default:
                    raise ValueError(
                        f"--{name.replace('_', '-')} is for --method {owner}. "
                        f"Received: {value} with --method {method}"
                    )


def check_is_vit(model: str | None) -> None:
    """Raises a `ValueError` if a model is no Vision Transformer."""
    if resolve_model_spec(model, None)["stride"] != 1:
        raise ValueError(
            f"{model} is no Vision Transformer: give one, such as ViTB16."
        )


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
    image_size, patch_size = resolve_sizes(
        (
            config.image_size,
            spec["image_size"],
            data.image_size and max(min_size, data.image_size),
            64,
        ),
        spec["patch_size"] or (small_patch if small else None),
        spec["stride"],
    )
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
        image_size=image_size,
        patch_size=patch_size,
        batch_size=batch,
        learning_rate=given.learning_rate
        or config.scaled_rate(config.learning_rate, batch),
        warmup_steps=warmup,
        mode=mode,
        protocol=protocol,
    )
