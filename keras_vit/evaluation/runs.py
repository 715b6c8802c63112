"""Files and settings in the folder of a training run."""

import pathlib
from typing import Any

from keras_vit.utils.types import Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights import Checkpoint, open_checkpoint, resolve_weights
from keras_vit.weights.files import read_config

# What programs read from the config.json of a run.
_RUN_CONFIG_TYPES = {
    "image_size": (int, str, list),
    "class_names": list,
    "multi_label": bool,
    "skip_bad_images": bool,
    "max_tokens": int,
    "mode": (str, list),
    **dict.fromkeys(("dataset", "loss", "protocol", "test_split"), str),
}


def open_weights(
    model: str | None, weights: str, sizes: Config | None = None
) -> Checkpoint:
    """Opens the checkpoint of weights, given as a file, a run's folder, a URL, or the
    name of released weights of `model`, whose arguments are `sizes`."""
    checkpoint = resolve_weights(resolve_weights_path(weights), model, sizes)
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return open_checkpoint(checkpoint)


def check_model(checkpoint: Checkpoint, model: str, sizes: Config) -> None:
    """Raises a `ValueError` if a checkpoint does not hold the model of this
    name, whose arguments are `sizes`."""
    for name, size in sizes.items():
        found = getattr(checkpoint.config, name, None)
        if name == "patch_size":
            found = (checkpoint.patch_size or (None,))[0]
        if found != size and name != "pooling":
            raise ValueError(
                f"{checkpoint.path!r} does not hold a {model}: its {name} is {found} "
                f"and not {size}. Leave out the model's name to get the model that "
                "the file holds."
            )


def warn_of_scaling(path: StrPath) -> None:
    """Warns that a file does not say how pixels are scaled, so that "tf" is assumed."""
    warn(
        f"{str(path)!r} does not say how its model scales pixels, and `mode` is tf, "
        "which scales them to [-1, 1]. Give another if it was trained with another, "
        "such as torch for DeiT, DINO, DINOv2 and MAE."
    )


def resolve_weights_path(weights: str) -> str:
    """Returns the path of the weights to fine-tune in a run's folder.

    Other arguments are returned unchanged.
    """
    folder = pathlib.Path(weights).expanduser()
    for name in ("encoder.keras", "model.npz", "model.keras"):
        if (folder / name).is_file():
            return str(folder / name)
    return weights


def config_of_run(path: StrPath) -> dict[str, Any]:
    """Returns the `config.json` of the recipe's run that wrote a file, or {}."""
    found = read_config(path)
    config, data = found.get("config"), found.get("data")
    if not isinstance(config, dict) or not isinstance(data, dict):
        return {}
    wrong = [
        f"{name}={values[name]!r}"
        for values in (config, data)
        for name, kinds in _RUN_CONFIG_TYPES.items()
        if values.get(name) is not None and not isinstance(values[name], kinds)
    ]
    if wrong:
        raise ValueError(
            f"{str(pathlib.Path(path).with_name('config.json'))!r} has values of "
            f"another type than a recipe writes: {', '.join(wrong)[:300]}. "
            "Remove the file, and give arguments instead."
        )
    return found
