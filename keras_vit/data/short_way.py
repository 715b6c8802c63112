"""The lists of steps that correspond to arguments of `ImageDataset.train` and `test`.
Each function here is for one kind of images, and takes the arguments for this kind.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from keras_vit.data import steps
from keras_vit.data.protocols import find_protocol
from keras_vit.data.steps import normalize
from keras_vit.data.steps.base import StepFunction, checked
from keras_vit.data.steps.erasing import RandomErasing
from keras_vit.data.steps.multi_crops import MultiCrop
from keras_vit.data.steps.randaugment import AUGREG
from keras_vit.data.token_budget import CROPPED, WHOLE, TokenBudget, fit, pack_patches
from keras_vit.utils import checks
from keras_vit.utils.scaling import ModeLike, as_mode

# Those of each image, and those of each batch.
Lists: TypeAlias = tuple[Sequence[StepFunction | None], Sequence[StepFunction | None]]
Builder: TypeAlias = Callable[..., Lists]


def given(options: dict[str, Any], defaults: Callable[..., Any]) -> dict[str, Any]:
    """Returns the options that differ from the defaults of a function."""
    signature = inspect.signature(defaults)
    signature.bind_partial(**options)  # an error for a name that there is not
    parameters = signature.parameters

    def is_default(name: str, value: Any) -> bool:
        default = parameters[name].default
        plain = isinstance(default, bool | int | float | str)
        return value is default or (plain and bool(value == default))

    return {name: x for name, x in options.items() if not is_default(name, x)}


def build(builder: Builder, data: Any, training: bool, options: dict) -> Lists:
    """Returns the lists of steps of a dataset; raises a `ValueError` if one of the
    options is not for its images."""
    known = list(inspect.signature(builder).parameters)[2:]
    if others := [name for name in options if name not in known]:
        received = ", ".join(f"{name}={x!r}" for name, x in options.items())
        raise ValueError(
            f"The steps for the images of {data.name!r} take "
            f"{', '.join(f'`{name}`' for name in known)}: leave out "
            f"{', '.join(f'`{name}`' for name in others)}. Received: {received}"
        )
    return builder(data, training, **options)


def images(
    data: Any,
    training: bool,
    *,
    image_size: int | tuple[int, int],
    protocol: str = "simple",
    augment: str | StepFunction = "none",
    flip: bool = True,
    mode: ModeLike = "tf",
    erase: float | RandomErasing = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    one_hot: bool = False,
    class_weights: Sequence[float] | None = None,
) -> Lists:
    """Images of one size."""
    size = checks.positive_pair("image_size", image_size)
    found = find_protocol(protocol)
    finish = normalize(as_mode(mode))
    labels, batch = labels_of(data, mixup, cutmix, one_hot, class_weights)
    if not training:
        return [found.test(size), finish, *labels], batch
    change = None if augment == "none" else augment
    if isinstance(change, str):
        change = steps.augment(checks.one_of("augment", change, tuple(AUGREG)))
    (change,) = checked("augment", [change])
    if not isinstance(erase, RandomErasing):
        erase = RandomErasing(erase)
    cut = found.for_training(data.image_size)(size)
    mirror = steps.flip() if flip else None
    erasing = steps.erase(erase) if erase.probability else None
    return [cut, mirror, change, finish, erasing, *labels], batch


def images_at_their_aspect(
    data: Any,
    training: bool,
    *,
    image_size: TokenBudget,
    protocol: str = "simple",
    flip: bool = True,
    mode: ModeLike = "tf",
    one_hot: bool = False,
    class_weights: Sequence[float] | None = None,
) -> Lists:
    """Images that keep their aspect, as patches."""
    checks.one_of("protocol", protocol, (*WHOLE, *CROPPED))
    cut = fit(image_size, crop=training and protocol in CROPPED)
    mirror = steps.flip() if training and flip else None
    labels, _ = labels_of(data, 0, 0, one_hot, class_weights)
    finish = [normalize(as_mode(mode)), pack_patches(image_size)]
    return [cut, mirror, *finish, *labels], []


def crops_of_images(
    data: Any,
    training: bool,
    *,
    image_size: int | tuple[int, int],
    crops: MultiCrop,
    flip: bool = True,
    mode: ModeLike = "tf",
) -> Lists:
    """Random crops of each image, for self-supervised training."""
    size = checks.positive_pair("image_size", image_size)
    return [steps.multi_crop(crops, size, mode=as_mode(mode), flip=flip)], []


def images_with_places(
    data: Any,
    training: bool,
    *,
    image_size: int | tuple[int, int],
    mode: ModeLike = "tf",
    flip: bool = True,
    scale: float = 2.0,
) -> Lists:
    """Images with masks or boxes."""
    checks.require(scale >= 1, "scale", scale, "1 or more")
    size = checks.positive_pair("image_size", image_size)
    cut = steps.scale_crop(size, scale=scale, flip=flip)
    cut = cut if training else steps.scale_whole(size)
    return [cut, normalize(as_mode(mode))], []


def labels_of(
    data: Any,
    mixup: float,
    cutmix: float,
    one_hot: bool,
    class_weights: Sequence[float] | None,
) -> tuple[list[StepFunction], list[StepFunction]]:
    """Returns the steps that make labels and weights, and those that mix."""
    found: list[StepFunction] = []
    batch: list[StepFunction] = []
    if class_weights is not None:
        weights = data.checked_class_weights(class_weights, mixup, cutmix)
        found.append(steps.weigh(weights))
    if mixup or cutmix:
        batch.append(steps.mix(mixup, cutmix))
    if one_hot or batch:
        found.append(steps.one_hot(len(data.class_names)))
    return found, batch
