import keras

NUMBERS = ("int", "uint", "float", "bfloat")


def is_numeric(array):
    """Whether an array or tensor, of any library, holds real numbers.

    Booleans, strings, objects and complex numbers are not real numbers, and
    what has no `dtype` (a list, a path) is no array.
    """
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return False
    try:
        return keras.backend.standardize_dtype(dtype).startswith(NUMBERS)
    except ValueError:
        return False


def describe(value):
    """Returns what an error message says of a value that was refused."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return f"{type(value).__name__} of type {dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' * (len(text) > 60)}"
