"""Loading of dual encoders from checkpoints."""

import pathlib

import keras

from keras_vit import converters
from keras_vit.config import TextConfig
from keras_vit.models.keras_file import load_keras_file
from keras_vit.text.dual_encoder import DualEncoder
from keras_vit.text.tokenizer import Tokenizer
from keras_vit.text.tower import TextEncoder
from keras_vit.weights import Checkpoint
from keras_vit.weights.weight_map import assign_all

_PREFIX = "text/"


def load_dual_encoder(checkpoint: Checkpoint) -> keras.Model:
    """Builds the dual encoder of a checkpoint and loads its weights, with the tokenizer
    of its folder, if there is one; see `keras_vit.load`."""
    if checkpoint.saved:
        return load_keras_file(checkpoint.path)
    config = TextConfig(**checkpoint.stored["text"])
    weights = {k: x for k, x in checkpoint.weights.items() if k.startswith(_PREFIX)}
    model = DualEncoder(
        converters.load(checkpoint),
        TextEncoder(config),
        logit_bias=0.0 if f"{_PREFIX}logit_bias" in weights else None,
    )
    variables = model.variables_by_path()
    assign_all(
        {path: x for path, x in variables.items() if path.startswith(_PREFIX)},
        weights,
        lambda: f"{checkpoint.path!r} does not fit the model {model.name!r}.",
    )
    path = pathlib.Path(checkpoint.path)
    folder = path if path.is_dir() else path.parent
    if any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        model.tokenizer = Tokenizer.of(folder, config.context_length)
    return model
