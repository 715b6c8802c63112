"""Makes the cases `keras_hub_vit`, `keras_hub_deit` and `keras_hub_dinov2`.

    KERAS_BACKEND=torch python tests/golden/make_keras_hub.py

keras-hub builds the models, writes their presets and computes every number;
this script samples the weights. keras-hub is no dependency of the tests.
"""

import pathlib
import shutil

import keras
import keras_hub
import numpy as np

FOLDER = pathlib.Path(__file__).parent
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16}
IMAGE = {"image_shape": (16, 24, 3), "patch_size": 4}


def vit():
    backbone = keras_hub.models.ViTBackbone(
        **SIZES, **IMAGE, mlp_dim=24, layer_norm_epsilon=1e-5
    )
    return keras_hub.models.ViTImageClassifier(
        backbone, num_classes=5, intermediate_dim=12, activation="softmax"
    )


def deit():
    backbone = keras_hub.models.DeiTBackbone(**SIZES, **IMAGE, intermediate_dim=24)
    return keras_hub.models.DeiTImageClassifier(backbone, num_classes=5)


def dinov2():
    return keras_hub.models.DINOV2Backbone(
        **SIZES,
        patch_size=4,
        intermediate_dim=32,
        use_swiglu_ffn=True,
        num_register_tokens=2,
        image_shape=(16, 16, 3),
        position_embedding_shape=(24, 24, 3),
    )


def make(case, model, seed):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        name = weight.path.rpartition("/")[2]
        if "float" not in str(weight.dtype) or "seed" in weight.path:
            continue
        value = rng.normal(size=weight.shape)
        if name in ("gamma", "lambda1"):
            value = 1 + 0.2 * value
        elif len(weight.shape) > 1 and "position" not in weight.path:
            value /= weight.shape[0] ** 0.5
        else:
            value *= 0.2
        weight.assign(value.astype("float32"))
    folder = FOLDER / case
    shutil.rmtree(folder, ignore_errors=True)
    if case == "keras_hub_dinov2":  # resamples its position embeddings
        model.save_to_preset(str(folder))
        model = type(model).from_preset(str(folder))
    shape = tuple(getattr(model, "backbone", model).image_shape)
    image = rng.uniform(-1, 1, size=(2, *shape)).astype("float32")
    x = {"images": image} if isinstance(model.input, dict) else image
    arrays = {"image": image, "output": model(x, training=False)}
    if hasattr(model, "output_dense"):
        model.output_dense.activation = keras.activations.linear
        arrays["logits"] = model(x, training=False)
    arrays = {k: keras.ops.convert_to_numpy(a) for k, a in arrays.items()}
    model.save_to_preset(str(folder))
    np.savez_compressed(folder / "io.npz", **arrays)


if __name__ == "__main__":
    make("keras_hub_vit", vit(), 0)
    make("keras_hub_deit", deit(), 1)
    make("keras_hub_dinov2", dinov2(), 2)
