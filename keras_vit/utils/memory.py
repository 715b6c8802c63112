"""Memory of a training step."""

from typing import Any

import keras


def free_gradients(model: Any) -> None:
    """Frees the gradients of the last step, if PyTorch keeps them.

    Keras does so only after the forward pass, so that they would be in memory with
    the activations, as much as the weights.
    """
    if keras.backend.backend() == "torch":
        model.zero_grad()
