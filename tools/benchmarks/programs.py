"""Time and memory of what the package does, each in a new process."""

import functools
import importlib
import pathlib
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import processes
from benchmarks.processes import TOOLS, timed

SIZE = 224
LEVEL = "medium1"


def startup(rounds: int = 7) -> None:
    """The time until the first prediction.

    Seconds to import Keras and keras_vit; to build ViT-B/16 and ViT-H/14; to
    build B/16 and L/16 with random weights from .npz files; and of the first
    call of B/16, which compiles, and of the second. Only the first figure
    includes the import. Best and median.
    """

    def measure(names: tuple[str, ...], function: Callable, *given: str) -> None:
        found = [processes.run(function, *given).value for _ in range(rounds)]
        for name, seconds in zip(names, zip(*found, strict=True), strict=True):
            print(
                f"{name:30} best {min(seconds):6.2f} s, "
                f"median {statistics.median(seconds):6.2f} s",
                flush=True,
            )

    measure(("import keras", "import keras_vit, after it"), _import)
    for name in ("ViTB16", "ViTH14"):
        measure((f"build {name}",), _build, name)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/weights.npz"
        for name in ("ViTB16", "ViTL16"):
            processes.run(_write, name, path)
            measure((f"build {name} with weights",), _build, name, path)
    measure(("first call of ViTB16", "second call of ViTB16"), _call)


def _import() -> list[float]:
    return [
        timed(functools.partial(importlib.import_module, name))
        for name in ("keras", "keras_vit")
    ]


def _build(name: str, weights: str | None = None) -> list[float]:
    import keras_vit

    return [timed(lambda: getattr(keras_vit, name)(weights=weights))]


def _write(name: str, path: str) -> None:
    import keras_vit

    model = getattr(keras_vit, name)()
    keras_vit.converters.save(model, path, overwrite=True)


def _call() -> list[float]:
    import numpy as np

    import keras_vit

    model = keras_vit.ViTB16()
    images = np.zeros((1, SIZE, SIZE, 3), "float32")
    return [timed(lambda: model.predict_on_batch(images)) for _ in range(2)]


def convert(rounds: int = 7) -> None:
    """Time and memory of converting a checkpoint.

    B/16 and L/16 with random weights: seconds in addition to those of a Python
    process that only imports NumPy, and the peak memory as a multiple of the
    file size.
    """

    def measure(function: Callable, *given: str) -> tuple[list[float], float]:
        found = [
            # No backend is loaded.
            processes.run(function, *given, KERAS_BACKEND="none")
            for _ in range(rounds)
        ]
        return [x.seconds for x in found], max(x.peak for x in found)

    bare = min(measure(_import_numpy)[0])
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{x}" for x in ("a.npz", "b.safetensors", "c.npz")]
        for name in ("ViTB16", "ViTL16"):
            processes.run(_write, name, files[0])
            size = pathlib.Path(files[0]).stat().st_size
            print(f"{name}: {size / 1e6:.0f} MB in .npz")
            for source, target, format in (
                (files[0], files[1], "timm"),
                (files[1], files[2], "vit_jax"),
                (files[0], f"{folder}/d.pth", "timm"),
            ):
                times, peak = measure(_convert, source, target, format)
                kinds = [pathlib.Path(x).suffix for x in (source, target)]
                print(
                    f"  {kinds[0]:12} -> {kinds[1]:12} best "
                    f"{min(times) - bare:5.2f} s, median "
                    f"{statistics.median(times) - bare:5.2f} s, peak "
                    f"{peak / 1e6:5.0f} MB, {peak / size:.2f} x",
                    flush=True,
                )


def _import_numpy() -> None:
    importlib.import_module("numpy")


def _convert(source: str, target: str, format: str) -> None:
    sys.argv[1:] = [source, target, "--to", format, "--overwrite"]
    try:
        runpy.run_path(str(TOOLS / "convert.py"), run_name="__main__")
    except SystemExit as done:
        if done.code:
            raise RuntimeError(f"status {done.code}") from done


