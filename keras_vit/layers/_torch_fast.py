"""PyTorch's own kernels, where what Keras calls is slower on a CPU.

Each takes and computes what the plain path does, and the tests hold it to
that. torch is imported only where it is the backend.
"""

import math

import keras


def is_on():
    return keras.config.backend() == "torch"


def fits(x):
    """Returns whether the kernels here are as exact as Keras's, and faster.

    On other devices Keras chooses well, and half precision rounds more.
    """
    return (
        is_on()
        and x.device.type == "cpu"
        and keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
    )


def has_hooks(layer):
    """Returns whether a layer has hooks of PyTorch, or a `forward` that was
    replaced in the instance, as tools that wrap modules do."""
    return bool(
        "forward" in vars(layer)
        or layer._forward_hooks
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
        return keras.layers.LayerNormalization.call(layer, inputs)
    import torch

    return torch.nn.functional.layer_norm(
        inputs,
        # Not the inputs' shape: while PyTorch traces for ONNX it is a tensor.
        tuple(layer.gamma.shape),
        layer.gamma.value,
        layer.beta.value,
        layer.epsilon,
    )


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
        return layer.reference_call(x)
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
