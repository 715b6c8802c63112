"""Small models with random weights, and their images."""

import numpy as np

import keras_vit
from tests.harness import numpy

TINY = {
    "patch_size": 4,
    "hidden_size": 24,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 32,
}
RESNET = {"resnet_layers": (1, 1), "width_factor": 0.5}
_SHARED = {"position_placement": "every_layer_shared"}
# Options that give a model other layers, weights or functions.
OPTIONS = {
    "plain": {"activation": "gelu", "norm_epsilon": 1e-12},
    "all options": {
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "drop_path": 0.1,
        "num_registers": 2,
        "mask_token": True,
        "pre_norm": True,
        "qk_norm": True,
        "layer_scale": 0.1,
        "activation": "swiglu",
        "pooling": "map",
        "class_token": True,
        "position_prefix": "class",
        "representation_size": 16,
        "resampling": "bicubic",
        "classifier_activation": "softmax",
    },
    "no biases": {"qkv_bias": False, "patch_bias": False},
    "token_gap": {
        "pooling": "token_gap",
        "position_prefix": "class",
        "num_registers": 1,
    },
    "first patch": {"pooling": "first_patch", "mlp_dim": 48},
    "late norm": {"pooling": "gap", "final_norm": "after_pooling"},
    "distilled": {"distillation": True, "dropout": 0.1},
    "everywhere": {"position_placement": "every_layer", "num_registers": 2},
    "shared": _SHARED,
    "fixed": {"position_embedding": "sincos2d", "activation": "swiglu"},
    "fixed everywhere": {
        "position_embedding": "sincos2d",
        "position_placement": "every_layer",
    },
    "two axes": {
        "position_embedding": "learned_2d",
        "position_placement": "every_layer",
    },
    "relative": {"position_embedding": "relative"},
    "relative shared": {"position_embedding": "relative", **_SHARED},
    "rotary": {
        "position_embedding": "rope",
        "key_bias": False,
        "num_registers": 2,
        "rope_base": 30.0,
        "rope_shift": 0.1,
        "rope_jitter": 2.0,
        "rope_rescale": 2.0,
    },
    "tokens": {"include_top": False},
    "pooled": {
        "include_top": False,
        "pooling": "token",
        "representation_size": 16,
    },
}


def tiny(**options):
    sizes = {"input_shape": (8, 12, 3), "classes": 5, **TINY}
    return keras_vit.VisionTransformer(**{**sizes, **options})


def last_differs(*args, name, **kwargs):
    """A `block` whose last of three has another activation and epsilon."""
    if name == "block_2":
        kwargs |= {"activation": "relu", "norm_epsilon": 1e-2}
    return keras_vit.layers.TransformerBlock(*args, name=name, **kwargs)


def hybrid(**options):
    sizes = {"input_shape": (16, 24, 3), "classes": 4, **TINY, **RESNET}
    sizes |= {"patch_size": 1, "num_layers": 1}
    return keras_vit.HybridVisionTransformer(**{**sizes, **options})


def bit(**options):
    sizes = {"input_shape": (16, 24, 3), "classes": 4, **RESNET}
    return keras_vit.BiT(**{**sizes, **options})


def randomize(model, scale=0.3):
    """Moves every weight, because zeros would hide mistakes, and returns all
    by path."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        noise = rng.normal(size=weight.shape) * scale
        if "seed" not in weight.path and "probability" not in weight.path:
            weight.assign(weight + noise.astype(weight.dtype))
    return {weight.path: numpy(weight) for weight in model.weights}


def images(*shape):
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, size=shape or (2, 8, 12, 3)).astype("float32")


def vit(**options):
    """Returns a model of one block for 8 x 8 pixels and 3 classes."""
    sizes = {"input_shape": (8, 8, 3), "hidden_size": 16, "num_heads": 2}
    sizes |= {"patch_size": 4, "num_layers": 1}
    if options.get("include_top", True):
        sizes["classes"] = 3
    return keras_vit.VisionTransformer(**{**sizes, **options})
