"""Export of a Keras model to a format that runs without Keras."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit._types import Array
from keras_vit.exporting import checking
from keras_vit.exporting.formats import FORMATS
from keras_vit.exporting.formats import Format
from keras_vit.exporting.formats import check_representable
from keras_vit.exporting.formats import quiet
from keras_vit.exporting.formats import writer_of
from keras_vit.models import Model
from keras_vit.models import inference_model

_SAVED_MODEL_FILE = "saved_model.pb"


def export(
    model: keras.Model,
    target: pathlib.Path,
    name: str,
    shape: checking.Shape,
    size: tuple[int, int],
    int8: bool = False,
    check: bool = True,
    log: Callable[[str], Any] = print,
) -> None:
    """Exports a model to the format `name`, and compares its outputs with those
    of Keras on images of `size` where `shape` is dynamic.

    The exported model has the names of the outputs. `target` is replaced if it
    exists, and not changed if anything fails.
    """
    check_representable(name, model, shape)
    spec, write = FORMATS[name], writer_of(name)
    log(
        f"writing  {name} with {keras.config.backend()}, images "
        + " x ".join("any" if n is None else str(n) for n in shape)
    )
    whole, model = model, inference_model(model)
    shapes = checking.image_shapes(shape, size) if check else []
    pairs = checking.expected_outputs(model, shapes)
    source = model
    if int8 and not spec.quantizes:
        source = inference_model(_quantized(whole))
    with _replacing(target, spec.second) as temporary:
        with _explained(f"{keras.config.backend()} could not write", name):
            write(source, temporary, shape, int8)
        if check:
            backend = keras.config.backend()
            with _explained(f"{spec.program} could not run {backend}'s", name):
                run = spec.reader(temporary)
                run(pairs[0][0])
            _check(run, spec, model, pairs, int8, log)
    megabytes = _size_of(target, spec) / 1e6
    log(
        f"wrote    {target} ({megabytes:.2f} MB; the weights in float32 are "
        f"{4 * model.count_params() / 1e6:.2f})"
    )


def with_softmax(model: keras.Model) -> keras.Model:
    """Returns a model with a softmax layer after a model's logits."""
    output, last = model.outputs[0], model.layers[-1]
    activation = getattr(last, "activation", None)
    if activation in (keras.activations.softmax, keras.activations.sigmoid):
        raise ValueError(
            f"--softmax: the model's last layer, {last.name!r}, has the "
            f"activation {keras.activations.serialize(activation)} already."
        )
    if len(output.shape) != 2 or len(model.outputs) > 1:
        shapes = ", ".join(str(x.shape) for x in model.outputs)
        raise ValueError(
            "--softmax needs a model that outputs logits of shape (batch, "
            f"classes). Received: output shape {shapes}"
        )
    layer = keras.layers.Softmax(name="probabilities")
    return Model(model.inputs, layer(output), name=model.name)


@contextlib.contextmanager
def _explained(problem: str, name: str) -> Iterator[None]:
    """Raises errors of other libraries with the other backends of a format."""
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:  # each library raises other types
        first = str(error).strip().partition("\n")[0]
        message = f"{problem} {name}: {type(error).__name__}: {first}"
        others = sorted(FORMATS[name].writers.keys() - {keras.config.backend()})
        if others:
            message += (
                ". A .keras file is the same for every backend: export it with "
                + " or ".join(f"KERAS_BACKEND={other}" for other in others)
                + "."
            )
        raise ValueError(message) from error


def _quantized(model: keras.Model) -> keras.Model:
    """Returns a copy of a model with dense weights in int8."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    with quiet():  # warnings about layers that cannot be quantized
        copy.quantize("int8")
    return copy


def _check(
    run: checking.Run,
    spec: Format,
    model: keras.Model,
    pairs: list[tuple[Array, checking.Outputs]],
    int8: bool,
    log: Callable[[str], Any],
) -> None:
    """Compares an exported model with Keras's, and reports the differences."""
    precision = "int8" if int8 else model.layers[-1].compute_dtype
    log(f"checked  difference {checking.compare(run, pairs, precision)}")
    images = pairs[0][0]
    if int8:
        same, total = checking.agreement(run, model, pairs[-1][0].shape)
        log(f"int8     same top class on {same} of {total} random images")
    both = (model.predict_on_batch, run)
    times = [1000 * checking.best_time(call, images) for call in both]
    log(
        f"latency  batch of {len(images)}: {times[1]:.2f} ms with "
        f"{spec.program}, {times[0]:.2f} ms with Keras on "
        f"{keras.config.backend()} (best of {checking.TIMED_CALLS})"
    )


def check_target(
    target: pathlib.Path, is_folder: bool, overwrite: bool
) -> None:
    """Raises a `ValueError` unless a target can be written, or replaced."""
    kind = "folder" if is_folder else "file"
    if target.exists() and target.is_dir() != is_folder:
        raise ValueError(
            f"TARGET {str(target)!r} exists and is not a {kind}, which this "
            "format needs."
        )
    if target.exists() and not overwrite:
        raise ValueError(
            f"TARGET {str(target)!r} exists. Choose another name, or replace "
            "it with --overwrite."
        )
    if target.is_dir() and any(target.iterdir()):
        if not (target / _SAVED_MODEL_FILE).is_file():
            raise ValueError(
                f"The folder {str(target)!r} is not a SavedModel. --overwrite "
                "would delete its content: choose another TARGET."
            )
    if not target.absolute().parent.is_dir():
        raise ValueError(
            f"There is no folder {str(target.parent)!r} to write "
            f"{target.name!r} in. Make it first."
        )
    if not os.access(target.absolute().parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"TARGET cannot be written: {str(target.absolute().parent)!r} is "
            "read-only, or owned by another user."
        )


@contextlib.contextmanager
def _replacing(
    target: pathlib.Path, second: str | None = None
) -> Iterator[pathlib.Path]:
    """Yields a temporary path, which replaces `target` if the body succeeds.

    If the format has a `second` file, this is replaced first.
    """
    # With the same suffix, by which some writers choose the format.
    new, old = (
        target.with_name(f".{target.stem}-{os.getpid()}{part}{target.suffix}")
        for part in ("", "-old")
    )
    try:
        yield new
        if second:
            os.replace(new.with_suffix(second), target.with_suffix(second))
        if target.is_dir():  # a folder cannot replace another one
            os.replace(target, old)
        try:
            os.replace(new, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        for path in (new, old):
            _remove(path)
        if second:
            _remove(new.with_suffix(second))


def _size_of(target: pathlib.Path, spec: Format) -> int:
    """Returns the size of the files of a target, in bytes."""
    folder = target.is_dir()
    files = target.rglob("*") if folder else spec.files(target)
    return sum(file.stat().st_size for file in files if file.is_file())


def _remove(path: pathlib.Path) -> None:
    """Deletes a file or a folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
