"""Masked pre-training: the accuracy on digits.

The recipe pre-trains on 1,438 digits without labels, one run per
method. Then each encoder, and one from scratch, is trained for the same number
of steps with 10 labels per class (100 images, other ones for each seed). The
accuracy is that of the 359 test images.
"""

import pathlib
import subprocess
import sys
import tempfile

RECIPE = pathlib.Path(__file__).parents[2] / "recipes" / "pretrain_masked.py"
STEPS, TUNING, BATCH, SEEDS = 1000, 200, 50, 5
RATES = (1e-3, 3e-3)


def digits():
    with tempfile.TemporaryDirectory() as folder:
        paths = {"from scratch": None}
        for method in ("mpp", "mim", "mae"):
            paths[method] = pathlib.Path(folder) / method
            argv = ["--method", method, "--steps", str(STEPS)]
            argv += ["--output", str(paths[method])]
            done = subprocess.run(
                [sys.executable, str(RECIPE), *argv],
                capture_output=True,
                text=True,
                check=True,
            )
            lines = [x for x in done.stdout.splitlines() if "step" in x]
            print(method, *lines[2:3], lines[-1], sep="\n  ", flush=True)
        _tune(paths)


def _tune(paths):
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import training

    data = keras_vit.data.load_dataset("digits")
    images, labels, _ = data.batches("train", image_size=8, batch_size=1797)[0]
    test, test_labels, _ = data.test(image_size=8, batch_size=1797)[0]

    def build(path):
        if path is None:
            return training.build_model(
                None, None, 2, input_shape=(8, 8, 1), classes=10
            )
        return keras_vit.converters.load(
            path / "encoder.keras", include_top=True, classes=10
        )

    def rate(peak):
        return keras_vit.schedules.warmup_cosine(peak, TUNING, 0.1)

    for peak in RATES:
        # One model, so that the step is compiled once.
        model = build(None)
        optimizer = keras_vit.optimizers.PublishedAdamW(
            rate(peak), 0.05, decay_kernels_only=True
        )
        model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        for name, path in paths.items():
            found = []
            for seed in range(SEEDS):
                keras.utils.set_random_seed(seed)
                model.set_weights(build(path).get_weights())
                for variable in optimizer.variables:
                    variable.assign(variable * 0)
                rng = np.random.default_rng(seed)
                chosen = np.concatenate(
                    [
                        rng.permutation(np.flatnonzero(labels == n))[:10]
                        for n in range(10)
                    ]
                )
                batches = _batches(images[chosen], labels[chosen], seed)
                model.fit(
                    batches, steps_per_epoch=TUNING, verbose=0, shuffle=False
                )
                logits = model.predict(test, verbose=0)
                found.append((logits.argmax(1) == test_labels).mean())
            print(
                f"rate {peak:g}  {name:13} mean {np.mean(found):.4f} of "
                + " ".join(f"{x:.4f}" for x in found),
                flush=True,
            )


def _batches(images, labels, seed):
    from keras_vit.data import PipelineOptions
    from keras_vit.data import train_batches

    options = PipelineOptions(8, BATCH, seed=seed)
    return train_batches(images, labels, options)
