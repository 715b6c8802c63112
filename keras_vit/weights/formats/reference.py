"""Helpers to run a checkpoint in its original library (`--verify`).

`Format.reference` is a function that takes a `Checkpoint`, the arguments of
`VisionTransformer` and the name of an output ("logits", "pooled" or "tokens").
It returns the library's name and version, and a function of a PyTorch batch of
shape `(batch, channels, height, width)`. Libraries are imported inside
functions, since converting does not need them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit.weights.files import read
from keras_vit.weights.formats.format import Checkpoint
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.format import ReferenceNotInstalled
from keras_vit.weights.formats.format import ReferenceUnavailable


def reference_model(
    code_base: Format,
    checkpoint: Checkpoint,
    arguments: Config,
    output: str,
    image_shape: tuple[int, int],
) -> tuple[str, Callable[[Array], Array]]:
    """Builds the checkpoint's model in its original library, and returns the
    library's name and version, and a function of images
    `(batch, height, width, channels)`."""
    if "resnet_layers" in arguments:
        raise ReferenceUnavailable(
            "ResNets and hybrids are not built there from a file"
        )
    if arguments["position_embedding"] == "rope":  # of images of any size
        pairs = zip(image_shape, arguments["patch_size"], strict=True)
        grid = tuple(size // patch for size, patch in pairs)
        arguments = {**arguments, "grid_size": grid}
    if not arguments.get("grid_size") or image_size(arguments) != image_shape:
        raise ReferenceUnavailable(
            "the images are not of the size of its positions"
        )
    try:
        import torch

        name, run = code_base.reference(checkpoint, arguments, output)
    except (ImportError, RuntimeError) as error:
        raise ReferenceNotInstalled(explain_import_error(error)) from error

    def on_images(images: Array) -> Array:
        batch = torch.tensor(images).permute(0, 3, 1, 2)
        with torch.no_grad():
            return run(batch).float().cpu().numpy()

    return name, on_images


def image_size(arguments: Config) -> tuple[int, int]:
    """Returns the `(height, width)` in pixels that the position grid covers."""
    (rows, columns), (height, width) = (
        arguments["grid_size"],
        arguments["patch_size"],
    )
    return rows * height, columns * width


def load_state_dict(
    model: Any, checkpoint: Checkpoint, renamed: dict[str, str] | None = None
) -> None:
    """Loads a checkpoint's file into a PyTorch model; sets evaluation mode.

    PyTorch raises an error for missing and unexpected keys.
    """
    import torch

    state = {}
    for key, array in read(checkpoint.path).items():
        for old, new in (renamed or {}).items():
            key = key.replace(old, new)
        state[key] = torch.tensor(np.asarray(array, "float32"))
    model.load_state_dict(state, strict=True)
    model.eval()


def explain_import_error(error: BaseException) -> str:
    """Returns a message about a failed import of a library, with its remedy."""
    while error.__cause__ is not None:  # transformers wraps the error
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        return f"{name} is not installed: pip install {name}"
    if "torchvision::" in str(error):  # a RuntimeError or an ImportError
        return (
            f"torchvision was built for another PyTorch ({error}): install "
            "both anew"
        )
    if not isinstance(error, ImportError):
        raise error
    return f"importing it failed ({type(error).__name__}: {error})"
