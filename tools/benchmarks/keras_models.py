"""Vision Transformers of Keras packages, as their users run them."""

import keras
import numpy as np


def keras_vit(size, activation="gelu_tanh"):
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(size.image_size, size.image_size, 3),
        patch_size=size.patch_size,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        mlp_dim=size.mlp_dim,
        classes=size.classes,
        activation=activation,
    )


def keras_vit_erf(size):
    return keras_vit(size, activation="gelu")


def keras_vit_sgd(size):
    return keras_vit(size)


def keras_hub(size):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(size.image_size, size.image_size, 3),
        patch_size=(size.patch_size, size.patch_size),
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        hidden_dim=size.hidden_size,
        mlp_dim=size.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=size.classes
    )


def zeromodels(size):
    from zeromodels.models import vit

    config = vit.ViTConfig(
        patch_size=size.patch_size,
        embed_dim=size.hidden_size,
        depth=size.num_layers,
        num_heads=size.num_heads,
        mlp_ratio=size.mlp_dim / size.hidden_size,
        image_size=size.image_size,
        num_classes=size.classes,
    )
    return vit.ViTImageClassify(config)


def runs(build, size, batch, what, dtype, jit_compile="auto", direct=False):
    """Returns a function that runs the model a number of times and waits.

    With `direct`, the model is called without Keras's trainer: jitted under
    JAX, without gradients under PyTorch.
    """
    if dtype != "float32":
        keras.config.set_dtype_policy(
            f"mixed_{dtype}" if what == "step" else dtype
        )
    model = build(size)
    shape = (batch, size.image_size, size.image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    images = keras.ops.convert_to_tensor(images)
    if what == "inference":
        if jit_compile is True:
            model.jit_compile = True
        once = _direct(model) if direct else model.predict_on_batch
        return lambda times: [once(images) for _ in range(times)]
    sgd = keras.optimizers.SGD
    if build is keras_vit_sgd:
        from keras_vit.optimizers import PublishedSGD as sgd
    model.compile(
        sgd(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    labels = keras.ops.convert_to_tensor(np.arange(batch) % size.classes)
    return lambda times: [
        model.train_on_batch(images, labels) for _ in range(times)
    ]


def _direct(model):
    if keras.config.backend() == "torch":
        import torch

        def call(images):
            with torch.inference_mode():
                logits = model(images, training=False)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return logits

        return call
    import jax

    weights = [[v.value for v in model.trainable_variables]]
    weights.append([v.value for v in model.non_trainable_variables])
    call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
    return lambda images: jax.block_until_ready(call(weights, images))
