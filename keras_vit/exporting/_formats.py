"""What can be written, from which backend, and how its name ends."""

import dataclasses

import keras

from keras_vit.exporting import _readers
from keras_vit.exporting import _writers

# One file of these holds at most as many bytes.
_FLAT = 2**31


@dataclasses.dataclass(frozen=True)
class Format:
    """A row of `FORMATS`.

    Attributes:
        suffix: String. How the target's name ends; "" is a folder.
        writers: Dict: the function of `_writers` for each backend.
        reader: Function that opens what was written.
        program: What runs it, for people.
        any_size: Backends that leave height and width open.
        quantises: Boolean. Whether its writer makes weights int8; else Keras
            quantises the model before.
        largest: Integer. Bytes that it holds, or None.
    """

    suffix: str
    writers: dict
    reader: object
    program: str
    any_size: tuple = ()
    quantises: bool = False
    largest: int | None = None


FORMATS = {
    "saved_model": Format(
        "",
        dict.fromkeys(("tensorflow", "jax"), _writers.saved_model),
        _readers.saved_model,
        "TensorFlow",
        any_size=("tensorflow", "jax"),
    ),
    "onnx": Format(
        ".onnx",
        {
            "tensorflow": _writers.onnx_of_keras,
            "jax": _writers.onnx_of_keras,
            "torch": _writers.onnx_of_torch,
        },
        _readers.onnx,
        "onnxruntime",
        any_size=("tensorflow",),
        quantises=True,
        largest=_FLAT,
    ),
    "litert": Format(
        ".tflite",
        {"tensorflow": _writers.litert},
        _readers.litert,
        "LiteRT",
        any_size=("tensorflow",),
        quantises=True,
        largest=_FLAT,
    ),
    "torch": Format(
        ".pt2",
        {"torch": _writers.torch_program},
        _readers.torch_program,
        "torch.export",
    ),
}


def format_of(name, target):
    """Returns the name of a format, guessed from the target's if None.

    Raises:
        ValueError: if the name's ending tells none, or another.
    """
    by_suffix = {form.suffix: key for key, form in FORMATS.items()}
    suffix = target.suffix
    known = f"{', '.join(filter(None, by_suffix))} or none for a SavedModel"
    if name is None and suffix not in by_suffix:
        raise ValueError(
            f"TARGET's name ends in {known}, or --format tells its format. "
            f"Received: {str(target)!r}"
        )
    name = name or by_suffix[suffix]
    if suffix in by_suffix and suffix and by_suffix[suffix] != name:
        raise ValueError(
            f"--format {name} and the name {target.name!r} contradict each "
            f"other: {suffix} is {by_suffix[suffix]}."
        )
    # Keras and PyTorch choose by the ending, too.
    if FORMATS[name].suffix != suffix and FORMATS[name].suffix:
        raise ValueError(
            f"The name of a {name} file ends in {FORMATS[name].suffix}. "
            f"Received: {str(target)!r}"
        )
    return name


def writer_of(name):
    """Returns the function that writes a format with this backend.

    Raises:
        ValueError: if the backend has none; says which has.
    """
    backend = keras.config.backend()
    writers = FORMATS[name].writers
    if backend not in writers:
        others = " or ".join(sorted(writers))
        raise ValueError(
            f"{name} is written with {others}, not with {backend}: run this "
            f"with KERAS_BACKEND={sorted(writers)[-1]}. Models are the same "
            "under every backend."
        )
    return writers[backend]


def raise_unless_fits(name, model, shape):
    """Says what a format cannot hold, before any work.

    Args:
        name: String. A key of `FORMATS`.
        model: `keras.Model`.
        shape: Shape of the images, None where it is left open.

    Raises:
        ValueError: if it cannot hold this.
    """
    form, backend = FORMATS[name], keras.config.backend()
    if None in shape[1:3] and backend not in form.any_size:
        able = " or ".join(f"KERAS_BACKEND={x}" for x in form.any_size)
        raise ValueError(
            f"With {backend}, {name} holds a model of one image size: choose "
            "one with --image-size"
            + (f", or run this with {able}." if able else ".")
        )
    size = 4 * model.count_params()
    if form.largest and size >= form.largest:
        raise ValueError(
            f"{name} holds 2 GB, and the weights of {model.name!r} take "
            f"{size / 1e9:.1f}. Write a SavedModel (TARGET without an ending) "
            "or .pt2 instead."
        )
