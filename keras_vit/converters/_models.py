"""Whole models from and to files. The models are imported when they are
needed, so that the rest of this room stays plain NumPy."""

from keras_vit.converters import _resnet
from keras_vit.converters._architecture import architecture
from keras_vit.converters._architecture import positioned
from keras_vit.converters._checkpoint import open_checkpoint
from keras_vit.converters._convert import to_checkpoint
from keras_vit.converters._files import write
from keras_vit.converters._layouts import known
from keras_vit.converters._layouts import raise_unless_held
from keras_vit.converters._layouts import spelling_of


def load(path, layout=None, num_heads=None, **overrides):
    """Builds the model that a checkpoint holds and loads its weights.

    The architecture is read from the arrays, and from a config.json in the
    folder or beside the file. What arrays cannot tell (epsilons, the kind of
    GELU, how positions are resampled) follows from the layout.

    Args:
        path: String or path: an .npz, .safetensors, .pth, .pt or .bin file,
            the .index.json of a sharded one, or a Hugging Face folder.
        layout: "vit_jax", "big_vision", "timm", "huggingface",
            "torchvision", "dinov2", "mae" or "bit"; None finds it by the
            keys, if only one fits.
        num_heads: Integer. Needed where the layout does not store it and the
            hidden size is unusual.
        **overrides: Arguments that win over what the file tells, such as
            `classes`, `input_shape` or `include_top`: those of
            `VisionTransformer`, `HybridVisionTransformer` or `BiT`, by what
            the file holds.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, fits no layout or several, or
            does not fit the overrides.

    Example:

    >>> model = keras_vit.converters.load("ViT-B_16.npz", classes=10)
    """
    from keras_vit import models

    known(layout)
    checkpoint = open_checkpoint(path, layout, num_heads)
    build = {
        "vit": models.VisionTransformer,
        "hybrid": models.HybridVisionTransformer,
        "bit": models.BiT,
    }[checkpoint.family]
    has_head = "head/kernel" in checkpoint.weights
    defaults = {"include_top": has_head}
    if not has_head:
        defaults["pooling"] = _pooling(checkpoint.weights)
    arguments = {**defaults, **overrides}
    representation = checkpoint.weights.get("pre_logits/bias")
    pools = arguments["include_top"] or arguments.get("pooling")
    if representation is not None and pools:
        arguments.setdefault("representation_size", len(representation))
    return build(**arguments, weights=checkpoint)


def save(model, path, layout="vit_jax", overwrite=False):
    """Writes a model's weights as a checkpoint, exactly.

    Args:
        model: A model made by this package.
        path: String or path; its ending chooses the container: .npz,
            .safetensors, .pth, .pt or .bin.
        layout: Name of the layout to write. A spelling other than its usual
            one follows a colon: "vit_jax:current", "big_vision:scan".
        overwrite: Boolean. Whether an existing file may be replaced.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ValueError: if the layout has no place for one of the weights.
    """
    known(layout)
    weights, told = describe(model)
    spelling = spelling_of(layout, weights)
    raise_unless_held(told, layout)
    try:
        arrays = to_checkpoint(weights, spelling, told["num_heads"])
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


def _pooling(weights):
    """The pooling of a model without a head: None if it gives all tokens."""
    if "pooling/probe" in weights:
        return "map"
    if "head_norm/gamma" in weights:
        return "gap"
    if "pre_logits/kernel" in weights:
        return "token" if "class_token/tokens" in weights else "gap"
    return None


def describe(model):
    """Returns `(weights, arguments)` of a model made by this package.

    Raises:
        ValueError: if it is another model.
    """
    import keras

    from keras_vit.weights import variables_of

    weights = {
        path: keras.ops.convert_to_numpy(variable.value)
        for path, variable in variables_of(model).items()
    }
    layers = {layer.name: layer for layer in model.layers}
    shapes = {path: array.shape for path, array in weights.items()}
    family, rules = _resnet.family(shapes), {}
    if family != "vit":
        configs = {name: layer.get_config() for name, layer in layers.items()}
        rules = _resnet.rules_of(configs)
    if family == "bit":
        return weights, {**_resnet.bit_facts(shapes), **rules}
    positions = layers.get("position_embedding")
    try:
        told = architecture(shapes, getattr(positions, "built_grid", None))
    except ValueError as error:
        raise ValueError(
            f"The model {model.name!r} was not made by keras_vit. {error}"
        ) from None
    told.update(rules)
    block = layers["block_0"]
    told["activation"] = block.activation
    told["norm_epsilon"] = block.norm_epsilon
    told["position_embedding"] = positions.kind
    told["resampling"] = positions.resampling
    if positions.kind == "learned":
        told["position_prefix"] = _prefix(positions, told)
        told["grid_size"] = positions.built_grid
    pooling = layers.get("pooling")
    told["pooling"] = getattr(pooling, "mode", "map" if pooling else None)
    if pooling is None:
        told["pooling"] = "token" if told["class_token"] else "gap"
    return weights, told


def _prefix(positions, told):
    return next(
        prefix
        for prefix in ("all", "class", "none")
        if positioned(prefix, told) == positions.num_prefix_tokens
    )
