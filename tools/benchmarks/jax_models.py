"""The original Vision Transformer in Flax.

vit_jax is not on the package index: put a clone of
google-research/vision_transformer on PYTHONPATH.
"""

import types

import jax
import jax.numpy as jnp
from benchmarks.contenders import CLASSES


def vit_jax(size):
    from vit_jax import models_vit

    patch = (size.patch_size, size.patch_size)
    return models_vit.VisionTransformer(
        num_classes=CLASSES,
        patches=types.SimpleNamespace(size=patch),
        hidden_size=size.hidden_size,
        transformer={
            "mlp_dim": size.mlp_dim,
            "num_heads": size.num_heads,
            "num_layers": size.num_layers,
            "attention_dropout_rate": 0.0,
            "dropout_rate": 0.0,
        },
    )


def runs(build, size, images, what):
    """Returns a function that runs the model once and waits."""
    import optax

    model = build(size)
    images = jnp.asarray(images)
    weights = jax.jit(model.init, static_argnames="train")(
        jax.random.key(0), images, train=False
    )
    apply = jax.jit(lambda w, x: model.apply(w, x, train=False))
    if what == "inference":
        return lambda: jax.block_until_ready(apply(weights, images))
    labels = jnp.arange(len(images)) % CLASSES
    optimizer = optax.sgd(1e-3, momentum=0.9)

    def loss(weights):
        logits = model.apply(weights, images, train=True)
        losses = optax.softmax_cross_entropy_with_integer_labels
        return losses(logits, labels).mean()

    def step(weights, state):
        value, gradients = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, value

    step = jax.jit(step, donate_argnums=(0, 1))
    held = [weights, optimizer.init(weights)]

    def once():
        *held[:], value = step(*held)
        jax.block_until_ready(value)

    return once
