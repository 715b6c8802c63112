"""Loading of untrusted `.keras` files by Keras."""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.utils.text import printable
from keras_vit.utils.types import Config, StrPath
from keras_vit.weights.files.keras import check_config, check_is_safe, limits_of

_lock = threading.RLock()
# Keras also makes variables that files lack: of LoRA, optimizers and metrics.
_MORE_VARIABLES = 256


def load_keras_file(path: StrPath) -> keras.Model:
    """Loads a whole model by Keras, after checks of what Keras will do.

    In this file alone, Keras reads a file or its config. A `ValueError`
    refuses a file that is damaged, names code or other files, or describes a model that
    is larger than its arrays.
    """
    limits = check_is_safe(path, keras.saving.get_registered_object)
    with _building(path, limits):
        return keras.models.load_model(path, safe_mode=True)


def build_of_config(path: StrPath, config: Config, arrays: int) -> keras.Model:
    """Builds the model of a file's config without its weights, of which the file has
    `arrays`, after the same checks. Keras takes three times as long to read them as
    `load_weights` to assign them."""
    check_config(path, config, keras.saving.get_registered_object)
    with _building(path, limits_of(path, arrays)):
        return keras.saving.deserialize_keras_object(config, safe_mode=True)


@contextlib.contextmanager
def _building(path: StrPath, limits: tuple[int, int]) -> Iterator[None]:
    """Raises a `ValueError` for a model that Keras cannot build, or not within its
    limits."""
    try:
        with _limit_variables(*limits):
            yield
    except (MemoryError, OSError):
        raise
    except Exception as error:  # Keras raises many types for a wrong config
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{str(path)!r} cannot be loaded. {printable(lines[0])}"
        ) from error


@contextlib.contextmanager
def _limit_variables(arrays: int, num_bytes: int) -> Iterator[None]:
    """Refuses variables beyond those of a file of `arrays` arrays, or beyond
    `num_bytes`, before Keras allocates them."""
    create, thread = keras.Variable.__init__, threading.get_ident()
    count, values = 4 * arrays + _MORE_VARIABLES, num_bytes // 4

    def limited(
        self: Any,
        initializer: Any,
        shape: Any = None,
        *args: Any,
        **options: Any,
    ) -> None:
        nonlocal count, values
        if threading.get_ident() == thread:
            count -= 1
            values -= abs(math.prod(shape or ()))
            if min(count, values) < 0:
                raise ValueError(
                    "Its config describes a model that is larger than the "
                    f"{arrays:,} arrays of the file: a variable would have the "
                    f"shape {tuple(shape or ())}."
                )
        create(self, initializer, shape, *args, **options)

    with _lock:
        keras.Variable.__init__ = limited
        try:
            yield
        finally:
            keras.Variable.__init__ = create
