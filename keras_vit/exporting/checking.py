"""Comparison of an exported model with the Keras model."""

import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np

from keras_vit._types import Array

Outputs: TypeAlias = Array | dict[str, Array]
# Batch, height, width and channels of images; None where dynamic.
Shape: TypeAlias = tuple[int | None, int | None, int | None, int]
# A function that applies an exported model to images.
Run: TypeAlias = Callable[[Array], Outputs]

# Tolerances by precision, relative to the largest output or, except for int8,
# to 1 if that is larger.
LIMITS = {"float32": 1e-4, "float64": 1e-4, "int8": 0.25}
HALF_LIMIT = 5e-2  # for float16 and bfloat16
TIMED_CALLS = 10
NUM_AGREEMENT_IMAGES = 64
_BATCH_SIZE = 3  # neither 1 nor a power of two


def image_shapes(shape: Shape, size: tuple[int, int]) -> list[tuple[int, ...]]:
    """Returns shapes of images to test an exported model with, of `size` where
    `shape`, `(batch, height, width, channels)`, is None.

    They include two batch sizes if the batch size is dynamic, and two widths
    if the width is.
    """
    batch, *sides, channels = shape
    sides = [side or other for side, other in zip(sides, size, strict=True)]
    batches = (1, _BATCH_SIZE) if batch is None else (batch,)
    shapes = [(count, *sides, channels) for count in batches]
    if shape[2] is None:
        shapes.append((shapes[0][0], sides[0], 2 * sides[1], channels))
    return shapes


def random_images(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    """Returns random images with values in [-1, 1]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, shape).astype(dtype)


def expected_outputs(
    model: keras.Model, shapes: Sequence[Sequence[int]]
) -> list[tuple[Array, Outputs]]:
    """Returns a pair of random images and Keras outputs for each shape."""
    dtype = model.inputs[0].dtype
    return [
        (images, model.predict_on_batch(images))
        for images in (random_images(shape, dtype) for shape in shapes)
    ]


def _by_name(outputs: Outputs) -> dict[str, Array]:
    """Returns a dict of float32 arrays, with the name "" if there is one."""
    if not isinstance(outputs, dict):
        outputs = {"": outputs}
    elif len(outputs) == 1:
        outputs = {"": next(iter(outputs.values()))}
    return {name: np.asarray(x, "float32") for name, x in outputs.items()}


def compare(
    run: Run, pairs: Sequence[tuple[Array, Outputs]], precision: str
) -> str:
    """Compares the outputs of an exported model with those of Keras, and
    returns the largest absolute difference for each shape.

    `precision` is the model's compute dtype, or "int8".
    """
    differences = []
    for images, outputs in pairs:
        found, outputs = _by_name(run(images)), _by_name(outputs)
        shape = " x ".join(map(str, images.shape))
        shapes = [
            {name: x.shape for name, x in some.items()}
            for some in (found, outputs)
        ]
        if shapes[0] != shapes[1]:
            theirs, ours = (some.get("", some) for some in shapes)
            raise ValueError(
                f"On images of {shape} the exported model gives outputs of "
                f"shape {theirs}, and Keras {ours}. Nothing was written."
            )
        largest = 0.0
        for name, expected in outputs.items():
            difference = np.abs(found[name] - expected).max()
            limit = LIMITS.get(precision, HALF_LIMIT) * max(
                1.0, np.abs(expected).max()
            )
            if precision == "int8":
                limit = LIMITS[precision] * np.abs(expected).max()
            if not difference <= limit:  # also for NaN
                raise ValueError(
                    f"On images of {shape} the exported model differs from "
                    f"Keras by {difference:.2g}{name and f' in {name!r}'}, and "
                    f"{limit:.2g} is allowed. Nothing was written; --no-check "
                    "writes it without this comparison."
                )
            largest = max(largest, difference)
        differences.append(f"{largest:.1e} at {shape}")
    return ", ".join(differences)


def agreement(
    run: Run, model: keras.Model, shape: Sequence[int]
) -> tuple[int, int]:
    """Returns the number of random images to which both models give the same
    top class, and that of all."""
    count, *rest = shape
    same = total = 0
    while total < NUM_AGREEMENT_IMAGES:
        images = random_images((count, *rest), model.inputs[0].dtype, total)
        ours, theirs = map(
            _by_name, (model.predict_on_batch(images), run(images))
        )
        agree = np.ones(count, bool)
        for name, x in ours.items():
            best = x.argmax(-1) == theirs[name].argmax(-1)
            agree &= best.reshape(count, -1).all(-1)
        same += int(agree.sum())
        total += count
    return same, total


def best_time(run: Callable, images: Array) -> float:
    """Returns the time of the fastest of several calls, in seconds."""
    run(images)  # the first call may compile
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        run(images)
        times.append(time.perf_counter() - start)
    return min(times)
