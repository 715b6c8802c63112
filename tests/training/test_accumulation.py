"""Accumulated gradients through `model.fit`, against the whole batch."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training

PARTS, BATCH, STEPS = 4, 16, 3

OPTIMIZERS = {
    "sgd": lambda rate, **kwargs: training.SGD(
        rate, 0.9, convention="optax", **kwargs
    ),
    # Epsilon: Adam makes a whole step of the rounding of a gradient that is
    # zero by mathematics, as that of the keys' bias.
    "adamw": lambda rate, **kwargs: training.AdamW(
        rate, 0.02, epsilon=1e-3, convention="optax", **kwargs
    ),
}


def fitted(name, parts, scaled=False):
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        input_shape=(8, 8, 3),
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        classes=3,
        # Parts of a batch would draw other masks: dropout is off.
        dropout=0.0,
    )
    optimizer = OPTIMIZERS[name](
        training.warmup_cosine(0.05, STEPS, 0.4),
        global_clipnorm=1.0,
        gradient_accumulation_steps=parts if parts > 1 else None,
        # Powers of two: scaling and its undoing round nothing.
        loss_scale_factor=1024.0 if scaled else None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * BATCH, 8, 8, 3)).astype("float32")
    labels = rng.integers(0, 3, STEPS * BATCH)
    model.fit(
        images, labels, batch_size=BATCH // parts, shuffle=False, verbose=0
    )
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize("name, scaled", [("sgd", True), ("adamw", False)])
def test_parts_are_the_whole_batch(name, scaled, record_error):
    whole = fitted(name, 1)
    error = np.abs(fitted(name, PARTS, scaled) - whole).max()
    record_error("gradient accumulation", name, error, 1e-6)