def memory() -> None:
    """Memory of several devices, and of sliding windows.

    The bytes of ViT-H/14 on each device when it is split over 1 to 8 devices
    (computed from shapes and formats, without allocation), and the peak memory
    of a process that segments a photograph of 1,500 x 1,000 pixels with Ti/16,
    whole and with `segmentation.sliding_window`, into 150 classes.
    """
    import keras

    import keras_vit
    from keras_vit import distribution

    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.ViTH14(input_shape=(SIZE, SIZE, 3))
    alone = distribution.bytes_per_device(model)
    for count in (1, 2, 4, 8):
        mesh = keras.distribution.DeviceMesh(
            (1, count),
            ("batch", distribution.MODEL),
            [f"cpu:{i}" for i in range(count)],
        )
        parallel = distribution.ModelParallel(mesh)
        held = distribution.bytes_per_device(model, parallel)
        print(
            f"ViT-H/14, {count} devices: {held / 1e6:6.0f} MB on each, "
            f"{alone / held:.1f} times less than on one"
        )
    for how in ("nothing", "windows", "whole"):
        peak = processes.run(_segment, how).peak / 2**20
        print(f"segmentation: {how}: {peak:.0f} MiB at most", flush=True)


def _segment(how: str) -> None:
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_image

    import keras_vit

    photo = Image.fromarray(load_sample_image("china.jpg"))
    photo = np.asarray(photo.resize((1500, 1000)), "float32") / 127.5 - 1
    encoder = keras_vit.ViTTi16(
        input_shape=(SIZE, SIZE, 3), include_top=False, pad_to_patch=True
    )
    model = keras_vit.segmentation.LinearSegmenter(encoder, 150)
    if how == "whole":
        model.predict_on_batch(photo[None])[0].argmax(-1)
    elif how == "windows":
        keras_vit.segmentation.sliding_window(
            model, photo, window=512, stride=384, batch_size=1, argmax=True
        )


def pipeline(rounds: int = 7) -> None:
    """Images per second of the 224 px pipeline, and of RandAugment.

    Figures are per core: images divided by the CPU seconds of the whole
    process, with every kind in its own process.
    """
    import numpy as np
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for i in range(64):  # of ImageNet's usual size
            small = rng.integers(0, 256, (47, 63, 3)).astype("uint8")
            picture = Image.fromarray(small).resize((500, 375), 3)
            pixels = np.asarray(picture) + rng.normal(0, 6, (375, 500, 3))
            path = pathlib.Path(folder, "ab"[i % 2], f"{i}.jpg")
            path.parent.mkdir(exist_ok=True)
            picture = Image.fromarray(pixels.clip(0, 255).astype("uint8"))
            picture.save(path, quality=90)
        for name, kind, images in (
            (f"JPEG, inception crop, flip, RandAugment {LEVEL}", LEVEL, 2048),
            (f"RandAugment {LEVEL} alone, ours", "ours", 2048),
            ("RandAugment alone, keras-cv", "keras_cv", 1024),
            ("RandAugment alone, Keras core", "keras", 48),  # takes long
        ):
            found = [
                processes.run(_read, kind, images, folder).value for _ in range(rounds)
            ]
            print(f"{name:47} {max(found):8.0f} images/s", flush=True)


def _read(kind: str, images: int, folder: str) -> float:
    """Returns images per second of CPU time."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    if kind == LEVEL:
        data = keras_vit.data.load_dataset(folder)
        batches = data.train(
            image_size=SIZE, batch_size=16, protocol="vit_jax", augment=kind
        )
    else:
        batches = _augmented(kind)
    iterator = iter(batches)
    for _ in range(4):  # tracing and prefetching
        next(iterator)
    start = time.process_time()
    for _ in range(images // 16):
        next(iterator)
    return images / (time.process_time() - start)


def _augmented(kind: str) -> Iterable[Any]:
    """Returns batches of 16 augmented images that are in memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import rand_augment

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (64, SIZE, SIZE, 3)).astype("uint8")
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
        layer = keras.layers.RandAugment((0, 255), num_ops=2, factor=0.5)
    images = images.map(lambda x: tf.cast(x, tf.float32)).batch(16)
    return images.map(layer, num_parallel_calls=tf.data.AUTOTUNE)
