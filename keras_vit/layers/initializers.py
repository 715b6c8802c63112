"""Initializers computed with NumPy.

The same seed gives the same weights on every backend, and JAX does not compile
a program for each shape. Large arrays are filled in slices by several threads,
since NumPy's generators release the global interpreter lock.
"""

import concurrent.futures
import contextlib
import contextvars
import math
import os
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.utils.types import Array, Config, Tensor

# Elements per random generator. One thread fills a 768 x 3072 kernel in 17 ms,
# two in 6 ms (2 cores, the fastest of 40 interleaved runs each).
_SLICE_SIZE = 2**16
_skip = contextvars.ContextVar("skip_init", default=False)


@contextlib.contextmanager
def skip_init() -> Iterator[None]:
    """Returns a context manager that replaces random initial values by zeros.

    For models whose weights are all loaded afterwards: sampling initial values
    takes about half of the time of building ViT-B/16. Other threads are not
    affected.
    """
    token = _skip.set(True)
    try:
        yield
    finally:
        _skip.reset(token)


class _NumpyInitializer(keras.initializers.Initializer):
    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        dtype = keras.backend.standardize_dtype(dtype)
        numpy_dtype = "float64" if dtype == "float64" else "float32"
        return ops.convert_to_tensor(self._array(shape, numpy_dtype), dtype)


@keras.saving.register_keras_serializable("keras_vit")
class Constant(_NumpyInitializer):
    """Initializes all elements with one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _array(self, shape: tuple[int, ...], dtype: str) -> Array:
        return np.full(shape, self.value, dtype)

    def get_config(self) -> Config:
        return {"value": self.value}


class _RandomNumpyInitializer(_NumpyInitializer):
    def __init__(self, seed: int | None = None) -> None:
        # The config contains the seed as it was passed, as in Keras's
        # initializers: if it is None, a clone has other initial values.
        self._init_seed = seed
        # From Python's generator, which `keras.utils.set_random_seed` seeds.
        self.seed = random.randint(1, 10**9) if seed is None else seed

    def _array(self, shape: tuple[int, ...], dtype: str) -> Array:
        if _skip.get():
            return np.zeros(shape, dtype)
        values = np.empty(math.prod(shape), dtype)
        slices = range(0, values.size, _SLICE_SIZE)

        def fill(start: int) -> None:
            # With one generator per slice, the values do not depend on the
            # number of threads.
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

    def __init__(self, bound: float, seed: int | None = None) -> None:
        super().__init__(seed)
        self.bound = bound

    def _sample(self, generator: np.random.Generator, out: Array) -> None:
        generator.random(out=out, dtype=out.dtype)
        out *= 2 * self.bound
        out -= self.bound

    def get_config(self) -> Config:
        return {"bound": self.bound, "seed": self._init_seed}


@keras.saving.register_keras_serializable("keras_vit")
class Normal(_RandomNumpyInitializer):
    """Samples from a normal distribution of mean 0; with `truncated`, values
    more than two standard deviations from 0 are sampled again."""

    def __init__(
        self, stddev: float, truncated: bool = False, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        self.stddev = stddev
        self.truncated = truncated

    def _sample(self, generator: np.random.Generator, out: Array) -> None:
        generator.standard_normal(out=out, dtype=out.dtype)
        while self.truncated and (outliers := np.abs(out) > 2).any():
            out[outliers] = generator.standard_normal(outliers.sum(), out.dtype)
        out *= self.stddev

    def get_config(self) -> Config:
        return {
            "stddev": self.stddev,
            "truncated": self.truncated,
            "seed": self._init_seed,
        }


def glorot_uniform(inputs: int, outputs: int) -> Uniform:
    """Returns Glorot's uniform initializer for an `(inputs, outputs)` matrix.

    Keras's own would treat the first axis of a 3-D kernel, such as that of an
    attention projection, as the window of a convolution.
    """
    return Uniform(math.sqrt(6 / (inputs + outputs)))


def lecun_normal(inputs: int) -> Normal:
    """Returns LeCun's truncated normal initializer for a fan-in of `inputs`.

    It is the default of Flax, and so of vit_jax.
    """
    # Truncation multiplies the standard deviation by this factor.
    return Normal(math.sqrt(1 / inputs) / 0.87962566103423978, truncated=True)
