"""Starts made by NumPy, the same under every backend.

A model has them in a dozen shapes. JAX compiles a program for each, TensorFlow
draws on one core: of the time that building ViT-B/16 takes, most was this.
"""

import contextlib
import math
import random
import threading

import keras
import numpy as np
from keras import ops

from keras_vit.layers import _jax_fast
from keras_vit.layers import _tf_fast
from keras_vit.layers import _torch_fast

_now = threading.local()


@contextlib.contextmanager
def drawing(wanted):
    """Within it, and in its thread, what would be drawn is zeros unless it is
    wanted: a model that is about to load every such weight has no use for it.
    """
    before = _is_wanted()
    _now.wanted = wanted
    try:
        yield
    finally:
        _now.wanted = before


def _is_wanted():
    return getattr(_now, "wanted", True)


class _Start(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype)
        x = zeros(shape, np.float64 if dtype == "float64" else np.float32)
        self._fill(x)
        if x.dtype == dtype:
            return _given(x)
        return ops.convert_to_tensor(x, dtype=dtype)


@keras.saving.register_keras_serializable("keras_vit")
class Constant(_Start):
    def __init__(self, value):
        self.value = value

    def _fill(self, x):
        x.fill(self.value)

    def get_config(self):
        return {"value": self.value}


class _Drawn(_Start):
    def __init__(self, seed=None):
        # From Python's generator, which `keras.utils.set_random_seed` sets.
        self.seed = random.randint(1, 10**9) if seed is None else seed

    def _fill(self, x):
        if _is_wanted():
            self._draw(np.random.Generator(np.random.SFC64(self.seed)), x)


@keras.saving.register_keras_serializable("keras_vit")
class Uniform(_Drawn):
    """Draws from [-bound, bound)."""

    def __init__(self, bound, seed=None):
        super().__init__(seed)
        self.bound = bound

    def _draw(self, generator, x):
        generator.random(out=x, dtype=x.dtype)
        x *= 2 * self.bound
        x -= self.bound

    def get_config(self):
        return {"bound": self.bound, "seed": self.seed}


@keras.saving.register_keras_serializable("keras_vit")
class Normal(_Drawn):
    """Draws from a normal distribution; truncated, without what lies beyond
    two standard deviations."""

    def __init__(self, stddev, truncated=False, seed=None):
        super().__init__(seed)
        self.stddev = stddev
        self.truncated = truncated

    def _draw(self, generator, x):
        generator.standard_normal(out=x, dtype=x.dtype)
        while self.truncated and (far := np.abs(x) > 2).any():
            x[far] = generator.standard_normal(far.sum(), x.dtype)
        x *= self.stddev

    def get_config(self):
        return {
            "stddev": self.stddev,
            "truncated": self.truncated,
            "seed": self.seed,
        }


def _given(array):
    """An array, which nobody else has, as what Keras makes a variable of
    without a copy."""
    forms = {"jax": _jax_fast, "tensorflow": _tf_fast, "torch": _torch_fast}
    form = forms.get(keras.config.backend())
    return array if form is None else form.shared(array)


def zeros(shape, dtype):
    """An array that starts where backends can take it without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def glorot(inputs, outputs):
    """Glorot's uniform start of a matrix, also called Xavier's."""
    return Uniform(math.sqrt(6 / (inputs + outputs)))


def lecun(inputs):
    """LeCun's normal start of a kernel that sums over `inputs` numbers:
    Flax's default, as in vit_jax."""
    # The factor is what truncation takes from the standard deviation.
    return Normal(math.sqrt(1 / inputs) / 0.87962566103423978, truncated=True)
