"""Models and blocks behave as plain Keras layers.

Hooks, replaced methods, transformations and compilers of the backends, threads,
subclasses and copies. The same for LoRA, quantization and exports is in
`tests/models/test_serving.py`.
"""

import concurrent.futures
import copy
import functools
import os
import pickle
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.composite import sublayers
from tests import small
from tests.harness import numpy
from tests.markers import on_all
from tests.small import hybrid

backend = keras.config.backend()
if backend == "torch":
    import torch
elif backend == "tensorflow":
    import tensorflow as tf
else:
    import jax

SIZE = (16, 24, 3)
IMAGES = small.images(2, *SIZE)
vit = functools.partial(small.tiny, input_shape=SIZE, patch_size=8)


def vit_all_tokens():
    return vit(pooling="map", qk_norm=True, layer_scale=0.5, num_registers=1)


def random(make):
    model = make()
    small.randomize(model, 0.1)
    return model


models = pytest.mark.parametrize("make", [vit_all_tokens, hybrid])


def assert_close(found, expected, tolerance=1e-5):
    found, expected = (np.asarray(ops.convert_to_numpy(x)) for x in (found, expected))
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, atol=tolerance * scale)


def inner_layers(model):
    """Returns all layers that a forward pass calls, also inside blocks."""
    return [
        layer
        for _, layer, _ in sublayers(model)
        if not isinstance(layer, (keras.layers.Dropout, keras.layers.InputLayer))
    ]


@pytest.mark.parametrize(
    "method",
    ["call", pytest.param("forward", marks=pytest.mark.backends("torch"))],
)
@pytest.mark.parametrize("make", on_all([vit_all_tokens, hybrid], [vit_all_tokens]))
def test_replaced_method_runs_in_every_layer(make, method):
    """accelerate's `add_hook_to_module` and similar tools replace
    PyTorch's `forward`."""
    model = make()
    called = set()

    def wrap(layer):
        original = getattr(layer, method)

        def wrapped(*arguments, **options):
            called.add(layer.path)
            return original(*arguments, **options)

        setattr(layer, method, wrapped)

    for layer in inner_layers(model):
        wrap(layer)
    model(IMAGES)
    assert called == {layer.path for layer in inner_layers(model)}


@pytest.mark.parametrize("make", on_all([vit, hybrid], [vit]))
def test_concurrent_calls(make):
    """Eight threads call one model concurrently, with different images."""
    count = 8
    model = random(make)
    batches = [IMAGES * (i + 1) / count for i in range(count)]
    expected = [numpy(model(batch)) for batch in batches]
    together = threading.Barrier(count)

    def call(batch):
        together.wait(300)
        return [numpy(model(batch)) for _ in range(3)]

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for found, one in zip(pool.map(call, batches), expected, strict=True):
            for again in found:
                # A backend's own threads may split sums in other ways.
                assert_close(again, one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, way",
    [
        (vit_all_tokens, copy.deepcopy),
        pytest.param(
            hybrid,
            lambda model: pickle.loads(pickle.dumps(model)),
            marks=pytest.mark.backends("torch"),
        ),
    ],
)
def test_copied_models_match_and_share_nothing(make, way):
    model = random(make)
    model.name = "renamed"
    copied = way(model)
    assert type(copied) is type(model) and copied.name == "renamed"
    assert_close(copied(IMAGES), model(IMAGES), 1e-6)
    # Nothing is shared.
    for weight in copied.weights:
        weight.assign(np.zeros(weight.shape))
    assert all(np.abs(w).max() > 0 for w in model.get_weights())


on_torch = pytest.mark.backends("torch")


