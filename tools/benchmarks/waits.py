"""What one waits for: commands from Enter to answer, and batches of photographs."""

import importlib
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import processes

PHOTOS, BATCH, SIZE = 200, 32, 224
PEERS = ("keras_vit", "keras", "timm", "grain")


def waits(backend: str = "jax", rounds: int = 3) -> None:
    """Seconds of commands, from Enter to answer.

    Wall and CPU seconds of each command in a new process, the best of the rounds:
    the first time, and again with what JAX kept of the first. Photographs are crops
    of the two of scikit-learn, and the model is a ViT-S/16 with random weights.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        photographs(folder / "photos", PHOTOS)
        some = folder / "some"
        some.mkdir()
        for path in sorted((folder / "photos").rglob("*.jpg"))[:11]:
            shutil.copy(path, some)
        trained = ["train", "photos", "--model", "ViTS16", "--image-size", str(SIZE)]
        run = [*trained, "--steps", "1", "--batch-size", "8", "--output", "run"]
        _command(run, folder, backend)
        weights = "run/model.safetensors"
        _command(["convert", "run/model.npz", weights, "--to", "timm"], folder, backend)
        print(f"{backend:34} wall    CPU  again: wall    CPU")
        for text in (
            "train --steps 1 --output out",
            f"predict run {some} --output out",
            f"explain run {some} --output out",
            "evaluate run photos --output out",
            f"convert {weights} out.npz --to vit_jax",
        ):
            found = []
            for _ in range(rounds):
                shutil.rmtree(folder / "home", ignore_errors=True)
                for _ in range(2):
                    shutil.rmtree(folder / "out", ignore_errors=True)
                    for path in folder.glob("out.*"):
                        path.unlink()
                    found.append(_command(text.split(), folder, backend))
            best = [min(x) for i in (0, 1) for x in zip(*found[i::2], strict=True)]
            figures = "  ".join(f"{x:6.1f}" for x in best)
            print(f"{text.replace(name, '')[:32]:32} {figures}", flush=True)


def _command(words: list[str], folder: pathlib.Path, backend: str) -> tuple[float, ...]:
    """Runs a command of `keras-vit`, and returns its wall and its CPU seconds."""
    home = {"KERAS_BACKEND": backend, "KERAS_HOME": str(folder / "home")}
    variables = {**processes.environment(), **home}
    with open(folder / "log.txt", "w") as log:
        start = time.perf_counter()
        done = subprocess.Popen(
            [sys.executable, "-m", "keras_vit_programs", *words],
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=log,
        )
        _, status, used = os.wait4(done.pid, 0)
        seconds = time.perf_counter() - start
    if status:
        raise RuntimeError((folder / "log.txt").read_text()[-2000:])
    return seconds, used.ru_utime + used.ru_stime


def photographs(folder: pathlib.Path, count: int) -> None:
    """Writes crops of two photographs as JPEG files of two classes."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    for index in range(count):
        height, width = (int(x * rng.uniform(0.5, 1)) for x in (427, 640))
        y, x = rng.integers(428 - height), rng.integers(641 - width)
        pixels = load_sample_images().images[index % 2][y:, x:][:height, :width]
        path = folder / "ab"[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((500, 375)).save(path, quality=90)


def inputs(rounds: int = 3) -> None:
    """Images per second of batches of photographs, compared with other packages.

    JPEG files of 500 x 375 pixels, random crops of 224 x 224 pixels, half of them
    mirrored: `protocol="vit_jax"`; `keras.utils.image_dataset_from_directory` with
    `RandomCrop` and `RandomFlip`; timm's transforms in a `DataLoader` of two workers
    and in Grain with two threads. The median of the rounds, in turns.
    """
    with tempfile.TemporaryDirectory() as folder:
        photographs(pathlib.Path(folder), 2 * PHOTOS)
        found: dict[str, list[float]] = {peer: [] for peer in PEERS}
        for _ in range(rounds):
            for peer, rates in found.items():
                rates.append(processes.run(_rate, peer, folder).value)
        for peer, rates in found.items():
            print(f"{peer:10} {sorted(rates)[rounds // 2]:6.0f} images/s")


def _rate(peer: str, folder: str) -> float:
    batches = iter(_BATCHES[peer](folder))
    next(batches), next(batches)
    start, count = time.perf_counter(), 20
    for _ in itertools.islice(batches, count):
        pass
    return count * BATCH / (time.perf_counter() - start)


def _ours(folder: str) -> Iterable[Any]:
    import keras_vit

    data = keras_vit.data.load_dataset(folder)
    return data.train(image_size=SIZE, batch_size=BATCH, protocol="vit_jax")


def _keras(folder: str) -> Iterable[Any]:
    import keras
    import tensorflow as tf

    images = keras.utils.image_dataset_from_directory(
        folder, image_size=(256, 256), batch_size=None, seed=0
    )
    crop = keras.layers.RandomCrop(SIZE, SIZE)
    flip = keras.layers.RandomFlip("horizontal")

    def change(x: Any, y: Any) -> tuple[Any, Any]:
        return flip(crop(x, training=True), training=True) / 127.5 - 1, y

    images = images.repeat().map(change, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(BATCH).prefetch(2)


def _transform() -> Callable[[Any], Any]:
    return importlib.import_module("timm.data").create_transform(
        SIZE,
        is_training=True,
        scale=(0.05, 1.0),
        color_jitter=None,
        auto_augment=None,
        interpolation="bilinear",
    )


def _timm(folder: str) -> Iterable[Any]:
    import torch.utils.data

    dataset = importlib.import_module("timm.data").ImageDataset(
        folder, transform=_transform()
    )
    # Longer, so that the workers start once.
    images = torch.utils.data.ConcatDataset([dataset] * 4)
    return torch.utils.data.DataLoader(images, BATCH, shuffle=True, num_workers=2)


def _grain(folder: str) -> Iterable[Any]:
    from PIL import Image

    grain = importlib.import_module("grain")
    transform = _transform()
    files = sorted(map(str, pathlib.Path(folder).rglob("*.jpg")))

    def read(path: str) -> Any:
        return transform(Image.open(path).convert("RGB")).numpy()

    images = grain.MapDataset.source(files).shuffle(seed=0).repeat().map(read)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    return images.batch(BATCH).to_iter_dataset(options)


_BATCHES = {"keras_vit": _ours, "keras": _keras, "timm": _timm, "grain": _grain}
