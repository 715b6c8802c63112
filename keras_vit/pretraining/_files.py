"""Pre-training models from and to checkpoints."""

import dataclasses

import keras

from keras_vit import converters
from keras_vit.checkpoints._convert import raise_if
from keras_vit.checkpoints._decoder import without_decoder
from keras_vit.checkpoints.keras_files import is_pretraining
from keras_vit.pretraining._autoencoder import MaskedAutoencoder
from keras_vit.pretraining._image_modeling import MaskedImageModeling
from keras_vit.pretraining._patch_prediction import MaskedPatchPrediction

_MODELS = {
    "mae": MaskedAutoencoder,
    "mim": MaskedImageModeling,
    "mpp": MaskedPatchPrediction,
}
_TOLD = (
    "mask_ratio",
    "norm_pixels",
    "decoder_hidden_size",
    "decoder_num_layers",
    "decoder_num_heads",
    "decoder_mlp_dim",
)
_OF_ENCODER = ("input_shape", "dropout", "attention_dropout", "drop_path")


def load(
    path, layout=None, num_heads=None, decoder_num_heads=None, **overrides
):
    """Builds the pre-training model that a checkpoint holds, with its weights.

    Meta's MAE with its decoder, `ViTMAEForPreTraining` and
    `ViTForMaskedImageModeling` of transformers, and the .keras files of this
    package. `converters.load` reads the encoder alone of the same files, and
    `converters.save` writes these models too.

    Args:
        path: As in `converters.load`.
        layout: "mae" or "huggingface"; None finds it by the keys.
        num_heads: Integer. Heads of the encoder, where nothing tells.
        decoder_num_heads: Integer. The same of MAE's decoder.
        **overrides: Arguments of the model's class that win over what the
            file tells, such as `mask_ratio` or `norm_pixels`, which Meta's
            files do not hold; and `input_shape`, `dropout`,
            `attention_dropout` and `drop_path` of the encoder.

    Returns:
        A `MaskedAutoencoder`, `MaskedImageModeling` or
        `MaskedPatchPrediction`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or has no decoder.

    Example:

    >>> model = keras_vit.pretraining.load("mae_visualize_vit_base.pth")
    """
    checkpoint = path
    if not isinstance(checkpoint, converters.Checkpoint):
        checkpoint = converters.open_checkpoint(
            path,
            layout,
            num_heads,
            decoder=True,
            decoder_num_heads=decoder_num_heads,
        )
    told = checkpoint.arguments()
    kind = told.get("pretraining")
    if kind is None:
        raise ValueError(
            f"{checkpoint.path!r} holds a model without what pre-training "
            "needs beyond the encoder. `converters.load` reads it."
        )
    arguments = {name: told[name] for name in _TOLD if name in told}
    if checkpoint.path.endswith(".keras") and is_pretraining(checkpoint.path):
        saved = keras.models.load_model(checkpoint.path, safe_mode=True)
        if not overrides:
            return saved
        # Also what arrays and other formats do not hold, such as `masking`.
        arguments |= saved.get_config()
        for name in ("encoder", "name", "dtype"):
            del arguments[name]
    given = {n: overrides.pop(n) for n in _OF_ENCODER if n in overrides}
    own = dataclasses.replace(
        checkpoint, weights=encoder_weights(checkpoint.weights)
    )
    encoder = converters.load(
        own, include_top=False, pooling=None, mask_token=False, **given
    )
    model = _MODELS[kind](encoder, **{**arguments, **overrides})
    _put(model, checkpoint, told.get("grid_size"))
    return model


def encoder_weights(weights):
    """Returns weights by our paths, less all that an encoder has not."""
    own = without_decoder(weights)
    own.pop("mask_token/tokens", None)
    return own


def _put(model, checkpoint, grid):
    """Loads what `converters.load` has not: all of it or none."""
    own = encoder_weights(checkpoint.weights).keys()
    weights = {k: v for k, v in checkpoint.weights.items() if k not in own}
    variables = model.variables_by_path()
    shapes = {path: tuple(v.shape) for path, v in variables.items()}
    resized = grid != model.parts.grid_size
    key = checkpoint.format.key
    raise_if(
        {
            "Arrays that are missing from the file": [
                key(path)
                for path in shapes.keys() - encoder_weights(shapes).keys()
                if path not in weights
            ],
            "Arrays that the model has no place for": [
                key(path) for path in weights.keys() - shapes.keys()
            ],
            "Arrays of another shape than the model's": [
                f"{key(path)}: {weights[path].shape} in the file, "
                f"{shapes[path]} in the model"
                for path in weights.keys() & shapes.keys()
                if weights[path].shape != shapes[path]
                and not (resized and _is_position(path))
            ],
        },
        f"{checkpoint.path!r} does not fit the model {model.name!r}.",
    )
    positions = checkpoint.weights.get("position_embedding/embedding")
    if positions is not None and not resized:
        # The constructor put computed ones there.
        weights["position_embedding/embedding"] = positions
    for path, array in weights.items():
        if not (resized and _is_position(path)):
            variables[path].assign(array)


def _is_position(path):
    return path.endswith("position_embedding/embedding")
