"""Argument checks.

Each function returns the checked value as a Python number or tuple, or raises a
`ValueError` that states the argument's name, its value and the accepted ones.
NumPy numbers are accepted.
"""

import numbers
from collections.abc import Collection
from typing import Any

from keras_vit.utils.text import nearest
from keras_vit.utils.types import Shape


def boolean(name: str, value: object) -> bool:
    """Checks that a value is True or False."""
    fits = getattr(value, "shape", ()) == () and value in (True, False)
    require(fits, name, value, "True or False")
    return bool(value)


def positive_int(name: str, value: Any) -> int:
    """Checks that a value is an integer above 0."""
    require(_is_int(value) and value > 0, name, value, "a positive integer")
    return int(value)


def non_negative_int(name: str, value: Any) -> int:
    """Checks that a value is an integer of 0 or more."""
    require(_is_int(value) and value >= 0, name, value, "an integer, 0 or more")
    return int(value)


def multiple_of_4(name: str, value: Any) -> int:
    """Checks that a width can have sines and cosines of rows and columns."""
    fits = _is_int(value) and value > 0 and value % 4 == 0
    require(fits, name, value, "a positive multiple of 4")
    return int(value)


def positive_pair(name: str, value: Any) -> tuple[int, int]:
    """Checks that a value is a positive integer or a pair of them, and returns
    it as `(rows, columns)`."""
    pair = (value, value) if _is_int(value) else value
    fits = isinstance(pair, (tuple, list)) and len(pair) == 2
    fits = fits and all(_is_int(size) and size > 0 for size in pair)
    order = "height, width" if name == "image_size" else "rows, columns"
    require(fits, name, value, f"a positive integer or a pair of them, ({order})")
    return (int(pair[0]), int(pair[1]))


def rate(name: str, value: Any) -> float:
    """Checks that a value is a number in [0, 1)."""
    fits = _is_real(value) and 0 <= value < 1
    require(fits, name, value, "a number from 0 up to, but not including, 1")
    return float(value)


def positive_float(name: str, value: Any) -> float:
    """Checks that a value is a finite number above 0."""
    fits = _is_real(value) and 0 < value < float("inf")
    require(fits, name, value, "a number above 0")
    return float(value)


# Values of other libraries, and those here; None if there is none.
_ELSEWHERE = {"avg": "gap", "mean": "gap", "cls": "token", "max": None}


def one_of(name: str, value: Any, choices: Collection[str | None]) -> Any:
    """Checks that a value is one of the choices, which are strings or None."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        names = [choice for choice in choices if isinstance(choice, str)]
        close = _ELSEWHERE.get(str(value), nearest(value, names))
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
            + (f". Did you mean {close!r}?" if close in names else "")
        )
    return value


def check_rank(layer: object, shape: Shape, axes: str) -> None:
    """Checks that the input of a layer has as many axes as the text `axes`,
    such as "(batch, length, channels)"."""
    rank = axes.count(",") + 1
    if len(shape) != rank:
        raise ValueError(
            f"{type(layer).__name__} takes a tensor of {rank} axes, {axes}. "
            f"Received: shape {tuple(shape)}"
        )


def require(fits: bool, name: str, value: object, expected: str) -> None:
    """Raises a `ValueError` that an argument must be as expected, unless it fits."""
    if not fits:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def averages_fit_norms(model: Any) -> None:
    """Raises a `ValueError` if averages of weights are trained before a batch
    norm, whose moving statistics are those of the weights themselves."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "use_ema", False):
        return
    trained, layers = False, list(reversed(model.layers))
    while layers:
        layer = layers.pop()
        inner = getattr(layer, "layers", None)
        if inner:
            layers.extend(reversed(inner))
            continue
        names = [x.name for x in layer.non_trainable_variables]
        if trained and layer.trainable and "moving_mean" in names:
            raise ValueError(
                "Averages of the weights (`use_ema`, `average_from`) do not "
                f"fit the moving statistics of the batch norm {layer.name!r}, "
                "which are those of the weights that are not averaged. Freeze "
                "the layers before it, or leave the averages out."
            )
        trained = trained or bool(layer.trainable_variables)


def class_names(names: Any, count: int) -> tuple[str, ...] | None:
    """Returns names of classes as a tuple, or None; raises a `ValueError` if
    they are not `count`."""
    if names is None:
        return None
    fits = not isinstance(names, str) and len(names) == count
    require(fits, "class_names", names, f"{count} names, one for each class")
    return tuple(map(str, names))
