"""The speed of the product of two large square matrices on each backend: the
fraction of it that a model reaches is its MFU. The matrices are larger on a
GPU, which has not been tested."""

import numpy as np

ON_CPU, ELSEWHERE = 2048, 8192


def jax(size, batch, what, dtype):
    import jax
    import jax.numpy as jnp

    n = ON_CPU if jax.default_backend() == "cpu" else ELSEWHERE
    x = jnp.asarray(_matrix(n), dtype)
    multiply = jax.jit(jnp.matmul)

    def run(times):
        for _ in range(times):
            last = multiply(x, x)
        jax.block_until_ready(last)

    return _with_flops(run, n)


def tensorflow(size, batch, what, dtype):
    import tensorflow as tf

    n = ELSEWHERE if tf.config.list_physical_devices("GPU") else ON_CPU
    x = tf.cast(_matrix(n), dtype)
    multiply = tf.function(lambda: tf.matmul(x, x))

    def run(times):
        for _ in range(times):
            last = multiply()
        last[0, 0].numpy()

    return _with_flops(run, n)


def torch(size, batch, what, dtype):
    import torch

    gpu = torch.cuda.is_available()
    n = ELSEWHERE if gpu else ON_CPU
    x = torch.tensor(_matrix(n), device="cuda" if gpu else "cpu")
    x = x.to(getattr(torch, dtype))

    def run(times):
        for _ in range(times):
            x @ x
        if gpu:
            torch.cuda.synchronize()

    return _with_flops(run, n)


def _matrix(n):
    values = np.random.default_rng(0).standard_normal((n, n)) / n**0.5
    return values.astype("float32")


def _with_flops(run, n):
    run.flops = 2 * n**3
    return run
