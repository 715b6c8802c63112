"""Whether starts are drawn, and when.

Drawing takes about half of the time that building ViT-B/16 takes, and is
NumPy's, which lets other threads run. So a model's large starts are drawn
beside its building, into memory that its variables have already.
"""

import concurrent.futures
import contextlib
import logging
import math
import os
import random
import threading

import keras
import numpy as np
from keras import ops

from keras_vit.layers import _jax_fast
from keras_vit.layers import _tf_fast
from keras_vit.layers import _torch_fast

_LARGE = 2**14  # numbers, from which another thread is worth it
FORMS = {"jax": _jax_fast, "tensorflow": _tf_fast, "torch": _torch_fast}

_logger = logging.getLogger(__name__)
_now = threading.local()


def zeros(shape, dtype):
    """An array that starts where backends can take it without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def copy(array):
    """A copy of an array that is as `zeros` makes them."""
    made = zeros(array.shape, array.dtype)
    made[...] = array
    return made


def is_aligned(array):
    """Whether an array is as `zeros` makes them."""
    return array.flags.carray and array.ctypes.data % 64 == 0


def given(array):
    """An array, which nobody else has, as what Keras makes a variable of
    without a copy."""
    form = FORMS.get(keras.config.backend())
    return array if form is None else form.shared(array)


def draw(fill, array):
    """Has `fill(array)` done, if this thread wants anything drawn: now, or by
    the end of `build`."""
    if not getattr(_now, "wanted", True):
        return
    beside = getattr(_now, "beside", None)
    if beside is None or array.size < _LARGE:
        fill(array)
    else:
        pool, drawn = beside
        drawn.append((array, pool.submit(fill, array)))


def build(make, wanted=True):
    """Builds a model.

    Args:
        make: Function without arguments that returns the model first.
        wanted: Boolean. Whether anything is drawn: a model that is about to
            load every weight that would be has no use for it.

    Returns:
        What `make` does.
    """
    if not wanted:
        with _set(wanted=False):
            return make()
    if not _is_shared():
        return make()
    seeds = random.getstate()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        drawn = []
        try:
            with _set(beside=(pool, drawn)):
                made = make()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        for _, done in drawn:
            done.result()
    if not drawn:
        # Nothing was initialised, as within
        # `keras.StatelessScope(initialize_variables=False)`, where reading a
        # variable would call its initializer.
        return made
    found = {_address(v) for v in made[0].variables if _is_large(v)}
    if all(array.ctypes.data in found for array, _ in drawn):
        return made
    # A variable copied its start before it was drawn. None is known to, but
    # weights of zeros would learn nothing, and without a word.
    _logger.warning(
        "The model is built a second time: backend %r copied the initial "
        "values of a variable before they were computed. The weights are "
        "right; building took twice as long.",
        keras.config.backend(),
    )
    random.setstate(seeds)
    return make()


def skip():
    """Returns a context within which no initial values are computed."""
    return _set(wanted=False)


def at_once():
    """Returns a context within which nothing waits for the end of `build`."""
    return _set(beside=None)


@contextlib.contextmanager
def _set(**values):
    before = dict(vars(_now))
    vars(_now).update(values)
    try:
        yield
    finally:
        vars(_now).clear()
        vars(_now).update(before)


def _is_shared():
    """Whether variables have the memory of the arrays that they start as: not
    on a GPU, under a strategy or a distribution."""
    if keras.distribution.distribution() is not None:
        return False
    array = zeros((_LARGE,), "float32")
    variable = keras.Variable(
        lambda shape, dtype: given(array),
        shape=array.shape,
        dtype="float32",
        name="start",
    )
    return _address(variable) == array.ctypes.data


def _address(variable):
    """Where a variable's numbers are; None if that is no one place here."""
    try:
        value = ops.stop_gradient(variable.value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value).ctypes.data
        return np.asarray(memoryview(value)).ctypes.data  # TensorFlow 2.18
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None


def _is_large(variable):
    return math.prod(variable.shape) >= _LARGE
