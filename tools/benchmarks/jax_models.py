"""The original Vision Transformer in Flax, and its matrix products alone.

vit_jax is not on the package index: put a clone of
google-research/vision_transformer on PYTHONPATH.
"""

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import limits


def vit_jax(size, batch, what, dtype):
    if dtype != "float32":
        raise ValueError("its models take no other precision than float32")
    import optax
    from vit_jax import models_vit

    model = models_vit.VisionTransformer(
        num_classes=size.classes,
        patches=_Patches((size.patch_size, size.patch_size)),
        hidden_size=size.hidden_size,
        transformer={
            "mlp_dim": size.mlp_dim,
            "num_heads": size.num_heads,
            "num_layers": size.num_layers,
            "attention_dropout_rate": 0.0,
            "dropout_rate": 0.0,
        },
    )
    images = _images(size, batch)
    weights = jax.jit(model.init, static_argnames="train")(
        jax.random.key(0), images, train=False
    )
    apply = jax.jit(lambda w, x: model.apply(w, x, train=False))
    if what == "inference":
        return _repeat(lambda: apply(weights, images))
    labels = jnp.arange(batch) % size.classes
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
        return value

    return _repeat(once)


class _Patches:
    def __init__(self, size):
        self.size = size


def products(size, batch, what, dtype):
    images = _images(size, batch).astype(dtype)
    weights = limits.weights(size, lambda x: jnp.asarray(x, dtype))

    def forward(weights, images):
        return limits.forward(
            weights, images, size, jnp.reshape, jnp.transpose, fused=True
        )

    if what == "inference":
        return _repeat(_bound(jax.jit(forward), weights, images))
    gradient = jax.grad(lambda w, x: forward(w, x).sum())
    return _repeat(_bound(jax.jit(gradient), weights, images))


def _bound(function, *arguments):
    return lambda: function(*arguments)


def _images(size, batch):
    shape = (batch, size.image_size, size.image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape)
    return jnp.asarray(images, "float32")


def _repeat(once):
    def run(times):
        for _ in range(times):
            last = once()
        jax.block_until_ready(last)

    return run
