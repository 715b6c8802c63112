"""Accumulated gradients through `model.fit`, against the whole batch."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.small import vit
from tests.training import pictures
from tests.training.batches import take

COUNT, BATCH, STEPS = 4, 16, 3
# Epsilon: Adam makes a whole step of the rounding of a gradient that is zero by
# mathematics, as that of the keys' bias. The weights after `fit` are averages.
OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "AdamW": {
        "weight_decay": 0.02,
        "decay_kernels_only": True,
        "epsilon": 1e-3,
        "use_ema": True,
        "ema_momentum": 0.5,
    },
}


def fitted(name, count, scaled=False):
    keras.utils.set_random_seed(0)
    # Micro-batches would have other dropout masks.
    model = vit(dropout=0.0)
    optimizer = getattr(keras_vit.optimizers, f"Published{name}")(
        keras_vit.schedules.warmup_cosine(0.05, STEPS, 0.4),
        global_clipnorm=1.0,
        gradient_accumulation_steps=count if count > 1 else None,
        # Powers of two: scaling and its undoing round nothing.
        loss_scale_factor=1024.0 if scaled else None,
        **OPTIMIZERS[name],
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * BATCH, 8, 8, 3)).astype("float32")
    labels = rng.integers(0, 3, STEPS * BATCH)
    model.fit(images, labels, batch_size=BATCH // count, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize("name, scaled", [("SGD", True), ("AdamW", False)])
@pytest.mark.usefixtures("eager")
def test_accumulated_gradients_match_the_full_batch(name, scaled, record_error):
    """The schedule, clipping and the average count full batches."""
    whole = fitted(name, 1)
    error = np.abs(fitted(name, COUNT, scaled) - whole).max()
    record_error("gradient accumulation", name, error, 1e-6)


MIXED = {"mixup": 1.0, "cutmix": 1.0}


def train_of(kind):
    """Returns a dataset's function of batches, and one of a seed that returns a
    random number."""
    if kind == "digits":
        return keras_vit.data.load_dataset("digits").train, lambda seed: seed.uniform()
    uniform = pytest.importorskip("tensorflow").random.stateless_uniform
    images = [pictures.noise(12, 16, seed=i) for i in range(12)]
    data = keras_vit.data.from_arrays(np.stack(images), np.arange(12) % 2)
    return data.train, lambda seed: uniform((), seed)


def rows(train, count, **options):
    """Images and labels of two batches of 8, as micro-batches."""
    batches = train(image_size=8, batch_size=8, micro_batches=count, seed=3, **options)
    size = 8 // count // options.get("shard", (0, 1))[1]
    taken = take(batches, 2 * count)
    assert all(x.shape[1] == size for x in taken)
    return [x.reshape(-1, *x.shape[2:]) for x in taken]


@pytest.mark.parametrize(
    "kind, options",
    [
        pytest.param(kind, options, marks=pytest.mark.backends(backend))
        for kind, backend, options in (
            ("digits", "torch", {}),
            ("digits", "torch", {**MIXED, "start": 5}),
            ("arrays", "tensorflow", {**MIXED, "shard": (1, 2)}),
        )
    ],
)
def test_micro_batches_equal_the_full_batch(kind, options):
    """Distortion, lambda and partners are those of the full batch, and so are the
    random numbers of a step of batches."""
    train, uniform = train_of(kind)

    def scaled(batch, seed):
        return batch | {"image": batch["image"] * uniform(seed)}

    plain = rows(train, 1, **options)
    options = {**options, "batch_steps": [scaled]}
    whole = rows(train, 1, **options)
    factors = []
    for old, new in zip(*(np.split(x[0], 2) for x in (plain, whole)), strict=True):
        factors.append((new * old).sum() / (old**2).sum())
        np.testing.assert_allclose(new, old * factors[-1], atol=1e-5)
    assert abs(factors[0] - factors[1]) > 1e-3
    for count in (2, 4) if kind == "digits" else (2,):
        for found, expected in zip(rows(train, count, **options), whole, strict=True):
            np.testing.assert_array_equal(found, expected)
