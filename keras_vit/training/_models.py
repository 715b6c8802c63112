"""What the flags `--model` and `--weights` name."""

import dataclasses
import difflib

from keras_vit.converters import open_checkpoint
from keras_vit.models import VARIANTS


def model_facts(model, weights, patch_size=None):
    """Returns the `patch_size` and `image_size` that a model is made for.

    Args:
        model: Name of one of the package's models, or None.
        weights: Path of a checkpoint, or None.
        patch_size: The patch that is wanted, or None.

    Returns:
        Dict whose values are None where nothing tells.

    Raises:
        ValueError: if there is no such model, or the three do not go
            together.
        FileNotFoundError: if there is no file at `weights`.
    """
    if model is not None and model not in VARIANTS:
        close = difflib.get_close_matches(model, VARIANTS)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"There is no model {model!r}.{hint} There are: "
            f"{', '.join(VARIANTS)}."
        )
    if weights is not None:
        return _checkpoint_facts(model, weights, patch_size)
    if model is not None:
        patch_size = patch_size or VARIANTS[model].patch_size
        return {"patch_size": patch_size, "image_size": 224}
    return {"patch_size": patch_size, "image_size": None}


def _checkpoint_facts(model, weights, patch_size):
    if weights.endswith(".keras"):
        raise ValueError(
            f"The weights must be a checkpoint. Received: {weights!r}. A run "
            "of a recipe writes one as model.npz, next to model.keras."
        )
    facts = open_checkpoint(weights).arguments()
    rows, columns = facts["patch_size"]
    if rows != columns or patch_size not in (None, rows):
        raise ValueError(
            f"The patches of {weights!r} are {rows} x {columns} pixels. They "
            "must be square, and cannot be changed: leave out the patch size."
        )
    if model is not None:
        variant = dataclasses.asdict(VARIANTS[model])
        for name, size in variant.items():
            found = rows if name == "patch_size" else facts[name]
            if found != size:
                raise ValueError(
                    f"{weights!r} does not hold a {model}: its {name} is "
                    f"{found} and not {size}. Leave out the model's name to "
                    "get the model that the file holds."
                )
    grid = facts["grid_size"]
    return {"patch_size": rows, "image_size": grid and grid[0] * rows}


def zero_head(model):
    """Makes the classification head zero, as at the start of fine-tuning."""
    head = model.get_layer("head")
    head.set_weights([array * 0 for array in head.get_weights()])
