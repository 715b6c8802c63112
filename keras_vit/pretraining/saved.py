"""Loading of pre-training models from checkpoints."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from keras_vit import converters
from keras_vit.config import ViTConfig
from keras_vit.models.keras_file import load_keras_file
from keras_vit.pretraining.base import PretrainingModel
from keras_vit.pretraining.dino import DINO
from keras_vit.pretraining.mae import MaskedAutoencoder
from keras_vit.pretraining.mocov3 import MoCoV3
from keras_vit.pretraining.patch_prediction import MaskedPatchPrediction
from keras_vit.pretraining.simmim import MaskedImageModeling
from keras_vit.utils.types import StrPath
from keras_vit.weights.infer import (
    drop_pretraining,
    infer_family,
    pretraining_options,
)
from keras_vit.weights.weight_map import assign_all

_MODELS = {
    "mae": MaskedAutoencoder,
    "simmim": MaskedImageModeling,
    "mpp": MaskedPatchPrediction,
    "dino": DINO,
    "mocov3": MoCoV3,
}
_POSITIONS = "position_embedding/embedding"


class EncoderArguments(TypedDict, total=False):
    """Arguments of the encoder that a checkpoint does not determine."""

    block: dict[str, Any] | None
    input_shape: tuple[int | None, ...]
    dropout: float
    attention_dropout: float
    drop_path: float


class PretrainingArguments(EncoderArguments, total=False):
    """Arguments of the encoder, and arguments of the five classes that a file's arrays
    do not determine."""

    mask_ratio: float
    masking: str
    mask_patch_size: int | tuple[int, int] | None
    norm_pixels: bool
    target: str
    value_range: tuple[Any, Any]
    teacher_momentum: float | Callable
    teacher_temperature: float | Callable
    student_temperature: float
    center_momentum: float | None
    frozen_steps: int
    koleo_weight: float
    ibot_weight: float
    temperature: float
    frozen_patches: bool
    seed: int | None
    name: str | None
    dtype: Any


def load(
    path: StrPath | converters.Checkpoint,
    format: str | None = None,
    num_heads: int | None = None,
    decoder_num_heads: int | None = None,
    **overrides: Unpack[PretrainingArguments],
) -> PretrainingModel:
    """Builds the pre-training model of a checkpoint and loads its weights.

    It reads Meta's MAE with its decoder, checkpoints of the training of
    facebookresearch/dino and facebookresearch/moco-v3, `ViTMAEForPreTraining` and
    `ViTForMaskedImageModeling` of transformers, and `.keras` files of this package.
    `converters.load` reads only the encoder of the same files; `converters.save` writes
    the models that this function returns.

    Args:
        path: As in `converters.load`.
        format: "mae", "dino", "mocov3" or "huggingface"; None infers it from
            the keys.
        num_heads: Integer. Number of attention heads of the encoder, if it
            cannot be inferred.
        decoder_num_heads: Integer. Number of attention heads of MAE's
            decoder, if it cannot be inferred.
        **overrides: Arguments of the model's class that take precedence over the
            checkpoint's (see `PretrainingArguments`), such as `mask_ratio` or
            `norm_pixels`, which Meta's files do not contain; and the encoder's
            `input_shape`, `dropout`, `attention_dropout` and `drop_path`.

    Returns:
        A `MaskedAutoencoder`, `MaskedImageModeling`, `MaskedPatchPrediction`,
        `DINO` or `MoCoV3`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, or has no decoder.

    Example:

    >>> model = keras_vit.pretraining.load("mae_visualize_vit_base.pth")
    """
    if isinstance(path, converters.Checkpoint):
        checkpoint = path
    else:
        checkpoint = converters.open_checkpoint(
            path,
            format,
            num_heads,
            decoder=True,
            decoder_num_heads=decoder_num_heads,
        )
    arguments = infer_family(checkpoint.shapes)
    arguments |= pretraining_options(checkpoint.stored)
    if "teacher_momentum" in checkpoint.saved.get("config", ()):
        if overrides:
            raise ValueError(
                "A .keras file of DINO or MoCo v3 is loaded as it was saved. "
                f"Received: {', '.join(overrides)}"
            )
        return load_keras_file(checkpoint.path)
    if checkpoint.family not in _MODELS:
        raise ValueError(
            f"{checkpoint.path!r} holds an encoder without the decoder that "
            "pre-training needs. Load it with `converters.load`."
        )
    build = _MODELS[arguments.pop("family")]
    if checkpoint.is_pretraining_model:
        saved = load_keras_file(checkpoint.path)
        if not overrides:
            return saved
        # Includes arguments that arrays do not determine, like `masking`.
        arguments |= saved.get_config()
        for name in ("encoder", "name", "dtype"):
            del arguments[name]
    given: dict[str, Any] = dict(overrides)
    for_encoder = EncoderArguments.__annotations__.keys() & given.keys()
    encoder = converters.load(
        dataclasses.replace(checkpoint, weights=_encoder_weights(checkpoint.weights)),
        include_top=False,
        pooling=None,
        mask_token=False,
        **{name: given.pop(name) for name in for_encoder},
    )
    model = build(encoder, **{**arguments, **given})
    config = typing.cast(ViTConfig, checkpoint.config)  # no ResNet has a method
    resized = config.grid_size != model.stages.grid_size
    _load_decoder(model, checkpoint, resized)
    return model


def _encoder_weights(weights: dict[str, Any]) -> dict[str, Any]:
    """Returns the encoder's weights, without decoder and mask token."""
    weights = drop_pretraining(weights)
    weights.pop("mask_token/tokens", None)
    return weights


def _load_decoder(
    model: PretrainingModel, checkpoint: converters.Checkpoint, resized: bool
) -> None:
    """Assigns all weights outside the encoder, or raises and assigns none; if
    the grid was resized, the decoder keeps the positions computed for the
    model's grid."""

    def outside(weights: dict[str, Any]) -> dict[str, Any]:
        encoder = _encoder_weights(weights)
        found = {path: x for path, x in weights.items() if path not in encoder}
        if resized:
            return {k: x for k, x in found.items() if not k.endswith(_POSITIONS)}
        # The constructor may have replaced the encoder's positions by fixed
        # sines and cosines.
        if _POSITIONS in weights:
            found[_POSITIONS] = weights[_POSITIONS]
        return found

    assign_all(
        outside(model.variables_by_path()),
        outside(checkpoint.weights),
        lambda: f"{checkpoint.path!r} does not fit the model {model.name!r}.",
        checkpoint.key,
    )
