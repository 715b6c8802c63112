"""Vision Transformers of Keras packages, as their users run them, and the
matrix products of one alone."""

import keras
import numpy as np
from benchmarks.contenders import CLASSES
from keras import ops

DINO_ARGUMENTS = {"output_dim": 4096, "hidden_dim": 512, "bottleneck_dim": 256}


def keras_vit(size, **arguments):
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(size.image_size, size.image_size, 3),
        patch_size=size.patch_size,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        mlp_dim=size.mlp_dim,
        **{"classes": CLASSES, **arguments},
    )


def keras_vit_erf(size):
    return keras_vit(size, activation="gelu")


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
        backbone=backbone, num_classes=CLASSES
    )


def dino(size):
    from keras_vit import pretraining

    encoder = keras_vit(size, include_top=False, activation="gelu")
    return pretraining.DINO(encoder, **DINO_ARGUMENTS)


def dino_crops(batch):
    """Returns two crops of 224 pixels and two of 96 of each image."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(batch, 2, size, size, 3)).astype("float32")
        for name, size in (("global", 224), ("local", 96))
    }


def products(size):
    """The matrix products of a Vision Transformer alone.

    Without biases, norms, activations, softmax, positions, class token and
    sums, the time is that of the backend's products of matrices of these
    shapes.
    """
    images = keras.Input((size.image_size, size.image_size, 3))
    return keras.Model(images, _Products(size)(images))


class _Products(keras.Layer):
    def __init__(self, size):
        super().__init__()
        self.size = size
        width, mlp = size.hidden_size, size.mlp_dim
        shapes = [(3 * size.patch_size**2, width)]
        block = [(width, width)] * 4 + [(width, mlp), (mlp, width)]
        shapes += [*block * size.num_layers, (width, CLASSES)]
        self.matrices = [self.add_weight(shape=shape) for shape in shapes]

    def call(self, images):
        size = self.size
        count = (size.image_size // size.patch_size) ** 2
        by_head = (
            -1,
            count,
            size.num_heads,
            size.hidden_size // size.num_heads,
        )
        patches, *blocks, head = self.matrices
        # The number and the size of the patches matter, not their pixels.
        x = ops.reshape(images, (-1, count, patches.shape[0])) @ patches
        for i in range(0, len(blocks), 6):
            query, key, value, out, first, second = blocks[i : i + 6]
            q, k, v = (
                ops.transpose(ops.reshape(x @ w, by_head), (0, 2, 1, 3))
                for w in (query, key, value)
            )
            x = (q @ ops.swapaxes(k, 2, 3)) @ v
            x = ops.reshape(
                ops.swapaxes(x, 1, 2), (-1, count, size.hidden_size)
            )
            x = x @ out @ first @ second
        return x[:, 0] @ head


def runs(build, size, images, what, jit_compile="auto", direct=False):
    """Returns a function that runs the model once and waits.

    With `direct`, inference is without Keras's trainer: jitted under JAX, a
    function of a graph under TensorFlow, without gradients under PyTorch.
    """
    model = build(size)
    if build is dino:
        model.compile(keras.optimizers.AdamW(1e-4))
        crops = dino_crops(len(images))
        return lambda: model.train_on_batch(crops)
    inputs = ops.convert_to_tensor(images)
    if what == "inference":
        if direct:
            return _direct(model, inputs)
        if jit_compile is True:
            model.jit_compile = True
        return lambda: model.predict_on_batch(inputs)
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    labels = ops.convert_to_tensor(np.arange(len(images)) % CLASSES)
    return lambda: model.train_on_batch(inputs, labels)


def _direct(model, inputs):
    backend = keras.config.backend()
    if backend == "torch":
        import torch

        return torch.inference_mode()(lambda: model(inputs, training=False))
    if backend == "tensorflow":
        import tensorflow as tf

        call = tf.function(lambda: model(inputs, training=False))
        return lambda: call().numpy()
    import jax

    weights = [[v.value for v in model.trainable_variables]]
    weights.append([v.value for v in model.non_trainable_variables])
    call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
    return lambda: jax.block_until_ready(call(weights, inputs))
