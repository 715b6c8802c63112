"""The scaling of pixels, and the resizing of images, in JSON files next to weights."""

from collections.abc import Callable

import numpy as np

from keras_vit.utils.scaling import MODES, Mode, as_mode
from keras_vit.utils.types import Config, StrPath
from keras_vit.weights.files.arrays import weights_file
from keras_vit.weights.files.configs import read_config
from keras_vit.weights.files.torch import read_training

# timm's names of interpolations, and Pillow's constants, which transformers stores.
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


def stored_mode(path: StrPath) -> Mode | None:
    """Returns the `mode` of `preprocess_input` in the JSON files of a folder, or
    next to a file, of this package and others; None if there is none.

    It raises a `ValueError` that names the file if its values are not a scaling.
    """
    for name, read in _READERS:
        config = read_config(path, name)
        try:
            mode = read(config)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"The scaling of pixels in {name!r} next to {str(path)!r} cannot be "
                f"used. {error}"
            ) from error
        if mode is not None:
            return mode
    return _of_timm(read_training(weights_file(path)))


def stored_resizing(path: StrPath, own: object = None) -> Config | None:
    """Returns how a .keras file (`own`), a folder of timm or transformers, or a
    checkpoint of timm's `train.py` says that images are resized, in timm's terms; None
    if none of them says it."""
    config = read_config(path) or read_training(weights_file(path))
    found = own or config.get("pretrained_cfg", config)
    kinds = {"interpolation": str, "crop_pct": (int, float), "crop_mode": str}
    if isinstance(found, dict):
        found = {k: found[k] for k, v in kinds.items() if isinstance(found.get(k), v)}
        if found:
            return found
    pillow = read_config(path, "preprocessor_config.json").get("resample")
    names = [name for name, code in INTERPOLATIONS.items() if code == pillow]
    return {"interpolation": names[0]} if names else None


def _of_run(config: Config) -> Mode | None:
    """Reads the config.json of a recipe's run."""
    run = config.get("config")
    mode = run.get("mode") if isinstance(run, dict) else None
    # Other programs may use the name for something else.
    return as_mode(mode) if isinstance(mode, list) or mode in [*MODES] else None


def _of_transformers(config: Config) -> Mode | None:
    """Reads an image processor, which computes `(factor * pixels - mean) / std`
    of pixels in [0, 255]."""
    normalizes = config.get("do_normalize") is not False
    mean, std = config.get("image_mean"), config.get("image_std")
    if not config or (normalizes and (mean is None or std is None)):
        return None
    if not normalizes:
        mean, std = 0.0, 1.0
    factor = config.get("rescale_factor") or 1 / 255
    factor = 255.0 if config.get("do_rescale") is False else 255 * factor
    return as_mode((np.asarray(mean) / factor, np.asarray(std) / factor))


def _of_timm(config: Config) -> Mode | None:
    """Reads timm's config.json, whose older form has no `pretrained_cfg`."""
    found = config.get("pretrained_cfg", config)
    if not isinstance(found, dict) or None in (found.get("mean"), found.get("std")):
        return None
    return as_mode((found["mean"], found["std"]))


def _of_keras_hub(config: Config) -> Mode | None:
    """Reads an image converter, which computes `scale * pixels + offset`."""
    options = config.get("config") or {}
    if options.get("scale") is None:
        return None
    std = 1 / (255 * np.asarray(options["scale"]))
    return as_mode((-np.asarray(options.get("offset") or 0.0) * std, std))


_READERS: tuple[tuple[str, Callable[[Config], Mode | None]], ...] = (
    ("config.json", _of_run),
    ("preprocessor_config.json", _of_transformers),
    # transformers 5 writes it for a model that has a tokenizer, too.
    (
        "processor_config.json",
        lambda x: _of_transformers(x.get("image_processor") or {}),
    ),
    ("image_converter.json", _of_keras_hub),
    ("config.json", _of_timm),
    ("open_clip_config.json", lambda x: _of_timm(x.get("preprocess_cfg") or {})),
)
