"""Runs a converted file and what it was made from on the same images."""

import math
import pathlib

import numpy as np

from keras_vit.checkpoints import open_checkpoint
from keras_vit.checkpoints._keras_files import is_keras
from keras_vit.checkpoints.formats import LAYOUTS
from keras_vit.checkpoints.formats import RESNET_CONSTANTS
from keras_vit.checkpoints.formats.reference import ReferenceNotInstalled
from keras_vit.checkpoints.formats.reference import ReferenceUnavailable
from keras_vit.checkpoints.formats.reference import reference_model
from keras_vit.checkpoints.infer import stride as resnet_stride

BATCH, SEED = 2, 0
# Relative to the largest output. float32: two programs that add up in another
# order differ by some 1e-6 here, and a wrong epsilon or GELU by 1e-4 or more.
# Half precision: weights are rounded by up to half an epsilon, 2**-8 and
# 2**-11, and the outputs of some ten blocks by several times that.
TOLERANCE = 3e-5
HALF = {"bfloat16": 10 * 2**-8, "float16": 10 * 2**-11}
# What the target's reader must be told where its layout means something else.
_SAID = (
    "num_heads",
    "grid_size",
    "position_prefix",
    "class_token",
    "activation",
    "norm_epsilon",
    "resampling",
    *RESNET_CONSTANTS["bit"],
)


def verify(source, target, layout=None, to=None, settings=None, dtype=None):
    """Returns `(text, same, complete)`: a table of largest differences;
    whether all are within tolerance; and False if an original library that can
    be installed is not there or does not work.

    Args:
        source: Path of what was converted.
        target: Path of what was written.
        layout: Name of the source's layout; None finds it.
        to: Name of the target's; None finds it.
        settings: Dict of arguments of `VisionTransformer`, as in `convert`.
        dtype: What the arrays were rounded to, or None.

    Raises:
        ValueError: if either file is of no model that can be built.
    """
    try:
        import torch  # noqa: F401  (behind TensorFlow it crashes some builds)
    except ImportError:
        pass
    import keras

    from keras_vit.converters import load

    settings = settings or {}
    source, target = pathlib.Path(source), pathlib.Path(target)
    old = open_checkpoint(source, layout, settings.get("num_heads"))
    told = {**old.arguments(settings.get("grid_size")), **settings}
    ours = load(source, layout, **settings)
    shape = _image_shape(ours, told)
    images = np.random.default_rng(SEED).uniform(-1, 1, (BATCH, *shape))
    images = images.astype("float32")
    rows = []
    if is_keras(target):
        theirs = load(target)
        new = open_checkpoint(target)
    else:
        said = {name: told[name] for name in _SAID if told.get(name)}
        if told["classes"] is not None and "pooling" in told:
            said["pooling"] = told["pooling"]
        said |= {"input_shape": shape, **settings}
        theirs = load(target, to, **said)
        new = open_checkpoint(target, to, told["num_heads"])
    before = _outputs(ours, images)
    after = _outputs(theirs, images)
    tolerance = HALF.get(dtype, TOLERANCE) if _narrows(old, dtype) else 0
    tolerance = tolerance or TOLERANCE
    rows.append(_row(f"{target.name} in keras_vit", after, before, tolerance))
    output = _output(ours, told)
    complete, unverified = True, []
    for checkpoint, found in ((old, before), (new, after)):
        if checkpoint.layout == "keras":
            continue
        name = pathlib.Path(checkpoint.path).name
        try:
            row = _original(checkpoint, told, output, images, found)
        except ReferenceUnavailable as error:
            complete &= not isinstance(error, ReferenceNotInstalled)
            unverified.append(
                f"not verified in the original library: {name} "
                f"({checkpoint.layout}): {error}"
            )
            row = f"{name} in {checkpoint.layout}", None, None, "not run"
        rows.append(row)
    size = " x ".join(map(str, shape))
    lines = [
        f"{BATCH} random images of {size} (seed {SEED}), {output}, "
        f"Keras on {keras.backend.backend()}",
        *_table(rows),
        *unverified,
    ]
    same = all(row[3] != "DIFFERS" for row in rows)
    return "\n".join(lines), same, complete


def _outputs(model, images):
    import keras

    outputs = model(images, training=False)
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


def _image_shape(model, told):
    """The saved model's own size; where it takes any, that of the grid."""
    height, width, channels = model.input_shape[1:]
    if told.get("grid_size"):
        grid, patch = told["grid_size"], told["patch_size"]
        if "resnet_layers" in told:
            stride = resnet_stride(told["resnet_layers"])
            patch = tuple(stride * size for size in patch)
    else:
        grid, patch = (224, 224), (1, 1)
    return (
        height or grid[0] * patch[0],
        width or grid[1] * patch[1],
        channels,
    )


def _output(model, told):
    names = {layer.name for layer in model.layers}
    if "head" in names:
        return "logits"
    return "pooled" if "pooling" in names else "tokens"


def _narrows(checkpoint, dtype):
    first = next(iter(checkpoint.weights.values()))
    return dtype is not None and str(first.dtype) not in HALF


def _row(name, found, expected, tolerance):
    """`(name, largest difference, tolerance, verdict)`."""
    limit = tolerance * max(1.0, float(np.abs(expected).max()))
    if found.shape != expected.shape:
        return name, math.nan, limit, "DIFFERS"
    error = float(np.abs(found - expected).max())
    return name, error, limit, "same" if error <= limit else "DIFFERS"


def _original(checkpoint, told, output, images, found):
    name = pathlib.Path(checkpoint.path).name
    try:
        library, run = reference_model(
            LAYOUTS[checkpoint.layout],
            checkpoint,
            told,
            output,
            images.shape[1:3],
        )
    except RuntimeError as error:  # PyTorch's, of a file it does not take
        reason = " ".join(str(error).split())[:200]
        name = f"{name} in {checkpoint.layout}: {reason}"
        return name, None, None, "DIFFERS"
    return _row(f"{name} in {library}", run(images), found, TOLERANCE)


def _table(rows):
    width = max(len(row[0]) for row in rows)
    yield f"{'':{width}}  difference  tolerance"
    for name, error, limit, verdict in rows:
        figures = f"{'':21}"
        if error is not None:
            figures = f"{error:10.1e}  {limit:9.1e}"
        yield f"{name:{width}}  {figures}  {verdict}"
