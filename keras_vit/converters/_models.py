"""Whole models from and to files. The models are imported when they are
needed, so that the rest of this room stays plain NumPy."""

from keras_vit.converters._convert import to_checkpoint
from keras_vit.converters._files import write
from keras_vit.converters._formats import FORMATS


def load(path, layout="vit_jax", **overrides):
    """Builds the model that a checkpoint holds and loads its weights.

    The architecture is read from the arrays: patch, depth, widths, heads,
    tokens, representation size, grid and classes.

    Args:
        path: String or path of an `.npz` file.
        layout: Name of the file's layout: "vit_jax".
        **overrides: Arguments of `VisionTransformer` that win over what the
            file tells, such as `classes`, `input_shape` or `include_top`.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, is of another layout, or does
            not fit the overrides.

    Example:

    >>> model = keras_vit.converters.load("ViT-B_16.npz", classes=10)
    """
    from keras_vit.models import VisionTransformer
    from keras_vit.weights import open_checkpoint

    _known(layout)
    checkpoint = open_checkpoint(path, layout)
    facts = checkpoint.architecture()
    names = (
        "patch_size",
        "hidden_size",
        "num_layers",
        "num_heads",
        "mlp_dim",
        "representation_size",
    )
    arguments = {name: facts[name] for name in names}
    if facts["classes"] is None:
        arguments["include_top"] = False
    return VisionTransformer(**{**arguments, **overrides}, weights=checkpoint)


def save(model, path, layout="vit_jax", overwrite=False):
    """Writes a model's weights as a checkpoint, exactly.

    Args:
        model: A model made by this package.
        path: String or path ending in `.npz`.
        layout: Name of the layout to write: "vit_jax" (released names).
        overwrite: Boolean. Whether an existing file may be replaced.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ValueError: if the layout has no place for one of the weights.
    """
    import keras

    _known(layout)
    weights = {
        variable.path: keras.ops.convert_to_numpy(variable.value)
        for variable in model.weights
    }
    try:
        arrays = to_checkpoint(weights, FORMATS[layout][0])
    except ValueError as error:
        hint = ""
        if any("lora_" in path for path in weights):
            hint = (
                "\nKeras merges LoRA weights when it saves: write the model as "
                "a .keras file, load that, and convert the result."
            )
        raise ValueError(
            f"The model {model.name!r} cannot be written in the layout "
            f"{layout!r}. {error}{hint}"
        ) from None
    write(arrays, path, overwrite)


def _known(layout):
    if layout not in FORMATS:
        raise ValueError(
            f"`layout` must be one of {', '.join(map(repr, FORMATS))}. "
            f"Received: layout={layout!r}"
        )
