"""The published ways to crop and resize images, as lists of steps."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from keras_vit.data.steps.base import Step
from keras_vit.data.steps.crops import (
    bicubic_center_crop,
    inception_crop,
    random_resized_crop,
    random_translation,
    resize,
    resize_and_crop,
)
from keras_vit.utils import checks
from keras_vit.utils.types import Config

# Data sets of images smaller than this are treated like CIFAR. The limit of
# 96 x 96 pixels is that of BiT-HyperRule.
SMALL = 96


def height_and_width(
    size: int | tuple[int, ...] | list[int],
) -> tuple[int, int]:
    """Returns an image size, an integer or `(height, width)`, as a pair of
    positive integers; raises a `ValueError` for other values."""
    return checks.positive_pair("image_size", size)


def size_text(image_size: int | tuple[int, ...] | list[int]) -> str:
    """Returns an image size as text, such as "64"
    or, if height and width differ, "64x48"."""
    height, width = height_and_width(image_size)
    return str(height) if height == width else f"{height}x{width}"


def parse_image_size(
    value: Any, name: str = "image_size"
) -> int | tuple[int, int] | None:
    """Returns an image size, such as 64, "64" or "64x48", as an
    integer or, if they differ, `(height, width)`; raises a `ValueError` if it is not a
    size."""
    if value is None:
        return None
    sides = value if isinstance(value, tuple | list) else str(value).split("x")
    try:
        height, width = (
            2 * [int(n) for n in sides] if len(sides) == 1 else map(int, sides)
        )
    except ValueError:
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(
            f"{name} must be 1 or more, such as 64, or height x width, such as "
            f"64x48. Received: {value}"
        )
    return height if height == width else (height, width)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The steps that read, crop and resize an image, as functions of its size, for
    training and for testing."""

    train: Callable[[Any], Step]
    test: Callable[[Any], Step]
    train_small: Callable[[Any], Step] | None = None  # if it differs for small images

    def for_training(self, image_size: int | None) -> Callable[[Any], Step]:
        """Returns the function for training on a dataset of this image size,
        None if images differ."""
        small = image_size is not None and image_size < SMALL
        return self.train_small if small and self.train_small else self.train


def _masked(scale: tuple[float, float], method: str, **test: float) -> Protocol:
    """Returns a protocol of torchvision's crops."""
    return Protocol(
        train=lambda size: random_resized_crop(size, scale=scale, method=method),
        test=lambda size: bicubic_center_crop(size, **test),
    )


def _of_timm(crop_pct: float) -> Protocol:
    """Returns the protocol of timm's `create_transform` with its default `scale`."""
    return Protocol(
        train=random_resized_crop,
        test=lambda size: bicubic_center_crop(size, crop_pct=crop_pct),
    )


PROTOCOLS = {
    # Not published. A weak augmentation, for small datasets.
    "simple": Protocol(
        train=random_translation, test=lambda size: resize(size, antialias=True)
    ),
    # For labels that cropping would change: VTAB's structured tasks.
    "whole": Protocol(train=resize, test=resize),
    # vit_jax/input_pipeline.py, the released code of the paper
    "vit_jax": Protocol(train=inception_crop, test=resize),
    # big_vision/configs/transfer.py: 448 and 384 pixels
    "big_vision": Protocol(
        train=lambda size: inception_crop(size, integers=True),
        train_small=lambda size: resize_and_crop(
            size, ratio=448 / 384, shorter_side=True, random=True
        ),
        test=lambda size: resize_and_crop(size, ratio=448 / 384, shorter_side=True),
    ),
    # big_vision/configs/vit_i21k.py, vit_i1k.py, bit_i1k.py: 256 and 224 pixels
    "pretrain": Protocol(
        train=lambda size: inception_crop(size, integers=True),
        test=lambda size: resize_and_crop(size, ratio=256 / 224, shorter_side=True),
    ),
    # big_vision/configs/common_fewshot.py: 256 and 224 pixels, aspect not kept
    "few-shot": Protocol(
        train=lambda size: resize_and_crop(size, ratio=256 / 224),
        test=lambda size: resize_and_crop(size, ratio=256 / 224),
    ),
    # BiT-HyperRule, "Big Transfer" Section 3.3: (512, 480) or (160, 128)
    "bit-hyperrule": Protocol(
        train=lambda size: resize_and_crop(size, ratio=512 / 480, random=True),
        train_small=lambda size: resize_and_crop(size, ratio=160 / 128, random=True),
        test=resize,
    ),
    # facebookresearch/mae, main_pretrain.py, and its util/datasets.py
    "mae": _masked((0.2, 1.0), "bicubic", ratio_above_224=1.0),
    # facebookresearch/mae, main_finetune.py: `create_transform` of timm
    "mae-finetune": _masked((0.08, 1.0), "bicubic", ratio_above_224=1.0),
    # microsoft/SimMIM, data/data_simmim.py, and its data_finetune.py
    "simmim": _masked((0.67, 1.0), "bilinear"),
    # timm's default for a ViT at 224 pixels; "timm-0.95" is its `crop_pct=0.95`
    "timm-0.9": _of_timm(0.9),
}
_TIMM = re.compile(r"timm-(1|1\.0|0\.[1-9]\d*)")  # a `crop_pct`
# These entries of timm's config.json resize an image with antialiasing and do not crop.
_WHOLE: Config = {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
# Those that only resize an image to test.
PLAIN = ("simple", "whole", "vit_jax", "bit-hyperrule")


def is_of_timm(name: object) -> bool:
    """Returns whether a protocol is timm's, whose test images Pillow can make."""
    return bool(_TIMM.fullmatch(str(name)))


def find_protocol(name: str) -> Protocol:
    """Returns the protocol of a name."""
    if is_of_timm(name):
        return _of_timm(float(name.removeprefix("timm-")))
    return PROTOCOLS[checks.one_of("protocol", name, tuple(PROTOCOLS))]


def protocol_of(resizing: Config | None) -> str | None:
    """Returns the name of the protocol that tests as the settings of timm's config.json
    say; None if there is none, or if they do not say it."""
    found = {"interpolation": "bicubic", "crop_mode": "center", **(resizing or {})}
    if found == _WHOLE:
        return "simple"
    known = (found["interpolation"], found["crop_mode"]) == ("bicubic", "center")
    name = f"timm-{found.get('crop_pct', 0):g}"
    return name if known and is_of_timm(name) else None


def resizing_of(protocol: str, size: int | tuple[int, int]) -> Config | None:
    """Returns how a protocol resizes test images to this size, in the terms of timm's
    config.json; None if they cannot express it, such as a resizing without
    antialiasing."""
    if protocol == "simple":
        return _WHOLE
    crop = 224 / 256
    if is_of_timm(protocol):
        crop = float(protocol.removeprefix("timm-"))
    elif protocol not in ("mae", "mae-finetune", "simmim"):
        return None
    elif protocol != "simmim" and max(height_and_width(size)) > 224:
        crop = 1.0
    return {"interpolation": "bicubic", "crop_pct": crop, "crop_mode": "center"}
