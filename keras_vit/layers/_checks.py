"""Argument checks shared by the layers: every message names the argument, the
value that came and the values that would work."""


def positive_int(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return value


def natural_int(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"`{name}` must be an integer, 0 or more. "
            f"Received: {name}={value!r}"
        )
    return value


def positive_pair(name, value):
    """Returns `(rows, columns)` from an integer or a pair of integers."""
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a positive integer or a pair of them, "
            f"(rows, columns). Received: {name}={value!r}"
        )
    for size in pair:
        if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
            raise ValueError(
                f"`{name}` must be a positive integer or a pair of them, "
                f"(rows, columns). Received: {name}={value!r}"
            )
    return tuple(pair)


def rate(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"`{name}` must be a number from 0 up to, but not including, 1. "
            f"Received: {name}={value!r}"
        )
    if not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number from 0 up to, but not including, 1. "
            f"Received: {name}={value!r}"
        )
    return value


def positive_float(name, value):
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise ValueError(
            f"`{name}` must be a number above 0. Received: {name}={value!r}"
        )
    return value


def one_of(name, value, choices):
    if value not in choices:
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
