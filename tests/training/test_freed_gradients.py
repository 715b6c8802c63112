"""PyTorch keeps gradients until they are freed, and Keras frees them late."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.small import images, tiny

pytestmark = pytest.mark.backends("torch")


def build(kind):
    model = tiny(input_shape=(16, 16, 3), classes=3)
    if kind == "pretraining":
        encoder = tiny(input_shape=(16, 16, 3), include_top=False)
        model = keras_vit.pretraining.MaskedPatchPrediction(encoder)
        model.compile("sgd")
        return model
    if kind == "distillation":
        teacher = tiny(input_shape=(16, 16, 3), classes=3)
        model = keras_vit.distillation.Distillation(model, teacher)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("kind", ["classifier", "pretraining", "distillation"])
def test_gradients_are_freed_before_the_next_forward_pass(kind, monkeypatch):
    """Beside the activations, they would take as much memory as the weights."""
    model, kept = build(kind), []
    call = type(model).call

    def watched(self, *args, **kwargs):
        kept.append(any(x.grad is not None for x in self.parameters()))
        return call(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "call", watched)
    model.fit(images(2, 16, 16, 3), np.arange(2), batch_size=1, verbose=0)
    assert len(kept) >= 2
    assert not any(kept)
