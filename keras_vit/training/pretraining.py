"""Flags and settings that the recipes of pre-training share."""

import dataclasses
from typing import Any

from keras_vit.data.dataset import ImageDataset
from keras_vit.training.command_line import PresetFlags
from keras_vit.training.command_line import arg
from keras_vit.training.models import resolve_model_spec
from keras_vit.training.models import resolve_sizes


@dataclasses.dataclass(frozen=True)
class LabelFreeFlags(PresetFlags):
    """Flags of pre-training without labels, by a method."""

    picture_every: int | None = arg(
        None,
        "steps between two pictures; default: --evaluate-every",
        minimum=1,
    )
    method: str = ""  # each recipe has a flag of its own methods
    encoder: dict | None = None  # arguments of the encoder
    initialize: str | None = None  # name of its initial weights
    not_decayed: tuple | None = None  # names of variables

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mixup", "cutmix", "erase"):
            if getattr(self, name):
                raise ValueError(
                    f"--{name} is for training with labels, which are not read "
                    f"here: leave it out. Received: {getattr(self, name)}"
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