@on_torch
@pytest.mark.parametrize("kind", ["forward", "full_backward"])
@models
def test_hooks_may_keep_tensors(make, kind):
    """No layer overwrites a tensor that another layer has returned."""
    model = random(make)
    expected = gradient_of(model)
    kept = []

    def keep(module, *values):
        for tensor in keras.tree.flatten(values):
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.detach()
                kept.append((module.path, tensor, tensor.clone()))

    for layer in inner_layers(model):
        getattr(layer, f"register_{kind}_hook")(keep)
    assert_close(gradient_of(model), expected, 1e-6)
    paths = {path for path, _, _ in kept}
    assert paths == {layer.path for layer in inner_layers(model)}
    assert not [path for path, a, b in kept if not torch.equal(a, b)]


def gradient_of(model):
    images = torch.tensor(IMAGES, requires_grad=True)
    model(images)[:, 0].sum().backward()
    return images.grad


@pytest.mark.slow
@on_torch
def test_torch_compile_without_graph_breaks():
    """Stock `keras.layers.MultiHeadAttention` cannot, nor can convolutions of
    Keras: `torch.compile(BiT)` needs `fullgraph=False`."""
    model = random(lambda: vit(num_layers=1, pooling="map"))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(gradient_of(compiled), gradient_of(model))


on_jax = pytest.mark.backends("jax")


def pure(model):
    """Returns the model as a function of the images alone."""
    trainable = [v.value for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]
    return lambda x: model.stateless_call(trainable, fixed, x, training=False)[0]


@on_jax
@pytest.mark.parametrize("make", [vit, hybrid])
def test_jax_transformations(make):
    model = random(make)
    call, expected = pure(model), model(IMAGES)
    assert_close(jax.jit(call)(IMAGES), expected)

    def one(image):
        return call(image[None])[0]

    assert_close(jax.jit(jax.vmap(one))(IMAGES), expected)
    gradient = jax.jit(jax.grad(lambda x: call(x)[:, 0].sum()))(IMAGES)
    single = jax.jit(jax.vmap(jax.grad(lambda x: one(x)[0])))(IMAGES)
    assert_close(single, gradient)
    # Forward mode: the derivative in one direction.
    direction = np.cos(np.arange(IMAGES.size, dtype="float32"))
    direction = direction.reshape(IMAGES.shape)
    forward = jax.jit(lambda x, v: jax.jvp(call, (x,), (v,))[1])
    found = forward(IMAGES, direction)[:, 0].sum()
    assert_close(found, (gradient * direction).sum(), 1e-4)


SHARDED = """
import jax, keras, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.small import bit
from tests.test_transparency import hybrid, pure, vit

assert jax.device_count() == 4
mesh = Mesh(np.array(jax.devices()), ("batch",))
sharding = NamedSharding(mesh, PartitionSpec("batch"))
images = jax.device_put(np.ones((8, 16, 24, 3), "float32"), sharding)
wide = jax.device_put(np.ones((8, 32, 32, 3), "float32"), sharding)
# From 256 tokens attention may go image by image, which must not gather them.
long = lambda: vit(input_shape=(32, 32, 3), patch_size=2, num_layers=1)
for make, images in ((long, wide), (hybrid, images), (bit, images)):
    call = pure(make())
    gradient = jax.grad(lambda x: call(x).sum())
    for function in (call, gradient)[: 1 + (make is long)]:
        function = jax.jit(function)
        text = function.lower(images).compile().as_text()
        found = [n for n in ("all-gather", "all-to-all") if n in text]
        assert not found, found
        assert function(images).sharding.spec[0] == "batch"
"""


@pytest.mark.slow
@on_jax
def test_sharded_batch_is_not_gathered():
    found = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env={
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
            "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr


on_tensorflow = pytest.mark.backends("tensorflow")


@on_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("make", [vit_all_tokens, hybrid])
def test_tf_function(make, jit_compile):
    model = random(make)

    def both(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            logits = model(images)
            total = tf.reduce_sum(logits[:, 0])
        return logits, tape.gradient(total, images)

    images = tf.constant(IMAGES)
    found = tf.function(both, jit_compile=jit_compile)(images)
    for a, b in zip(found, both(images), strict=True):
        assert_close(a, b, 5e-5)
