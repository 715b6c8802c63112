"""Comparison of the outputs of files that were written with those of their source."""

import logging
import math
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_vit import converters
from keras_vit.config import stride
from keras_vit.families import build
from keras_vit.hub import KERAS, TIMM, TRANSFORMERS, WEIGHTS
from keras_vit.models import without_preprocessing
from keras_vit.models.graph import heads_of
from keras_vit.models.keras_file import load_keras_file
from keras_vit.utils.types import Array, Config, StrPath, Tensor
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.files.keras import is_keras
from keras_vit.weights.formats import FORMATS, RESNET_CONSTANTS
from keras_vit.weights.formats.format import image_size
from keras_vit.weights.writing import write_checkpoint
from keras_vit_programs.references import (
    REFERENCES,
    ReferenceNotInstalled,
    ReferenceUnavailable,
    build_reference,
    explain_import_error,
    output_of,
    quiet_transformers,
)

# Name, largest difference, tolerance, verdict.
Row: TypeAlias = tuple[str, float | None, float | None, str]
BATCH, SEED = 2, 0
# Tolerances, relative to the largest output. In float32, programs that sum in
# different orders differ by about 1e-6, and those with a different epsilon or
# GELU by 1e-4 or more. In half precision, weights are rounded by up to half a
# machine epsilon, 2**-8 for bfloat16 and 2**-11 for float16, and outputs of
# some ten blocks differ by several times that.
TOLERANCE = 3e-5
HALF_TOLERANCES = {"bfloat16": 10 * 2**-8, "float16": 10 * 2**-11}
# Passed explicitly to load the target, whose format may have other defaults.
EXPLICIT_ARGUMENTS = (
    "num_heads",
    "grid_size",
    "position_prefix",
    "class_token",
    "activation",
    "norm_epsilon",
    "resampling",
    "rope_base",
    *RESNET_CONSTANTS["bit"],
)


def verify(
    source: StrPath,
    target: StrPath,
    format: str | None = None,
    to: str | None = None,
    settings: Config | None = None,
    dtype: str | None = None,
) -> tuple[str, bool, bool]:
    """Runs a converted file and its source on the same images, and returns a
    table of the largest differences, whether all are within tolerance, and
    whether every original library that can be installed was run.

    Each is run by this package and, if it is installed, by the original library
    of its format. The source's weights also run in every other original library
    that is installed and has such a model.
    """
    settings = dict(settings or {})
    base = settings.pop("base", None)
    source, target = pathlib.Path(source), pathlib.Path(target)
    old = open_checkpoint(source, format, settings.get("num_heads"), base=base)
    arguments = {**old.arguments(settings), **settings}
    # Other code bases return logits.
    logits = {}
    if old.build_arguments.get("classifier_activation"):
        logits["classifier_activation"] = None
    load = build if old.is_dense else converters.load
    source_model = load(old, **settings, **logits)
    shape = _image_shape(source_model, arguments)
    images = np.random.default_rng(SEED).uniform(-1, 1, (BATCH, *shape))
    images = images.astype("float32")
    rows = []
    if is_keras(target):
        new = open_checkpoint(target)
        target_model = load(new, **logits)
    elif old.is_dense:
        new = open_checkpoint(target, to)
        target_model = build(new)
    else:
        explicit = {
            name: arguments[name] for name in EXPLICIT_ARGUMENTS if arguments.get(name)
        }
        new = open_checkpoint(target, to, arguments["num_heads"])
        both = vars(new.config).get("pooling") == "token_gap"  # seen in the kernel
        if arguments["classes"] is not None and "pooling" in arguments and not both:
            explicit["pooling"] = arguments["pooling"]
        explicit |= {"input_shape": shape, **settings, **logits}
        target_model = converters.load(target, to, **explicit)
    before = _outputs(source_model, images)
    after = _outputs(target_model, images)
    tolerance = TOLERANCE
    first = next(iter(old.weights.values()))
    if dtype is not None and str(first.dtype) not in HALF_TOLERANCES:
        tolerance = HALF_TOLERANCES.get(dtype, TOLERANCE)
    rows.append(compare(f"{target.name} in keras_vit", after, before, tolerance))
    if old.is_dense:
        text = "not verified in the original library: it is run for classifiers alone"
        return "\n".join([*table(rows), text]), rows[0][3] != "DIFFERS", True
    output = output_name(source_model)
    complete, unverified = True, []
    for checkpoint, found in ((old, before), (new, after)):
        # An adapter is in no file of its base's library.
        if checkpoint.format == "keras" or (base and checkpoint is old):
            continue
        name = pathlib.Path(checkpoint.path).name
        try:
            row = _run_original(checkpoint, arguments, output, images, found)
        except ReferenceUnavailable as error:
            complete &= not isinstance(error, ReferenceNotInstalled)
            unverified.append(
                f"not verified in the original library: {name} "
                f"({checkpoint.format}): {error}"
            )
            row = f"{name} in {checkpoint.format}", None, None, "not run"
        rows.append(row)
    # Formats may share a library, and so the function that runs it.
    tried = [REFERENCES.get(checkpoint.format) for checkpoint in (old, new)]
    for format, reference in REFERENCES.items():
        if reference in tried:
            continue
        row = _run_elsewhere(old, arguments, format, output, images, before)
        if row:
            rows.append(row)
            tried.append(reference)
    size, epsilon = " x ".join(map(str, shape)), arguments.get("norm_epsilon")
    lines = [
        f"{BATCH} random images of {size} (seed {SEED}), {output}, "
        f"Keras on {keras.backend.backend()}",
        f"each library computes with the options of {str(source)!r}"
        + (f", such as norm_epsilon={epsilon:g}" if epsilon else ""),
        *table(rows),
        *unverified,
    ]
    same = all(row[3] != "DIFFERS" for row in rows)
    return "\n".join(lines), same, complete


