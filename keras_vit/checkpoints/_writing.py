"""Weights to a checkpoint in a layout: what the model's and the file's way
out share."""

import math

import ml_dtypes
import numpy as np

from keras_vit._warnings import warn
from keras_vit.checkpoints._files import SUFFIXES
from keras_vit.checkpoints._files import write
from keras_vit.checkpoints.formats import check_representable
from keras_vit.checkpoints.formats import get_weight_map
from keras_vit.checkpoints.formats import huggingface
from keras_vit.checkpoints.infer import warn_if_heads_ambiguous
from keras_vit.checkpoints.weight_map import to_checkpoint

DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def write_checkpoint(
    weights, told, target, layout, dtype=None, overwrite=False, source=None
):
    """Writes weights in a layout to a file or a Hugging Face folder.

    Args:
        weights: Dict of our paths to arrays. It stays as it is.
        told: Dict of arguments of `VisionTransformer`.
        target: A `pathlib.Path`; without an ending it is a folder.
        layout: Name of the layout. "huggingface" alone takes the spelling
            of the model in transformers that is nearest.
        dtype: Key of `DTYPES`, or None to keep types.
        overwrite: Boolean. Whether what exists may be replaced.
        source: The `Checkpoint` that the weights came from, whose labels a
            folder keeps; or None.

    Raises:
        ValueError: if the layout or the container cannot hold the weights.
            Nothing is then written.
    """
    raise_unless_writable(target, layout)
    if layout == "huggingface" and "resnet_layers" not in told:
        layout = f"huggingface:{huggingface.nearest_variant(told)}"
    check_representable(told, layout)
    folder = target.suffix == ""
    if folder:
        kept = str(next(iter(weights.values())).dtype)
        files = huggingface.folder_configs(told, layout, dtype or kept, source)
        huggingface.check_folder(target, overwrite)
    elif told.get("position_embedding") == "learned":
        _warn_if_square(told["grid_size"], target)
    if told.get("pooling") == "first_patch" and told["classes"]:
        warn(
            f"{str(target)!r} cannot say that its head takes the first patch: "
            "whoever reads it takes the mean of the patches. Give "
            '`pooling="first_patch"` when it is read, or in big_vision '
            '`pool_type="0"`.'
        )
    spelling = get_weight_map(layout, weights)
    if not folder and "hidden_size" in told:
        warn_if_heads_ambiguous(told, spelling, target)
    heads = (told["num_heads"], told.get("decoder_num_heads"))
    arrays = to_checkpoint(weights, spelling, heads)
    # Most arrays are views of the weights. The writer changes their type one
    # by one, so that memory does not hold all of them in both.
    dtype = dtype and np.dtype(DTYPES[dtype])
    if folder:
        huggingface.write_folder(target, arrays, files, overwrite, dtype)
    else:
        write(arrays, target, overwrite, dtype)


def raise_unless_writable(target, layout):
    """Raises a `ValueError` if the name of a target is of no container."""
    if target.suffix not in ("", *SUFFIXES):
        raise ValueError(
            "TARGET must end in "
            f"{', '.join(SUFFIXES)}, .keras or .weights.h5, or be a folder. "
            f"Received: {str(target)!r}"
        )
    if target.suffix == "" and layout.partition(":")[0] != "huggingface":
        raise ValueError(
            "A folder is for the layout 'huggingface' (--to huggingface). "
            f"Received: {layout!r}"
        )


def _warn_if_square(grid, target):
    """A reader takes as many positions as a square has for a square."""
    rows, columns = grid or (1, 1)
    side = math.isqrt(rows * columns)
    if rows != columns and side * side == rows * columns:
        warn(
            f"{str(target)!r} cannot say that its {rows * columns} positions "
            f"are a grid of {rows} x {columns}: whoever reads it takes "
            f"{side} x {side}. Give grid_size=({rows}, {columns}) "
            "when it is read, or write a .keras file."
        )
