"""Small models of each kind, for the tests."""

import numpy as np

import keras_vit
from keras_vit import pretraining

SIZES = {
    "patch_size": 4,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 32,
}
DECODER = {
    "decoder_hidden_size": 8,
    "decoder_num_layers": 1,
    "decoder_num_heads": 2,
}
MODELS = {
    "mim": lambda e: pretraining.MaskedImageModeling(e, seed=1),
    "mim-block": lambda e: pretraining.MaskedImageModeling(e, masking="block", seed=1),
    "mae": lambda e: pretraining.MaskedAutoencoder(e, seed=1, **DECODER),
    "mpp": lambda e: pretraining.MaskedPatchPrediction(e, seed=1),
    "mpp-downsized": lambda e: pretraining.MaskedPatchPrediction(
        e, target="downsized", seed=1
    ),
    "mpp-pixels": lambda e: pretraining.MaskedPatchPrediction(
        e, target="pixels", seed=1
    ),
}


def encoder(channels=3, **arguments):
    return keras_vit.VisionTransformer(
        **{
            **SIZES,
            "input_shape": (16, 16, channels),
            "include_top": False,
            **arguments,
        }
    )


def images(count=8, channels=3):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (count, 16, 16, channels)).astype("float32")
