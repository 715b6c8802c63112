"""Run a checkpoint in the library that its layout comes from (`--verify`).

The function `reference` of a `Layout` gets a checkpoint, the arguments of
`VisionTransformer` and the wanted output, and returns the library's name and
version, and a function of a PyTorch batch `(batch, channels, height, width)`.
Libraries are imported inside, for none of them is needed to convert.
"""

import numpy as np

from keras_vit.checkpoints.files import read


class ReferenceUnavailable(Exception):
    """The reference library cannot run a file, through no fault of the file."""


class ReferenceNotInstalled(ReferenceUnavailable):
    """The reference library is missing or broken, which can be mended."""


def reference_model(layout, checkpoint, arguments, output, image_shape):
    """Returns `(name and version, function of images)`.

    Args:
        layout: The `Layout` of the checkpoint.
        checkpoint: A `Checkpoint`.
        arguments: Dict of arguments of `VisionTransformer`.
        output: What the function returns: "logits", "pooled" or "tokens".
        image_shape: `(height, width)`, which must be that of the positions.

    Raises:
        ReferenceUnavailable: if there is no such library, or it has no such
            model.
    """
    if not callable(layout.reference):
        raise ReferenceUnavailable(layout.reference)
    if "resnet_layers" in arguments:
        raise ReferenceUnavailable(
            "ResNets and hybrids are not built there from a file"
        )
    if not arguments.get("grid_size") or image_size(arguments) != image_shape:
        raise ReferenceUnavailable(
            "the images are not of the size of its positions"
        )
    try:
        import torch

        name, run = layout.reference(checkpoint, arguments, output)
    except ImportError as error:
        raise ReferenceNotInstalled(_failed_import(error)) from error
    except RuntimeError as error:
        if _OPERATORS not in str(error):
            raise
        raise ReferenceNotInstalled(_failed_import(error)) from error

    def on_images(images):
        batch = torch.tensor(images).permute(0, 3, 1, 2)
        with torch.no_grad():
            return run(batch).float().cpu().numpy()

    return name, on_images


def image_size(arguments):
    """Returns `(height, width)` of the images that positions are made for."""
    pairs = zip(arguments["grid_size"], arguments["patch_size"], strict=True)
    return tuple(count * patch for count, patch in pairs)


def load_state_dict(model, checkpoint, renamed=None):
    """Loads a file into a PyTorch model; missing or unknown keys are an error
    of PyTorch's.

    Args:
        model: A `torch.nn.Module`.
        checkpoint: A `Checkpoint`.
        renamed: Dict of parts of keys to what replaces them.
    """
    import torch

    state = {}
    for key, array in read(checkpoint.path).items():
        for old, new in (renamed or {}).items():
            key = key.replace(old, new)
        state[key] = torch.tensor(np.asarray(array, "float32"))
    model.load_state_dict(state, strict=True)
    model.eval()


# In PyTorch's messages about operators that a torchvision built for another
# PyTorch lacks.
_OPERATORS = "torchvision::"


def _failed_import(error):
    """Returns what failed while a library was imported, and how to mend it."""
    while error.__cause__ is not None:  # transformers wraps it
        error = error.__cause__
    if _OPERATORS in str(error):
        return (
            f"torchvision cannot be imported ({error}): it was built for "
            "another PyTorch. Install both from one place, such as: pip "
            "install -U torch torchvision --index-url "
            "https://download.pytorch.org/whl/cpu"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        return f"{name} is not installed: pip install {name}"
    return f"importing it failed ({type(error).__name__}: {error})"
