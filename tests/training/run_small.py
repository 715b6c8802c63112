"""A small run to interrupt."""

import json
import pathlib

import keras
import numpy as np

import keras_vit
from keras_vit_programs import rows, run_folder
from tests.training.fitting import fit

STEPS, INTERVAL, EVERY, BATCH = 24, 8, 5, 4


class Stream(keras.utils.PyDataset):
    """Batch k is determined by k."""

    def __init__(self, start, count=10**6):
        super().__init__()
        self.start, self.count = start, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(self.start + index)
        labels = rng.integers(0, 3, BATCH)
        images = rng.normal(labels[:, None, None, None], 1, (BATCH, 8, 8, 1))
        return images.astype("float32"), labels


def build(average_from=None, accumulate=None):
    rate = 0.05
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="gelu"),
        keras.layers.Dropout(0.1),  # its random state must be restored too
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    schedule = keras_vit.schedules.warmup_cosine(rate, STEPS, 0.2)
    optimizer = keras_vit.optimizers.PublishedAdamW(
        schedule,
        0.2,
        use_ema=True,
        average_from=average_from,
        momentum_dtype="bfloat16",
        gradient_accumulation_steps=accumulate,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model, schedule


def main(folder, callbacks=(), stream=Stream, keep_best=False, average_from=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model, schedule = build(average_from)
    checkpoints = rows.Recorder(
        folder / "checkpoints", EVERY, {"seed": 0}, BATCH, keep_best=keep_best
    )
    checkpoints.learning_rate = schedule
    path, kept = folder / "metrics.csv", checkpoints.rows
    checkpoints.sinks.append(lambda recorder, row: rows.write_rows(kept, path))
    done = checkpoints.restore(model)
    run_folder.prepare_output(folder, ())
    print(f"from {done}", flush=True)
    fit(
        model,
        stream,
        Stream(10**7, count=3),
        steps=STEPS,
        interval=INTERVAL,
        callbacks=list(callbacks),
        checkpoints=checkpoints,
    )
    for row in kept:
        del row["images_per_second"]
    arrays = {
        str(i): keras.ops.convert_to_numpy(v).astype("float32")
        for i, v in enumerate([*model.variables, *model.optimizer.variables])
    }
    np.savez(folder / "end.npz", **arrays)
    (folder / "rows.json").write_text(json.dumps(kept))
    return model, checkpoints


class CountSteps(keras.callbacks.Callback):
    """Counts the steps in shared memory.

    Args:
        counter: `multiprocessing.RawValue` of an integer. It has no lock,
            which a killed process might hold.
    """

    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def on_train_batch_end(self, batch, logs=None):
        self.counter.value += 1
