"""Comparison of an exported model with the Keras model."""

import time

import numpy as np

# Tolerances by precision, relative to the largest output or, except for int8,
# to 1 if that is larger.
LIMITS = {"float32": 1e-4, "float64": 1e-4, "int8": 0.25}
HALF_LIMIT = 5e-2  # for float16 and bfloat16
TIMED_CALLS = 10
NUM_AGREEMENT_IMAGES = 64
_BATCH_SIZE = 3  # neither 1 nor a power of two


def image_shapes(shape, size):
    """Returns the shapes of images to test an exported model with.

    They include two batch sizes if the batch size is dynamic, and two widths
    if the width is.

    Args:
        shape: `(batch, height, width, channels)`, None where dynamic.
        size: `(height, width)` to use where `shape` is dynamic.
    """
    batch, *sides, channels = shape
    sides = [side or other for side, other in zip(sides, size, strict=True)]
    batches = (1, _BATCH_SIZE) if batch is None else (batch,)
    shapes = [(count, *sides, channels) for count in batches]
    if shape[2] is None:
        shapes.append((shapes[0][0], sides[0], 2 * sides[1], channels))
    return shapes


def random_images(shape, dtype, seed=0):
    """Returns random images with values in [-1, 1]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, shape).astype(dtype)


def expected_outputs(model, shapes):
    """Returns a pair of random images and Keras outputs for each shape."""
    dtype = model.inputs[0].dtype
    return [
        (images, np.asarray(model.predict_on_batch(images), "float32"))
        for images in (random_images(shape, dtype) for shape in shapes)
    ]


def compare(run, pairs, precision):
    """Compares the outputs of the exported model with those of Keras.

    Args:
        run: Function that applies the exported model to an array of images.
        pairs: The output of `expected_outputs`.
        precision: String. The model's compute dtype, or "int8".

    Returns:
        String. The largest absolute difference for each shape.

    Raises:
        ValueError: if a shape differs, or a difference exceeds its limit.
    """
    differences = []
    for images, outputs in pairs:
        found = np.asarray(run(images), "float32")
        shape = " x ".join(map(str, images.shape))
        if found.shape != outputs.shape:
            raise ValueError(
                f"On images of {shape} the exported model gives outputs of "
                f"shape {found.shape}, and Keras {outputs.shape}. Nothing was "
                "written."
            )
        difference = np.abs(found - outputs).max()
        limit = LIMITS.get(precision, HALF_LIMIT) * max(
            1.0, np.abs(outputs).max()
        )
        if precision == "int8":
            limit = LIMITS[precision] * np.abs(outputs).max()
        if not difference <= limit:  # also for NaN
            raise ValueError(
                f"On images of {shape} the exported model differs from Keras "
                f"by {difference:.2g}, and {limit:.2g} is allowed. Nothing "
                "was written; --no-check writes it without this comparison."
            )
        differences.append(f"{difference:.1e} at {shape}")
    return ", ".join(differences)


def agreement(run, model, shape):
    """Counts random images to which both models give the same top class.

    Args:
        run: As in `compare`.
        model: The Keras model.
        shape: Shape of a batch of images.

    Returns:
        Numbers of images: `(agreeing, total)`.
    """
    count, *rest = shape
    same = total = 0
    while total < NUM_AGREEMENT_IMAGES:
        images = random_images((count, *rest), model.inputs[0].dtype, total)
        pair = (np.asarray(model.predict_on_batch(images)), run(images))
        best = [np.asarray(x).argmax(-1).reshape(count, -1) for x in pair]
        same += int((best[0] == best[1]).all(-1).sum())
        total += count
    return same, total


def best_time(run, images):
    """Returns the time of the fastest of several calls, in seconds."""
    run(images)  # the first call may compile
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        run(images)
        times.append(time.perf_counter() - start)
    return min(times)
