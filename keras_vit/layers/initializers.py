"""Starts made by NumPy, the same under every backend.

A model has them in a dozen shapes. JAX compiles a program for each, TensorFlow
draws on one core: of the time that building ViT-B/16 takes, most was this.
"""

import functools
import math
import random

import keras
import numpy as np
from keras import ops

from keras_vit.layers import _drawing


class _Start(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype)
        kind = np.float64 if dtype == "float64" else np.float32
        x = _drawing.zeros(shape, kind)
        if x.dtype == dtype:
            self._fill(x)
            return _drawing.given(x)
        with _drawing.at_once():  # before it is copied
            self._fill(x)
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
        # The config keeps the seed as it was passed, as Keras's initializers
        # do: without one, a clone has initial values of its own.
        self._init_seed = seed
        # From Python's generator, which `keras.utils.set_random_seed` sets.
        self.seed = random.randint(1, 10**9) if seed is None else seed

    def _fill(self, x):
        generator = np.random.Generator(np.random.SFC64(self.seed))
        _drawing.draw(functools.partial(self._draw, generator), x)


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
        return {"bound": self.bound, "seed": self._init_seed}


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
            "seed": self._init_seed,
        }


def glorot(inputs, outputs):
    """Glorot's uniform start of a matrix, also called Xavier's."""
    return Uniform(math.sqrt(6 / (inputs + outputs)))


def lecun(inputs):
    """LeCun's normal start of a kernel that sums over `inputs` numbers:
    Flax's default, as in vit_jax."""
    # The factor is what truncation takes from the standard deviation.
    return Normal(math.sqrt(1 / inputs) / 0.87962566103423978, truncated=True)


def skip_init():
    """Returns a context within which this thread leaves initial values zero.

    It is for models that load every weight: computing initial values that are
    replaced takes about half of the time that building ViT-B/16 takes.
    """
    return _drawing.skip()
