"""Argument checks shared by the layers: every message names the argument, the
value that came and the values that would work. NumPy's numbers count as
Python's, and come back as them."""

import numbers


def positive_int(name, value):
    if not _is_int(value) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return int(value)


def natural_int(name, value):
    if not _is_int(value) or value < 0:
        raise ValueError(
            f"`{name}` must be an integer, 0 or more. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def positive_pair(name, value):
    """Returns `(rows, columns)` from an integer or a pair of integers."""
    pair = (value, value) if _is_int(value) else value
    if (
        not isinstance(pair, (tuple, list))
        or len(pair) != 2
        or any(not _is_int(size) or size <= 0 for size in pair)
    ):
        raise ValueError(
            f"`{name}` must be a positive integer or a pair of them, "
            f"(rows, columns). Received: {name}={value!r}"
        )
    return (int(pair[0]), int(pair[1]))


def rate(name, value):
    if not _is_real(value) or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number from 0 up to, but not including, 1. "
            f"Received: {name}={value!r}"
        )
    return float(value)


def positive_float(name, value):
    if not _is_real(value) or not 0 < value < float("inf"):
        raise ValueError(
            f"`{name}` must be a number above 0. Received: {name}={value!r}"
        )
    return float(value)


def one_of(name, value, choices):
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )
    return value


def rank(layer, shape, expected, letters):
    if len(shape) != expected:
        raise ValueError(
            f"{layer} takes a tensor of {expected} axes, {letters}. "
            f"Received: shape {tuple(shape)}"
        )


def _is_int(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def no_mask(layer, mask):
    """Raises a ValueError if Keras passes the mask of an earlier layer.

    Attention over tokens that should be masked would be wrong without a trace
    in the output.
    """
    if mask is not None:
        raise ValueError(
            f"{type(layer).__name__} {layer.name!r} does not support masks: it "
            "would attend to the masked tokens. Leave out the mask, for "
            "example with `Embedding(..., mask_zero=False)`. Received: a mask "
            f"of shape {tuple(mask.shape)}"
        )
