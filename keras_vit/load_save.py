"""`keras_vit.load` and `keras_vit.save`, for the files of all kinds of models."""

import pathlib
from typing import Any

import keras

from keras_vit import converters, models
from keras_vit.config import known
from keras_vit.families import FAMILIES, build
from keras_vit.models.description import family_of
from keras_vit.utils.scaling import ModeLike
from keras_vit.utils.types import Config, StrPath
from keras_vit.weights import Checkpoint, open_checkpoint
from keras_vit.weights.released import ALIASES, RELEASED

__all__ = ["load", "save"]


def load(
    name_or_path: StrPath | Checkpoint,
    format: str | None = None,
    num_heads: int | None = None,
    decoder_num_heads: int | None = None,
    *,
    base: StrPath | None = None,
    include_top: bool | None = None,
    input_shape: tuple[int | None, ...] | None = None,
    classes: int | None = None,
    pooling: str | None = None,
    preprocessing: bool | ModeLike | None = None,
    dropout: float | None = None,
    drop_path: float | None = None,
    masked: bool | None = None,
    mask_ratio: float | None = None,
    norm_pixels: bool | None = None,
    **architecture: Any,
) -> keras.Model:
    """Builds the whole model from a file, a folder or a name, with its weights.

    | model                          | arguments that it takes                      |
    |--------------------------------|----------------------------------------------|
    | encoder, classifier            | `include_top`, `input_shape`, `classes`,     |
    |                                | `pooling`, `preprocessing`, `dropout`,       |
    |                                | `drop_path`, and `architecture`              |
    | of pre-training                | `input_shape`, `dropout`, `drop_path`; of    |
    |                                | MAE, SimMIM and masked patch prediction      |
    |                                | also `mask_ratio`, of MAE `norm_pixels`      |
    | EoMT, a folder                 | `classes`, `masked`                          |
    | YOLOS, a folder                | `classes`                                    |
    | `DualEncoder`: a file with a   | none                                         |
    | text tower                     |                                              |
    | another segmenter or detector, | none: it is loaded as it was saved           |
    | or one of quantized weights    |                                              |

    Args:
        name_or_path: String or path: released weights, given as a model and a name from
            `keras_vit.list_weights()`, such as "ViTB16/imagenet21k"; or a file or URL
            that `keras_vit.converters.load` or `keras_vit.pretraining.load` accepts
            (the latter includes the decoder in the model); or a folder of transformers'
            `EomtForUniversalSegmentation` or `YolosForObjectDetection`; or a
            `Checkpoint` of them.
        format: As in `keras_vit.converters.load`.
        num_heads: As in `keras_vit.converters.load`.
        decoder_num_heads: As in `keras_vit.pretraining.load`.
        base: As in `keras_vit.converters.load`.
        include_top: Boolean. Whether to load the classification head; None loads it if
            the file has one.
        input_shape: `(height, width, channels)` of the images; None for the shape in
            the file.
        classes: Integer. Number of classes. If the file has another number, the head is
            new.
        pooling: As in `keras_vit.VisionTransformer`.
        preprocessing: Boolean, or a mode of `keras_vit.preprocess_input`, which
            may be a pair `(mean, std)`.
        dropout: Float in [0, 1).
        drop_path: Float in [0, 1).
        masked: Boolean. Whether an EoMT of transformers has masked attention, as in
            training; None means True if the file's probabilities of masked attention
            are not all 0.
        mask_ratio: Float in (0, 1). Share of the patches that are masked.
        norm_pixels: Boolean. Whether MAE reconstructs normalized patches.
        **architecture: Other arguments of `keras_vit.converters.load`, such as
            `norm_epsilon`, which take precedence over the file.

    Returns:
        A `keras.Model`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, or an argument does not fit it.
        TypeError: if the file's model has no such argument.
        OSError: if the weights cannot be downloaded.

    Example:

    >>> model = keras_vit.load("runs/digits")
    """
    opening: Config = {"format": format, "num_heads": num_heads, "base": base}
    opening["decoder_num_heads"] = decoder_num_heads
    options = known(
        {
            "include_top": include_top,
            "input_shape": input_shape,
            "classes": classes,
            "pooling": pooling,
            "preprocessing": preprocessing,
            "dropout": dropout,
            "drop_path": drop_path,
            "masked": masked,
            "mask_ratio": mask_ratio,
            "norm_pixels": norm_pixels,
        }
    )
    # Of a checkpoint, the text would have all arrays.
    name = "" if isinstance(name_or_path, Checkpoint) else str(name_or_path)
    variant, _, tag = name.partition("/")
    if (variant, ALIASES.get(tag, tag)) in RELEASED:
        variant_builder = getattr(models, variant)
        return variant_builder(weights=tag, **known(opening), **options, **architecture)
    checkpoint = name_or_path
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, **opening, decoder=True, text=True)
    family = FAMILIES[checkpoint.family]
    others = options.keys() - {*family.options}
    if checkpoint.family != checkpoint.encoder_family:
        others |= architecture.keys()
    if others and not checkpoint.is_fixed:
        alone = " or load its encoder alone with `keras_vit.converters.load`"
        raise ValueError(
            f"{checkpoint.path!r} holds a model of the family {checkpoint.family!r}, "
            f"which takes {', '.join(family.options) or 'none'}: leave other "
            f"arguments out{'' if checkpoint.is_dense else ',' + alone}. "
            f"Received: {', '.join(sorted(others))}"
        )
    return build(checkpoint, **options, **architecture)


def save(
    model: keras.Model,
    path: StrPath,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a whole model to a file or a folder.

    Args:
        model: A model made by this package.
        path: String or path, whose suffix chooses the kind of file, as in
            `keras_vit.converters.save`. Without a suffix, the path is a folder that
            transformers reads. The folder of an EoMT or a YOLOS also has the weights of
            its loss, the class names and the scaling of pixels; the folder of a
            `DualEncoder` has its tokenizer.
        format: String. The code base that reads the file, as in
            `keras_vit.converters.save`; None for its default.
        overwrite: Boolean. Whether existing files may be replaced.

    Raises:
        FileExistsError: if a file exists and `overwrite` is False.
        ValueError: if the file cannot hold the model.

    Example:

    >>> keras_vit.save(model, "vit_b16.keras")
    """
    family = FAMILIES[family_of(model)]
    if pathlib.Path(path).suffix == "" and format in (None, "huggingface"):
        format = family.format
    converters.write_model(model, path, format, overwrite, family.describe(model))
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None and pathlib.Path(path).suffix == "":
        tokenizer.save(pathlib.Path(path).expanduser(), overwrite)
