"""Under PyTorch, blocks behave as modules of plain Keras layers do.

Hooks, a replaced `forward`, `torch.func` and `torch.jit.trace` see every layer
and every tensor as it was computed.
"""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.harness import numpy

pytestmark = pytest.mark.backends("torch")
torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 32, 32, 3)).astype("float32")


def vit(**arguments):
    model = keras_vit.VisionTransformer(
        input_shape=(32, 32, 3),
        patch_size=8,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        classes=5,
        **arguments,
    )
    model.get_layer("head").kernel.assign(RNG.normal(size=(32, 5)))
    return model


def bit():
    return keras_vit.BiT(
        resnet_layers=(1, 1),
        width_factor=0.5,
        input_shape=(32, 32, 3),
        classes=5,
    )


def hybrid():
    return keras_vit.HybridVisionTransformer(
        resnet_layers=(1, 1),
        patch_size=1,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        input_shape=(32, 32, 3),
        classes=5,
    )


@pytest.mark.parametrize("make", [vit, bit, hybrid])
def test_hooks_may_keep_tensors_without_copying_them(make):
    """No layer overwrites a tensor that another layer has returned."""
    model = make()
    kept = []

    def keep(module, inputs, output):
        for tensor in (*inputs, output):
            if isinstance(tensor, torch.Tensor):
                kept.append((module.path, tensor, tensor.clone()))

    for layer in model._flatten_layers(include_self=False):
        layer.register_forward_hook(keep)
    with torch.no_grad():
        model(IMAGES)
    assert kept
    changed = [
        path
        for path, by_reference, copy in kept
        if not torch.equal(by_reference, copy)
    ]
    assert not changed


def inner_layers(model):
    """The layers inside blocks whose `call` runs in a forward pass."""
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(
            layer, (keras.layers.Dropout, keras.layers.InputLayer)
        )
    ]


@pytest.mark.parametrize("make", [vit, bit, hybrid])
def test_a_replaced_forward_runs_in_every_layer(make):
    """As accelerate's `add_hook_to_module` and similar tools replace it."""
    model = make()
    called = set()

    def wrap(layer):
        forward = layer.forward

        def wrapped(*arguments, **options):
            called.add(layer.path)
            return forward(*arguments, **options)

        layer.forward = wrapped

    for layer in inner_layers(model):
        wrap(layer)
    model(IMAGES)
    assert called == {layer.path for layer in inner_layers(model)}


def test_an_overridden_call_method_runs_inside_a_block():
    class Doubled(keras.layers.Dense):
        def __call__(self, *arguments, **options):
            return 2 * super().__call__(*arguments, **options)

    block = keras_vit.layers.MlpBlock(8)
    tokens = ops.convert_to_tensor(RNG.normal(size=(2, 3, 4)), "float32")
    before = numpy(block(tokens).detach())
    block.dense_2.__class__ = Doubled
    np.testing.assert_allclose(
        numpy(block(tokens).detach()), 2 * before, rtol=1e-6
    )


# PyTorch has no batching rule for its attention kernel on a CPU: it warns and
# runs one image after the other.
SLOW_VMAP = pytest.mark.filterwarnings("ignore:There is a performance drop")


@SLOW_VMAP
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "swiglu"])
def test_vmap_of_a_model(activation, gradients):
    model = vit(activation=activation)
    images = torch.tensor(IMAGES)
    with torch.set_grad_enabled(gradients):
        expected = model(images)
        found = torch.func.vmap(lambda image: model(image[None])[0])(images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@SLOW_VMAP
def test_vmap_of_gradients():
    """Gradients of each image's own logits, as saliency maps take them."""
    model = vit()
    images = torch.tensor(IMAGES)

    def logit(image):
        return model(image[None])[0, 0]

    found = torch.func.vmap(torch.func.grad(logit))(images)
    images.requires_grad_()
    model(images)[:, 0].sum().backward()
    torch.testing.assert_close(found, images.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("make", [vit, bit, hybrid])
def test_trace(make, gradients):
    """`torch.jit.trace` checks its own trace."""
    model = make()
    images = torch.tensor(IMAGES)
    with torch.set_grad_enabled(gradients):
        traced = torch.jit.trace(model, images)
        torch.testing.assert_close(traced(images), model(images))


@pytest.mark.parametrize("gradients", [True, False])
def test_compile_without_graph_breaks(gradients):
    """Stock `keras.layers.MultiHeadAttention` cannot, nor can convolutions of
    Keras: `torch.compile(BiT)` needs `fullgraph=False`."""
    model = keras_vit.VisionTransformer(
        patch_size=8,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        input_shape=(16, 16, 3),
        classes=3,
    )
    x = torch.ones(2, 16, 16, 3)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(compiled(x), model(x))
