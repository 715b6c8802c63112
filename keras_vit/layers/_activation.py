import keras
from keras import ops

from keras_vit.layers import _fast


def _gelu_tanh(x, training=False):
    return _fast.gelu(x, True, training)


def _gelu(x, training=False):
    return _fast.gelu(x, False, training)


def _quick_gelu(x, training=False):
    return x * ops.sigmoid(1.702 * x)


def _swiglu(x, training=False):
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


# Google's code uses the tanh form (Flax's default); timm, Hugging Face,
# torchvision and Meta the exact one; CLIP-style models the sigmoid;
# DINOv2's giant a gate.
_OURS = {
    "gelu_tanh": _gelu_tanh,
    "gelu": _gelu,
    "quick_gelu": _quick_gelu,
    "swiglu": _swiglu,
}


def get(name):
    """Returns the activation function of that name, of a tensor and `training`.

    Args:
        name: "gelu_tanh", "gelu" (exact), "quick_gelu", "swiglu" (which
            halves the width), or any activation that Keras knows.
    """
    if isinstance(name, str) and name in _OURS:
        return _OURS[name]
    try:
        if not isinstance(name, str):
            raise ValueError("only names can be saved")
        function = keras.activations.get(name)
    except ValueError as error:
        raise ValueError(
            f"`activation` must be one of {', '.join(map(repr, _OURS))}, or "
            f"the name of a Keras activation. Received: activation={name!r}"
        ) from error
    return lambda x, training=False: function(x)
