"""Images per second of the 224 px pipeline, and of RandAugment.

Figures are per core: images divided by the CPU seconds of the whole process,
with every kind in its own process.
"""

import pathlib
import sys
import tempfile
import time

from benchmarks.processes import numbers

SIZE = 224
LEVEL = "medium1"
# Name, kind, and how many images to time: Keras core's takes long.
KINDS = {
    "JPEG, inception crop, flip": ("none", 2048),
    f"the same with RandAugment {LEVEL}": (LEVEL, 2048),
    f"RandAugment {LEVEL} alone, ours": ("ours", 2048),
    "RandAugment alone, keras-cv": ("keras_cv", 1024),
    "RandAugment alone, Keras core": ("keras", 48),
}


def main(a):
    with tempfile.TemporaryDirectory() as folder:
        _write(pathlib.Path(folder))
        for name, kind in KINDS.items():
            rounds = [
                numbers(pathlib.Path(__file__).read_text(), *kind, folder)
                for _ in range(a.rounds)
            ]
            core, wall = map(max, zip(*rounds, strict=True))
            print(f"{name:38} {core:8.0f} images/s a core, {wall:8.0f} in all")


def _write(folder):
    """Writes JPEG files of ImageNet's usual size, 500 by 375."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(64):
        small = rng.integers(0, 256, (47, 63, 3)).astype(np.uint8)
        picture = Image.fromarray(small).resize((500, 375), 3)
        pixels = np.asarray(picture) + rng.normal(0, 6, (375, 500, 3))
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        picture.save(path, quality=90)


def _measure(kind, images, folder):
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    if kind in ("ours", "keras_cv", "keras"):
        batches = _alone(kind)
    else:
        data = keras_vit.data.load_dataset(folder)
        batches = data.train(
            image_size=SIZE, batch_size=16, protocol="vit_jax", augment=kind
        )
    iterator = iter(batches)
    for _ in range(4):  # tracing and prefetching
        next(iterator)
    wall, core = time.perf_counter(), time.process_time()
    for _ in range(images // 16):
        next(iterator)
    done = images // 16 * 16
    print(done / (time.process_time() - core))
    print(done / (time.perf_counter() - wall))


def _alone(kind):
    """Returns batches of 16 augmented uint8 images that are in memory."""
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import rand_augment

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (64, SIZE, SIZE, 3)).astype(np.uint8)
    images = tf.data.Dataset.from_tensor_slices(pixels).repeat()
    if kind == "ours":
        augment = rand_augment(LEVEL, SIZE)
        images = images.enumerate().map(
            lambda i, x: augment(x, tf.stack([0, i])),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return images.batch(16)
    if kind == "keras_cv":
        import keras_cv

        # The strongest setting is 1, the default is 0.5.
        layer = keras_cv.layers.RandAugment(
            (0, 255), augmentations_per_image=2, magnitude=0.5
        )
    else:
        import keras

        layer = keras.layers.RandAugment((0, 255), num_ops=2, factor=0.5)
    images = images.map(lambda x: tf.cast(x, tf.float32)).batch(16)
    return images.map(layer, num_parallel_calls=tf.data.AUTOTUNE)


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])
