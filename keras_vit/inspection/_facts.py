"""What a report says of a model in words: its table, its predictions."""

import keras
import numpy as np

from keras_vit.checkpoints.files import read_config
from keras_vit.checkpoints.infer import placement
from keras_vit.inspection import _parts
from keras_vit.preprocessing import decode_predictions


def layout_name(checkpoint):
    """How a checkpoint is laid out, in words."""
    if checkpoint.layout == "keras":
        return "Keras's own"
    return ":".join(
        filter(None, (checkpoint.layout, checkpoint.weight_map.variant))
    )


def table(model, checkpoint, settings, size, mode):
    """Lists what the model is: `[(name, value), ...]`.

    Args:
        model: The model.
        checkpoint: The `Checkpoint` it was made from.
        settings: Dict of arguments that were given with it.
        size: `(height, width)` of the images it is shown.
        mode: As in `preprocess_input`.
    """
    # Not from the layers' configs: asked for one, Keras imports TensorFlow.
    positions = _parts.positions_of(model)
    told = checkpoint.arguments(
        settings.get("grid_size"),
        getattr(positions, "built_grid", None),
        settings.get("class_token"),
        settings.get("position_prefix"),
    )
    told = {**told, **settings}
    pixels, channels = f"{size[0]} × {size[1]}", model.inputs[0].shape[-1]
    rows = [
        ("File", checkpoint.path),
        ("Layout it was read from", layout_name(checkpoint)),
        ("Parameters", f"{model.count_params():,}"),
        ("Images", f"{pixels} pixels, channels: {channels}"),
        ("Pixels", _MODES[mode]),
    ]
    if told.get("resnet_layers") is not None:
        units = ", ".join(map(str, told["resnet_layers"])) or "the root alone"
        width = told["width_factor"]
        rows.append(("ResNet", f"units a stage: {units}; width {width:g}"))
    if checkpoint.family != "bit":
        rows += _encoder(model, told, size)
    if any(layer.name == "head" for layer in model.layers):
        rows.append(("Classes", f"{model.outputs[0].shape[-1]:,}"))
    return rows


_MODES = {
    "tf": "scaled to [-1, 1]",
    "torch": "ImageNet's mean and standard deviation",
}
_READ = {
    "token": "the class token",
    "gap": "the mean of the patches",
    "token_gap": "the class token and the mean of the patches",
    "first_patch": "the first patch",
    "map": "what attention pooling takes of the patches",
    None: "all tokens",
}


def _encoder(model, told, size):
    layout = _parts.token_layout(model, size)
    rows, columns = layout.grid
    names = [name.replace("_", " ") for name in layout.prefix]
    tokens = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    tokens.append(f"{rows * columns} patches")
    patch = " × ".join(map(str, layout.patch_size))
    layer = _parts.positions_of(model)
    positions = getattr(layer, "kind", "relative")
    if (place := placement(layer.name)) != "stem":
        positions += f" in {place.replace('_', ' ')}"
    if layer.embedding_variables():
        grid = " × ".join(map(str, layer.built_grid))
        positions += f", for {grid} patches; fitted: {layer.resampling}"
    return [
        ("Patches", f"{patch} pixels, a grid of {rows} × {columns}"),
        ("Tokens", " + ".join(tokens)),
        (
            "Encoder",
            f"{told['num_layers']} layers of width {told['hidden_size']}, "
            f"{told['num_heads']} heads, MLP of width {told['mlp_dim']}",
        ),
        ("Activation", told["activation"]),
        ("Epsilon of the norms", f"{told['norm_epsilon']:g}"),
        ("Positions", positions),
        ("Head reads", _READ[told.get("pooling")]),
    ]


def mode_of(checkpoint, channels):
    """The `mode` of `preprocess_input` that a model seems to want."""
    if channels != 3:
        return "tf"
    config = config_of(checkpoint)
    recipe = config.get("config")
    if isinstance(recipe, dict) and recipe.get("mode") in _MODES:
        return recipe["mode"]
    if checkpoint.layout in ("dinov2", "mae"):
        return "torch"
    mean = config_of(checkpoint, "preprocessor_config.json").get("image_mean")
    return "torch" if mean and mean[0] != 0.5 else "tf"


def config_of(checkpoint, name="config.json"):
    """The JSON beside a checkpoint; {} if there is none of use."""
    try:
        return read_config(checkpoint.path, name)
    except (ValueError, OSError):
        return {}


def class_names(checkpoint, classes):
    """Names of the classes that lie beside a checkpoint, or None."""
    config = config_of(checkpoint)
    data = config.get("data")
    names = data.get("class_names") if isinstance(data, dict) else None
    by_index = config.get("id2label")
    if names is None and isinstance(by_index, dict):
        names = [by_index.get(str(index)) for index in range(classes)]
    fits = isinstance(names, list) and len(names) == classes
    return [str(name) for name in names] if fits else None


def best_classes(outputs, model, labels, top=5):
    """Names the best classes of each image, with probabilities.

    Returns:
        List with one list an image of `(name, share)`; and a note: what a
        reader of the names should know, or "".
    """
    outputs = np.asarray(outputs, "float32")
    activation = model.get_layer("head").activation
    if activation in (None, keras.activations.linear):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    classes = outputs.shape[1]
    note = ""
    if labels is None and classes in (1000, 21843):
        note = f"Names are ImageNet's, which also has {classes} classes."
        try:
            decode_predictions(outputs[:1])
        except (OSError, ValueError):
            note = "ImageNet's names could not be had: classes are numbers."
            labels = _numbers(classes)
    elif labels is None:
        labels = _numbers(classes)
        note = "Classes are numbers; --labels names them."
    if (np.ptp(outputs, axis=1) == 0).all():
        note = (
            "The head gives every class the same score: it is zero, as before "
            "fine-tuning. " + note
        )
    decoded = decode_predictions(outputs, min(top, classes), labels)
    return [[(name, share) for _, name, share in x] for x in decoded], note


def _numbers(classes):
    return [f"class {index}" for index in range(classes)]
