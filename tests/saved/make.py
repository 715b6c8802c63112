"""The models of `files.zip` in this folder, and its writer.

`python -m tests.saved.make` wrote it under PyTorch: small models of every family,
as users save them, with random weights. Later versions must load them with the
same configs, variable paths and outputs. Do not write the file again when a test
fails, since the test protects the files that users have. New models belong into a
second file.
"""

import pathlib
import tempfile
import zipfile

import keras
import numpy as np

import keras_vit
from keras_vit import detection, optimizers, pretraining, segmentation, text
from keras_vit.config import TextConfig
from keras_vit.pretraining.masked_model import MaskedModel
from tests.small import randomize

ARCHIVE = pathlib.Path(__file__).parent / "files.zip"
VIT = {
    "patch_size": 8,
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 24,
    "input_shape": (16, 24, 3),
    "classes": 3,
}
RESNET = {"resnet_layers": (1,), "width_factor": 0.5}
DECODER = {
    "decoder_hidden_size": 8,
    "decoder_num_layers": 1,
    "decoder_num_heads": 2,
}


def vit(**arguments):
    return keras_vit.VisionTransformer(**{**VIT, **arguments})


def encoder(**arguments):
    return vit(include_top=False, **arguments)


MODELS = {
    "vit": vit,
    "vit_pre_logits": lambda: vit(representation_size=8),
    "vit_gap": lambda: vit(pooling="gap", class_token=False),
    "vit_map": lambda: vit(pooling="map", class_token=False),
    "vit_no_top": encoder,
    "vit_any_size": lambda: vit(input_shape=(None, None, 3)),
    "deit": lambda: vit(distillation=True, activation="gelu"),
    "dinov2": lambda: vit(
        num_registers=4,
        layer_scale=0.1,
        pooling="token_gap",
        position_prefix="class",
        mask_token=True,
        activation="gelu",
    ),
    "qk_norm_pre_norm": lambda: vit(qk_norm=True, pre_norm=True),
    "learned_2d": lambda: vit(position_embedding="learned_2d"),
    "relative": lambda: vit(position_embedding="relative"),
    "every_layer": lambda: vit(position_placement="every_layer"),
    "sincos2d": lambda: vit(position_embedding="sincos2d"),
    "dropout": lambda: vit(dropout=0.1, attention_dropout=0.1, drop_path=0.1),
    "hybrid": lambda: keras_vit.HybridVisionTransformer(
        **{**VIT, **RESNET, "patch_size": 1, "input_shape": (32, 48, 3)}
    ),
    "bit": lambda: keras_vit.BiT(**RESNET, input_shape=(32, 48, 3), classes=3),
    "bit_post_activation": lambda: keras_vit.BiT(
        **RESNET, preactivation=False, input_shape=(32, 48, 3), classes=3
    ),
    "yolos": lambda: detection.YOLOS(encoder(pooling=None), 3, 4),
    "eomt": lambda: segmentation.EoMT(
        encoder(pooling=None, layer_scale=1.0, input_shape=(16, 16, 3)), 3, 4, 1
    ),
    "text": lambda: text.TextEncoder(
        TextConfig(
            vocabulary_size=51,
            context_length=8,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            projection_size=10,
            causal=True,
        )
    ),
}
PRETRAINING = {
    "mae": lambda: pretraining.MaskedAutoencoder(encoder(), seed=1, **DECODER),
    "simmim": lambda: pretraining.MaskedImageModeling(encoder(), seed=1),
    "patch_prediction": lambda: pretraining.MaskedPatchPrediction(encoder(), seed=1),
}
# Families whose format of google-research/vision_transformer or BiT exists.
NPZ = {
    "vit": "vit_jax",
    "vit_pre_logits": "vit_jax",
    "vit_gap": "big_vision",
    "vit_map": "big_vision",
    "hybrid": "vit_jax",
    "bit": "bit",
}


def images(shape):
    sizes = zip(shape, (32, 48, 3), strict=True)
    shape = [2, *(size or default for size, default in sizes)]
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, shape).astype("float32")


def outputs(model):
    """Returns the outputs of a model, or of its encoder, in inference."""
    if isinstance(model, MaskedModel):
        model = model.encoder
    shape = model.input_shape[1:]
    x = images(shape) if len(shape) == 3 else np.arange(16).reshape(2, 8)
    found = [
        keras.ops.convert_to_numpy(y).ravel()
        for y in keras.tree.flatten(model(x, training=False))
    ]
    return np.concatenate(found)


def compiled(optimizer):
    """Returns a model that was trained for one step."""
    model = vit()
    randomize(model, 0.05)
    model.compile(optimizer, "mse")
    model.fit(images(model.input_shape[1:]), np.eye(3)[:2], verbose=0)
    return model


def quantized():
    model = vit()
    randomize(model, 0.05)
    model.quantize("int8")
    return model


def write(folder):
    arrays, others = {}, {**MODELS, **PRETRAINING}
    models = {name: build() for name, build in others.items()}
    for model in models.values():
        randomize(model, 0.05)
    models["compiled_sgd"] = compiled(optimizers.PublishedSGD(0.1))
    models["compiled_adamw"] = compiled(
        optimizers.PublishedAdamW(0.01, weight_decay=0.001)
    )
    models["int8"] = quantized()
    for name, model in models.items():
        arrays[f"{name}/output"] = outputs(model)
        arrays[f"{name}/paths"] = np.array([w.path for w in model.weights])
        model.save(folder / f"{name}.keras")
        if name in others:
            model.save_weights(folder / f"{name}.weights.h5")
        if name in NPZ:
            path = folder / f"{name}.npz"
            keras_vit.converters.save(model, path, format=NPZ[name])
    np.savez_compressed(folder / "expected.npz", **arrays)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as temporary,
        zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        write(pathlib.Path(temporary))
        for path in sorted(pathlib.Path(temporary).iterdir()):
            archive.write(path, path.name)
