"""Accumulated gradients through `model.fit`, against the whole batch."""

import itertools

import keras
import numpy as np
import pytest

import keras_vit
from tests.training import pictures

COUNT, BATCH, STEPS = 4, 16, 3

OPTIMIZERS = {
    "sgd": lambda rate, **kwargs: keras_vit.optimizers.PublishedSGD(
        rate, 0.9, **kwargs
    ),
    # Epsilon: Adam makes a whole step of the rounding of a gradient that is
    # zero by mathematics, as that of the keys' bias.
    "adamw": lambda rate, **kwargs: keras_vit.optimizers.PublishedAdamW(
        rate, 0.02, epsilon=1e-3, **kwargs
    ),
}


def fitted(name, count, scaled=False):
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        input_shape=(8, 8, 3),
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        classes=3,
        # Micro-batches would have other dropout masks: dropout is off.
        dropout=0.0,
    )
    optimizer = OPTIMIZERS[name](
        keras_vit.schedules.warmup_cosine(0.05, STEPS, 0.4),
        global_clipnorm=1.0,
        gradient_accumulation_steps=count if count > 1 else None,
        # Powers of two: scaling and its undoing round nothing.
        loss_scale_factor=1024.0 if scaled else None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * BATCH, 8, 8, 3)).astype("float32")
    labels = rng.integers(0, 3, STEPS * BATCH)
    model.fit(
        images, labels, batch_size=BATCH // count, shuffle=False, verbose=0
    )
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize("name, scaled", [("sgd", True), ("adamw", False)])
@pytest.mark.usefixtures("eager")
def test_accumulated_gradients_match_the_full_batch(name, scaled, record_error):
    whole = fitted(name, 1)
    error = np.abs(fitted(name, COUNT, scaled) - whole).max()
    record_error("gradient accumulation", name, error, 1e-6)


def micro_batches(make, count, **options):
    """Images and labels of two batches of 8, as micro-batches."""
    batches = make(batch_size=8, micro_batches=count, seed=3, **options)
    taken = [
        tuple(np.asarray(x) for x in batch)
        for batch in itertools.islice(batches, 2 * count)
    ]
    assert {len(images) for images, _ in taken} == {8 // count}
    return [np.concatenate(column) for column in zip(*taken, strict=True)]


MIXING = [{}, {"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}]
# RandAugment, whose graph is traced in seconds, in one of the cases.
AUGMENTED = {**MIXING[-1], "augment": "light2"}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("options", MIXING)
@pytest.mark.parametrize("start", [0, 5])
def test_micro_batches_of_digits_equal_the_full_batch(options, start):
    """Distortion, lambda and partners are those of the full batch."""
    train = keras_vit.data.load_dataset("digits").train
    whole = micro_batches(train, 1, image_size=8, start=start, **options)
    for count in (2, 4):
        divided = micro_batches(
            train, count, image_size=8, start=start, **options
        )
        for found, expected in zip(divided, whole, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "options, shard",
    [
        (MIXING[0], (0, 1)),
        (AUGMENTED, (1, 2)),
        *(
            pytest.param(options, shard, marks=pytest.mark.nightly)
            for options in MIXING
            for shard in ((0, 1), (1, 2))
            if options is not MIXING[0] or shard != (0, 1)
        ),
    ],
)
def test_micro_batches_of_files_equal_the_full_batch(options, shard, tmp_path):
    for i in range(12):
        part = "train" if i < 10 else "test"
        path = tmp_path / part / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures.encode(pictures.noise(12, 16, seed=i)))
    train = keras_vit.data.load_dataset(str(tmp_path)).train
    options = {"image_size": 8, **options}

    def rows(count):
        batches = train(
            batch_size=8, micro_batches=count, seed=3, shard=shard, **options
        )
        taken = list(batches.take(2 * count).as_numpy_iterator())
        assert {len(images) for images, _ in taken} == {8 // shard[1] // count}
        return [np.concatenate(column) for column in zip(*taken, strict=True)]

    whole = rows(1)
    for found, expected in zip(rows(2), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
