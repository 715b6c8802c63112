"""Whether what was written computes what the model does."""

import time

import numpy as np

# Of the largest output, or of 1 where all are smaller.
LIMITS = {"float32": 1e-4, "float64": 1e-4, "int8": 0.25}
HALF = 5e-2
ROUNDS = 10
_SEVERAL = 3  # a batch that is no power of two
_SHOWN = 64  # images on which int8 is asked for the same class


def cases(shape, size):
    """Returns the shapes of images to run: two batches and two sizes, where
    they are left open.

    Args:
        shape: `(batch, height, width, channels)`, None where it is open.
        size: `(height, width)` to take for an open one.
    """
    batch, *sides, channels = shape
    sides = [side or other for side, other in zip(sides, size, strict=True)]
    batches = (1, _SEVERAL) if batch is None else (batch,)
    shapes = [(count, *sides, channels) for count in batches]
    if shape[2] is None:
        shapes.append((shapes[0][0], sides[0], 2 * sides[1], channels))
    return shapes


def images_of(shape, dtype, seed=0):
    """Returns random images in [-1, 1]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, shape).astype(dtype)


def expected(model, shapes):
    """Runs the model under Keras.

    Returns:
        A list of pairs of images and outputs.
    """
    dtype = model.inputs[0].dtype
    return [
        (images, np.asarray(model.predict_on_batch(images), "float32"))
        for images in (images_of(shape, dtype) for shape in shapes)
    ]


def compare(run, pairs, kind):
    """Runs what was written on the same images.

    Args:
        run: Function of images.
        pairs: What `expected` returned.
        kind: String. The model's compute type, or "int8".

    Returns:
        Text: the largest difference for each shape.

    Raises:
        ValueError: if one is too large.
    """
    said = []
    for images, outputs in pairs:
        found = np.asarray(run(images), "float32")
        what = " x ".join(map(str, images.shape))
        if found.shape != outputs.shape:
            raise ValueError(
                f"On images of {what} the exported model gives outputs of "
                f"shape {found.shape}, and Keras {outputs.shape}. Nothing was "
                "written."
            )
        difference = np.abs(found - outputs).max()
        limit = LIMITS.get(kind, HALF) * max(1.0, np.abs(outputs).max())
        if kind == "int8":
            limit = LIMITS[kind] * np.abs(outputs).max()
        if not difference <= limit:  # also if it is no number
            raise ValueError(
                f"On images of {what} the exported model differs from Keras "
                f"by {difference:.2g}, and {limit:.2g} is allowed. Nothing "
                "was written; --no-check writes it nevertheless."
            )
        said.append(f"{difference:.1e} at {what}")
    return ", ".join(said)


def agreement(run, model, shape):
    """Returns of how many images the largest output is the same one."""
    count, *rest = shape
    same = total = 0
    while total < _SHOWN:
        images = images_of((count, *rest), model.inputs[0].dtype, total)
        pair = (np.asarray(model.predict_on_batch(images)), run(images))
        best = [np.asarray(x).argmax(-1).reshape(count, -1) for x in pair]
        same += int((best[0] == best[1]).all(-1).sum())
        total += count
    return same, total


def seconds(run, images):
    """Returns the fastest call of several."""
    run(images)  # which may compile
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run(images)
        times.append(time.perf_counter() - start)
    return min(times)
