"""PyTorch's own kernels, where what Keras calls is slower on a CPU.

Each takes and computes what the plain path does, and the tests hold it to
that. torch is imported only where it is the backend.
"""

import math

import keras

# Channels up to which the group norm of channels first is worth the copies: it
# rounds less, and the first norms read images, whose contrast may be small.
EXACT = 64


def is_on():
    return keras.config.backend() == "torch"


def fits(x):
    """Whether group norm and attention are as exact, and faster.

    Elsewhere than on a CPU, the first copies images into another order, and
    Keras chooses well for the second. In half precision, both round more.
    """
    return (
        is_on()
        and x.device.type == "cpu"
        and keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
    )


def fits_group_norm(x):
    """Whether also its gradients are safe.

    PyTorch 2.13 crashes where the weights want gradients and images with
    channels last want none.
    """
    if not fits(x):
        return False
    import torch

    return x.requires_grad or not torch.is_grad_enabled()


def may_skip_call(layer, owner):
    """Whether a layer inside another may do without what Keras does around a
    call: a tenth of a millisecond each, which a model has a hundred of.

    Its owner was called with all that: inputs converted, modes resolved. What
    the layer may have beyond it, a hook, and a precision that is set for the
    time of a call, want the call.
    """
    import torch

    return (
        layer.built
        and layer._dtype_policy is owner._dtype_policy  # as when quantised
        and layer.compute_dtype == layer.variable_dtype
        and layer._remat_mode is None
        and layer.activity_regularizer is None
        and keras.distribution.distribution() is None
        and not has_hooks(layer)
        and not torch.nn.modules.module._has_any_global_hook()
    )


def has_hooks(layer):
    """Whether a layer itself has a hook of PyTorch's."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def shared(array):
    """A tensor in the memory of a NumPy array, where PyTorch takes it."""
    import torch

    plain = array.dtype.kind == "f" and array.dtype.isnative
    if not (plain and array.flags.writeable):
        return array
    if any(stride < 0 for stride in array.strides):
        return array
    return torch.from_numpy(array)


def layer_norm(layer, inputs):
    """A layer norm over the last axis, without Keras's checks around it."""
    if not fits(inputs):
        return type(layer).call(layer, inputs)
    import torch

    return torch.nn.functional.layer_norm(
        inputs,
        inputs.shape[-1:],
        layer.gamma.value,
        layer.beta.value,
        layer.epsilon,
    )


def group_norm(x, groups, gamma, beta, epsilon):
    """Returns images (B, H, W, C) with their groups normalised."""
    import torch

    x = x.permute(0, 3, 1, 2)  # a view, which PyTorch knows as channels last
    if x.shape[1] <= EXACT:
        x = x.contiguous()
    x = torch.nn.functional.group_norm(x, groups, gamma, beta, epsilon)
    return x.permute(0, 2, 3, 1).contiguous()


def relu(x):
    """ReLU of a tensor that nobody else reads, in its memory if possible."""
    import torch

    return torch.nn.functional.relu(x, inplace=not torch.is_grad_enabled())


def gelu(x, approximate):
    """GELU, likewise: an MLP's hidden layer is the largest tensor of all."""
    import torch

    form = "tanh" if approximate else "none"
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        # What compiles or exports would keep every part that is written.
        return torch.nn.functional.gelu(x, approximate=form)
    if not (approximate and fits(x) and x.is_contiguous()):
        return torch.ops.aten.gelu_(x, approximate=form)
    # PyTorch's own tanh form takes twice as long. 0.5 (1 + tanh(u)) is
    # sigmoid(2 u); a and b are 2 sqrt(2 / pi) by 1 and by 0.044715.
    a, b = torch.tensor(1.5957691216057308, dtype=x.dtype), 0.07135481627362398
    parts = x.view(-1).split(2**18)  # which stay in the cache
    gate = torch.empty_like(parts[0])  # once: pages cost as much as a product
    for part in parts:
        gate = gate[: part.numel()]
        torch.addcmul(a, part, part, value=b, out=gate).mul_(part).sigmoid_()
        part.mul_(gate)
    return x


def add(x, y):
    """Sum of two tensors, in the memory of `x`, likewise."""
    import torch

    return x + y if torch.is_grad_enabled() else x.add_(y)


def attend(query, key, value, bias=None):
    """Attention of (B, T, H, d), which Keras would copy into (B, H, T, d).

    `bias`, (B, H, T, T), is added to the scaled scores.
    """
    import torch

    # B batch, T tokens, H heads, d head size
    turned = (x.transpose(1, 2) for x in (query, key, value))
    x = torch.nn.functional.scaled_dot_product_attention(
        *turned, attn_mask=bias
    )
    return x.transpose(1, 2)


def dense(layer, axes, x, training=None):
    """A product that starts from its bias.

    Product and sum apart would be two tensors, of which an MLP's are the
    largest of a model.
    """
    if layer.bias is None or keras.backend.standardize_dtype(x.dtype) not in (
        "float32",
        "float64",
        "bfloat16",
    ):
        return type(layer).call(layer, x)
    import torch

    kernel, bias = map(keras.ops.convert_to_tensor, (layer.kernel, layer.bias))
    size = math.prod(kernel.shape[:axes])
    before, after = x.shape[:-axes], kernel.shape[axes:]
    x = torch.nn.functional.linear(
        x.reshape(*before, size),
        kernel.reshape(size, -1).t(),
        bias.reshape(-1),
    )
    return x.reshape(*before, *after)