def _outputs(model: Any, images: Array) -> Array:
    outputs = keras.tree.map_structure(
        lambda x: keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")),
        model(images, training=False),
    )
    if not isinstance(outputs, dict):
        return outputs
    return np.concatenate([outputs[name].ravel() for name in sorted(outputs)])


def _image_shape(model: Any, arguments: Config) -> tuple[int, int, int]:
    """Returns the shape of images for a model.

    Where the model accepts any size, it is that of the checkpoint's grid of
    positions, or 224 x 224 pixels without one.
    """
    height, width, channels = model.input_shape[1:]
    if arguments.get("grid_size"):
        grid, patch = arguments["grid_size"], arguments["patch_size"]
        if "resnet_layers" in arguments:
            pixels = stride(arguments["resnet_layers"])
            patch = tuple(pixels * size for size in patch)
    else:
        grid, patch = (224, 224), (1, 1)
    return (
        height or grid[0] * patch[0],
        width or grid[1] * patch[1],
        channels,
    )


def output_name(model: Any) -> str:
    """Returns what a model returns: "logits", "pooled" or "tokens"."""
    if any(layer.name == "head" for layer in model.layers):
        return "logits"
    return "pooled" if len(model.output.shape) == 2 else "tokens"


def compare(name: str, found: Array, expected: Array, tolerance: float) -> Row:
    """Returns `(name, largest difference, tolerance, verdict)`."""
    limit = tolerance * max(1.0, float(np.abs(expected).max()))
    if found.shape != expected.shape:
        return name, math.nan, limit, "DIFFERS"
    error = float(np.abs(found - expected).max())
    return name, error, limit, "same" if error <= limit else "DIFFERS"


