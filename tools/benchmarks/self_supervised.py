"""Self-supervised pre-training: accuracy on digits.

The recipes pre-train on 1,438 digits without labels, once for each
method and seed, all for the same number of steps of 64 images, which cost
different times. Each encoder is then evaluated on the 359 test images: by its
20 nearest neighbours among all training images with their labels; by a ridge
regression of its features with 10 labels per class (100 images, other ones for
each seed); and by fine-tuning for 200 steps with 10 labels per class. The first
rows are random weights, for which fine-tuning is training from scratch. A
figure is the mean over the seeds, followed by the smallest and the largest.
"""

import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"
MASKED, CONTRASTIVE = ("mpp", "mim", "mae"), ("dino", "mocov3")
METHODS = (*MASKED, *CONTRASTIVE)
TUNING, BATCH, SHOTS, RATE = 200, 50, 10, 3e-3
# Models of random weights: sizes of images and patches of the recipes.
SIZES = {"random, 8 px": (8, 2), "random, 16 px": (16, 4)}
COLUMNS = ("k-NN", "linear", "fine-tuned")


def main(a):
    """Prints a table of accuracies, a row for each method."""
    with tempfile.TemporaryDirectory() as folder:
        for method in (*SIZES, *a.methods):
            found, seconds = [], []
            for seed in range(a.seeds):
                before = _child_seconds()
                path = pathlib.Path(folder) / f"{method}-{seed}"
                if method in METHODS:
                    _pretrain(method, seed, a.steps, path)
                seconds.append(_child_seconds() - before)
                found.append(_evaluate(path, method, seed))
            columns = zip(*found, strict=True)
            print(
                f"{method:14}",
                *(
                    f"{name} {statistics.mean(x):.3f} ({min(x):.3f} to "
                    f"{max(x):.3f}) "
                    for name, x in zip(COLUMNS, columns, strict=True)
                ),
                f"{statistics.mean(seconds):.0f} s CPU",
                flush=True,
            )


def _child_seconds():
    """Returns the CPU seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pretrain(method, seed, steps, path):
    name = "masked" if method in MASKED else "contrastive"
    recipe = RECIPES / f"pretrain_{name}.py"
    argv = ["--method", method, "--seed", str(seed), "--steps", str(steps)]
    argv += ["--output", str(path), "--evaluate-every", str(steps)]
    subprocess.run([sys.executable, str(recipe), *argv], check=True)


def _evaluate(path, method, seed):
    """Returns the accuracies of `COLUMNS`."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import evaluation
    from keras_vit import training

    keras.utils.set_random_seed(seed)
    data = keras_vit.data.load_dataset("digits")
    if method in SIZES:
        size, patch_size = SIZES[method]
        model = training.build_model(
            *(None, None, patch_size, seed),
            input_shape=(size, size, 1),
            classes=10,
        )
    else:
        model = keras_vit.converters.load(
            path / "encoder.keras", include_top=True, classes=10
        )
    size = model.input_shape[1]
    features = keras.Model(model.input, model.get_layer("pooling").output)
    x, y = _arrays(data, "train", size)
    test_x, test_y = _arrays(data, "test", size)
    found = features.predict(x, verbose=0)
    test = features.predict(test_x, verbose=0)
    scores = evaluation.nearest_neighbours(found, y, 10, test)
    (linear,) = evaluation.few_shot(
        found, y, SHOTS, [seed], test_features=test, test_labels=test_y
    )
    _tune(model, data, y, size, seed)
    logits = model.predict(test_x, verbose=0)
    tuned = np.mean(logits.argmax(1) == test_y)
    return (
        float(evaluation.accuracy(scores, test_y)),
        linear["accuracy"],
        float(tuned),
    )


def _arrays(data, split, size):
    batches = data.batches(split, image_size=size, batch_size=1797)
    return batches[0][:2]


def _tune(model, data, labels, size, seed):
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.data import PipelineOptions
    from keras_vit.data import train_batches

    rate = keras_vit.schedules.warmup_cosine(RATE, TUNING, 0.1)
    model.compile(
        keras_vit.optimizers.PublishedAdamW(
            rate, 0.05, decay_kernels_only=True
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(seed)
    chosen = np.concatenate(
        [
            rng.permutation(np.flatnonzero(labels == n))[:SHOTS]
            for n in range(10)
        ]
    )
    images, _ = _arrays(data, "train", size)
    options = PipelineOptions(size, BATCH, seed=seed)
    batches = train_batches(images[chosen], labels[chosen], options)
    model.fit(batches, steps_per_epoch=TUNING, verbose=0, shuffle=False)
