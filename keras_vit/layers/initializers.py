"""Initializers computed with NumPy.

The same seed gives the same weights on every backend, and JAX compiles no
program for each shape. Large arrays are filled in slices by several threads,
since NumPy's generators release Python's lock.
"""

import concurrent.futures
import contextlib
import contextvars
import math
import os
import random

import keras
import numpy as np
from keras import ops

# Elements per random generator. A 768 x 3072 kernel is filled in 17 ms by one
# thread, in 6 ms by two (2 cores, the fastest of 40 each, interleaved).
_SLICE_SIZE = 2**16
_skip = contextvars.ContextVar("skip_init", default=False)


@contextlib.contextmanager
def skip_init():
    """Leaves random initial values zero within a `with` block.

    For models that load every weight: computing values that are replaced at
    once takes about half of the time that building ViT-B/16 takes. Other
    threads are not affected.
    """
    token = _skip.set(True)
    try:
        yield
    finally:
        _skip.reset(token)


class _NumpyInitializer(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype)
        numpy_dtype = "float64" if dtype == "float64" else "float32"
        return ops.convert_to_tensor(self._array(shape, numpy_dtype), dtype)


@keras.saving.register_keras_serializable("keras_vit")
class Constant(_NumpyInitializer):
    """Fills with one value."""

    def __init__(self, value):
        self.value = value

    def _array(self, shape, dtype):
        return np.full(shape, self.value, dtype)

    def get_config(self):
        return {"value": self.value}


class _RandomNumpyInitializer(_NumpyInitializer):
    def __init__(self, seed=None):
        # The config keeps the seed as it was passed, as Keras's initializers
        # do: without one, a clone has other initial values.
        self._init_seed = seed
        # From Python's generator, which `keras.utils.set_random_seed` sets.
        self.seed = random.randint(1, 10**9) if seed is None else seed

    def _array(self, shape, dtype):
        if _skip.get():
            return np.zeros(shape, dtype)
        values = np.empty(math.prod(shape), dtype)
        slices = range(0, values.size, _SLICE_SIZE)

        def fill(start):
            # One generator per slice: the values do not depend on the number
            # of threads.
            seed = [self.seed, start // _SLICE_SIZE]
            generator = np.random.Generator(np.random.SFC64(seed))
            self._sample(generator, values[start : start + _SLICE_SIZE])

        if len(slices) == 1:
            fill(0)
        else:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(fill, slices))  # raises what `fill` raised
        return values.reshape(shape)


@keras.saving.register_keras_serializable("keras_vit")
class Uniform(_RandomNumpyInitializer):
    """Samples from the uniform distribution over `[-bound, bound)`."""

    def __init__(self, bound, seed=None):
        super().__init__(seed)
        self.bound = bound

    def _sample(self, generator, out):
        generator.random(out=out, dtype=out.dtype)
        out *= 2 * self.bound
        out -= self.bound

    def get_config(self):
        return {"bound": self.bound, "seed": self._init_seed}


@keras.saving.register_keras_serializable("keras_vit")
class Normal(_RandomNumpyInitializer):
    """Samples from a normal distribution of mean 0.

    Args:
        stddev: Float. Standard deviation, before truncation.
        truncated: Boolean. Whether to sample again what is more than two
            standard deviations from 0.
        seed: Integer, or None for one from Python's random generator.
    """

    def __init__(self, stddev, truncated=False, seed=None):
        super().__init__(seed)
        self.stddev = stddev
        self.truncated = truncated

    def _sample(self, generator, out):
        generator.standard_normal(out=out, dtype=out.dtype)
        while self.truncated and (outliers := np.abs(out) > 2).any():
            out[outliers] = generator.standard_normal(outliers.sum(), out.dtype)
        out *= self.stddev

    def get_config(self):
        return {
            "stddev": self.stddev,
            "truncated": self.truncated,
            "seed": self._init_seed,
        }


def glorot_uniform(inputs, outputs):
    """Returns Glorot's uniform initializer of an `(inputs, outputs)` matrix.

    Keras's own takes the first axis of a 3-D kernel, such as an attention
    projection's, for the window of a convolution.
    """
    return Uniform(math.sqrt(6 / (inputs + outputs)))


def lecun_normal(inputs):
    """Returns LeCun's truncated normal initializer of a kernel that sums over
    `inputs` values: Flax's default, as in vit_jax."""
    # Truncation multiplies the standard deviation by this factor.
    return Normal(math.sqrt(1 / inputs) / 0.87962566103423978, truncated=True)