def _run_original(
    checkpoint: Checkpoint,
    arguments: Config,
    output: str,
    images: Array,
    found: Array,
) -> Row:
    """Runs a checkpoint in its original library."""
    name, a = pathlib.Path(checkpoint.path).name, arguments
    shape = images.shape[1:3]
    if "resnet_layers" in a:
        raise ReferenceUnavailable(
            "ResNets and hybrids are not built there from a file"
        )
    if a["position_embedding"] == "rope":  # of images of any size
        pairs = zip(shape, a["patch_size"], strict=True)
        a = {**a, "grid_size": tuple(size // patch for size, patch in pairs)}
    if not a.get("grid_size") or image_size(a) != shape:
        raise ReferenceUnavailable("the images are not of the size of its positions")
    try:
        library, run = build_reference(checkpoint, a, output)
    except (ImportError, RuntimeError) as error:
        try:
            reason = explain_import_error(error)
        except RuntimeError as cause:  # of PyTorch: the weights do not fit
            reason = " ".join(str(cause).split())[:200]
            name = f"{name} in {checkpoint.format}: {reason}"
            return name, None, None, "DIFFERS"
        raise ReferenceNotInstalled(reason) from error
    import torch

    with torch.no_grad():
        batch = torch.tensor(images).permute(0, 3, 1, 2)
        outputs = run(batch).float().cpu().numpy()
    return compare(f"{name} in {library}", outputs, found, TOLERANCE)


def _run_elsewhere(
    checkpoint: Checkpoint,
    arguments: Config,
    format: str,
    output: str,
    images: Array,
    found: Array,
) -> Row | None:
    """Runs a checkpoint's model in another original library; None if it is not
    installed or has no such model."""
    if (output == "logits") == (arguments["classes"] is None):
        return None  # a new head
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the temporary file
        suffix = "" if FORMATS[format].folder_files else ".safetensors"
        target = pathlib.Path(folder) / f"{format}{suffix}"
        try:
            write_checkpoint(checkpoint.weights, arguments, target, format)
        except ValueError:  # the code base has no such model
            return None
        written = open_checkpoint(target, format, arguments["num_heads"])
        try:
            row = _run_original(written, arguments, output, images, found)
        except ReferenceUnavailable:
            return None
    library = row[0].partition(" in ")[2]
    name = f"{pathlib.Path(checkpoint.path).name}, as {format}, in {library}"
    return (name, *row[1:])


def table(rows: list[Row]) -> Iterator[str]:
    """Yields lines that show rows."""
    width = max(len(name) for name, *_ in rows)
    yield f"{'':{width}}  difference  tolerance"
    for name, error, limit, verdict in rows:
        figures = f"{'':21}"
        if error is not None:
            figures = f"{error:10.1e}  {limit:9.1e}"
        yield f"{name:{width}}  {figures}  {verdict}"


def verify_folder(folder: StrPath) -> tuple[str, bool, bool]:
    """Runs the model of a folder for the hub in each library on the same random images.

    Args:
        folder: String or path of a folder that `hub.save` wrote.

    Returns:
        `(table, same, complete)`: string, one line per library; boolean,
        whether all outputs are the same within 3e-5 of the largest; boolean,
        False if a library is not installed or does not work.
    """
    folder = pathlib.Path(folder).expanduser()
    reference = _of_logits(without_preprocessing(converters.load(folder)))
    shape = reference.input_shape[1:]
    shape = tuple(size or 224 for size in shape)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *shape))
    images = images.astype("float32")
    expected = keras.ops.convert_to_numpy(reference(images, training=False))
    output = output_name(reference)
    rows, complete = [], True
    for library, run in (
        (KERAS, _run_keras),
        (TIMM, _run_timm),
        (TRANSFORMERS, _run_transformers),
    ):
        if not (folder / WEIGHTS[library]).exists():
            rows.append((library, None, None, "not in the folder"))
            continue
        try:
            found = run(folder, images, output)
        except (ImportError, RuntimeError) as error:
            reason = explain_import_error(error)
            rows.append((library, None, None, f"not run: {reason}"))
            complete = False
            continue
        tolerance = TOLERANCE
        rows.append(compare(library, found, expected, tolerance))
    title = f"difference from keras_vit on {len(images)} random images"
    same = all(verdict != "DIFFERS" for *_, verdict in rows)
    return "\n".join([title, *table(rows)]), same, complete


def _run_keras(folder: pathlib.Path, images: Array, output: str) -> Array:
    model = without_preprocessing(load_keras_file(folder / WEIGHTS[KERAS]))
    return keras.ops.convert_to_numpy(_of_logits(model)(images, training=False))


def _of_logits(model: keras.Model) -> keras.Model:
    """Removes the activations of the heads, which only Keras's file has."""
    for head in heads_of(model):
        head.activation = keras.activations.linear
    return model


def _run_timm(folder: pathlib.Path, images: Array, output: str) -> Array:
    import timm as library

    # It warns that the folder has the files of other libraries, too.
    logging.getLogger("timm").setLevel(logging.ERROR)
    model: Any = library.create_model(f"local-dir:{folder}", pretrained=True)
    model.eval()
    run = model.forward_features if output == "tokens" else model
    return _run_torch(run, images)


def _run_transformers(folder: pathlib.Path, images: Array, output: str) -> Array:
    transformers = quiet_transformers()
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    build = getattr(transformers, config.architectures[0])
    model = build.from_pretrained(folder).eval()
    return _run_torch(lambda batch: output_of(model(batch), output), images)


def _run_torch(run: Callable[[Tensor], Tensor], images: Array) -> Array:
    import torch

    with torch.no_grad():
        return run(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
