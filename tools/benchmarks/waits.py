"""What one waits for: commands from Enter to answer, and batches of photographs."""

import importlib
import itertools
import json
import os
import pathlib
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import peers, processes

PHOTOS, BATCH, SIZE = 200, 32, 224
PEERS = ("keras_vit", "keras", "timm", "grain")


def waits(
    backend: str = "jax",
    rounds: int = 3,
    names: tuple[str, ...] = (),
    parts: bool = False,
) -> None:
    """Seconds of commands, from Enter to answer.

    Wall and CPU seconds of each command in a new process, the best of the rounds:
    the first time, and with JAX again with what it kept of the first. Photographs are
    crops of the two of scikit-learn, and models are a ViT-S/16 with random weights.
    Other packages train it on the same photographs for as many steps, evaluate and
    save it; Ultralytics has no Vision Transformer and trains its YOLO11n.

    `--names train predict` measures the commands and the packages whose names begin
    so. `--parts` prints instead where the wall seconds of one run of each command go,
    by Python's profiler, which slows it down.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        photographs(folder / "photos", PHOTOS)
        some = folder / "some"
        some.mkdir()
        for path in sorted((folder / "photos").rglob("*.jpg"))[:11]:
            shutil.copy(path, some)
        trained = f"train photos --model ViTS16 --image-size {SIZE} --batch-size 8"
        _run(_ours_command(f"{trained} --steps 1 --output run"), folder, backend)
        weights = "run/model.safetensors"
        _run(
            _ours_command(f"convert run/model.npz {weights} --to timm"), folder, backend
        )
        tuned = f"{trained} --weights run/model.npz --output out --steps 20"
        commands = {
            "train --steps 1": "train --steps 1 --output out",
            "train": "train --output out",
            "train photographs, 1 step": f"{trained} --steps 1 --output out",
            "train photographs": tuned,
            "train photographs, LoRA": f"{tuned} --train lora",
            "train photographs, head": f"{tuned} --train head",
            "predict 11 photographs": f"predict run {some} --output out",
            "predict 200 photographs": "predict run photos --output out",
            "explain 11 photographs": f"explain run {some} --output out",
            "evaluate": "evaluate run photos --output out",
            # To .pt2 or a SavedModel, which need no further package.
            "export": f"export run out{'.pt2' if backend == 'torch' else ''}",
            "convert S/16": f"convert {weights} out.npz --to vit_jax",
        }
        found = {key: _ours_command(text) for key, text in commands.items()}
        if not parts:
            for peer, backends in peers.BACKENDS.items():
                if backend in backends:
                    for head in (False, True):
                        text = json.dumps([peer, str(folder / "photos"), 20, head])
                        given = ["-m", "benchmarks.processes", "benchmarks.peers"]
                        kind = f"{peer}, head" if head else peer
                        found[kind] = [*given, "train", text]
            again = "  again: wall    CPU" if backend == "jax" else ""
            print(f"{backend:34} wall    CPU{again}")
        for key, words in found.items():
            if names and not key.startswith(tuple(names)):
                continue
            if parts:
                shutil.rmtree(folder / "home", ignore_errors=True)
                _forget(folder)
                profile = folder / "profile"
                _run(["-m", "cProfile", "-o", str(profile), *words], folder, backend)
                print(f"{key:32} {_parts(profile)}", flush=True)
                continue
            times = []
            runs = 2 if backend == "jax" and key in commands else 1
            for _ in range(rounds):
                shutil.rmtree(folder / "home", ignore_errors=True)
                for _ in range(runs):
                    _forget(folder)
                    times.append(_run(words, folder, backend))
            kinds = [zip(*times[i::runs], strict=True) for i in range(runs)]
            best = [min(x) for kind in kinds for x in kind]
            figures = "  ".join(f"{x:6.1f}" for x in best)
            print(f"{key:32} {figures}", flush=True)


def _ours_command(text: str) -> list[str]:
    return ["-m", "keras_vit_programs", *text.split()]


def _forget(folder: pathlib.Path) -> None:
    """Removes what the last command wrote."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    for path in folder.glob("out.*"):
        path.unlink()


def _run(words: list[str], folder: pathlib.Path, backend: str) -> tuple[float, ...]:
    """Runs Python in a new process, and returns its wall and its CPU seconds."""
    home = {"KERAS_BACKEND": backend, "KERAS_HOME": str(folder / "home")}
    variables = {**processes.environment(), **home}
    with open(folder / "log.txt", "w") as log:
        start = time.perf_counter()
        done = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=variables, stdout=log, stderr=log
        )
        _, status, used = os.wait4(done.pid, 0)
        seconds = time.perf_counter() - start
    if status:
        raise RuntimeError((folder / "log.txt").read_text()[-2000:])
    return seconds, used.ru_utime + used.ru_stime


# The functions whose cumulative seconds are those of a part, by the end of their
# file. Parts may contain others: the first step of a training compiles.
_PARTS = {
    "imports": ("<frozen importlib._bootstrap>", "_find_and_load"),
    "data": ("data/sources.py", "load_dataset"),
    "building": ("models/model.py", "build_model"),
    "training": ("models/model.py", "fit"),
    "evaluating": ("models/model.py", "evaluate"),
    "predicting": ("evaluation/predict.py", "predict_dataset"),
    "relevance": ("inspection/relevance.py", "relevance"),
    "pictures": ("matplotlib/figure.py", "savefig"),
    "compiling": ("jax/_src/compiler.py", "compile_or_get_cached"),
}


def _parts(profile: pathlib.Path) -> str:
    """Returns the seconds of each part in a file of the profiler."""
    stats = pstats.Stats(str(profile))
    spent = {"all": stats.total_tt}  # type: ignore[attr-defined]
    for (file, _, function), found in stats.stats.items():  # type: ignore[attr-defined]
        for part, (end, name) in _PARTS.items():
            if function == name and file.endswith(end):
                spent[part] = spent.get(part, 0) + found[3]
    return ", ".join(f"{part} {x:.1f}" for part, x in spent.items() if x >= 0.05)


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
