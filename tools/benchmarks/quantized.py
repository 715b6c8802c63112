"""Size, time and features of an encoder in float32 and in fewer bits.

It needs PyTorch, onnxruntime, OpenVINO and NNCF. `--images` is a folder with
train/CLASS/* and test/CLASS/*. The features are the class token. Their cosine
with those of float32 is the mean of the test images, and the lowest; the
accuracy is that of the 5 nearest neighbors among the training images, some of
which calibrate static quantization. Milliseconds are medians of CPU time, which
other programs hardly affect, on one core.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np

NUM_CALIBRATION = 64
Runner = Callable[[np.ndarray], np.ndarray]


def keras_runs(
    model: object, folder: pathlib.Path
) -> Iterator[tuple[str, Runner]]:
    """Yields the model of Keras and its quantized ones, with their names."""
    from keras_vit import converters

    model.save(folder / "Keras.keras")
    yield "Keras", model.predict_on_batch
    for bits in ("int8", "int4"):
        copy = converters.load(folder / "Keras.keras")
        copy.quantize(bits)
        copy.save(folder / f"Keras {bits}.keras")
        yield f"Keras {bits}", copy.predict_on_batch


def exported_runs(
    model: object, folder: pathlib.Path, calibration: np.ndarray
) -> Iterator[tuple[str, Runner]]:
    """Yields the exported model and its quantized ones, with their names."""
    import nncf
    import openvino
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    from keras_vit import exporting

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = list(calibration)

        def get_next(self) -> dict | None:
            return {"images": self.rest.pop()[None]} if self.rest else None

    path, dynamic, static = (
        folder / f"ONNX Runtime{name}.onnx"
        for name in ("", " int8 dynamic", " int8 static")
    )
    size = calibration.shape[1:3]
    exporting.export(model, path, image_size=size, check=False)
    yield path.stem, exporting.read_onnx(path)
    ready = folder / "ready.onnx"
    shape_inference.quant_pre_process(path, ready, skip_symbolic_shape=True)
    options = {  # as in tools/export.py --int8-weights
        "op_types_to_quantize": ["MatMul", "Gemm"],
        "per_channel": True,
        "weight_type": quantization.QuantType.QInt8,
        "reduce_range": True,
    }
    quantization.quantize_dynamic(ready, dynamic, **options)
    yield dynamic.stem, exporting.read_onnx(dynamic)
    quantization.quantize_static(ready, static, Batches(), **options)
    yield static.stem, exporting.read_onnx(static)
    read = openvino.Core().read_model
    for name, make in {
        "OpenVINO": lambda: read(path),
        "OpenVINO int8 dynamic": lambda: read(dynamic),
        "OpenVINO int8 weights": lambda: nncf.compress_weights(read(path)),
    }.items():
        target = folder / f"{name}.xml"
        # The default would round the weights to float16.
        openvino.save_model(make(), target, compress_to_fp16=False)
        yield name, exporting.read_openvino(target)


def cpu_milliseconds(run: Runner, images: np.ndarray, rounds: int) -> float:
    """Returns the median CPU time of a call, after one that may compile."""
    times = []
    for _ in range(rounds + 1):
        start = time.process_time()
        run(images)
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times[1:])


def main(a: argparse.Namespace) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    # The runtimes take as many threads as there are cores, and wait by
    # spinning, which is CPU time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

    import keras_vit

    (size,) = a.image_size or [112]
    data = keras_vit.data.load_dataset(a.images)
    model = keras_vit.converters.load(
        a.encoder, input_shape=(size, size, 3), pooling="token"
    )
    model = keras_vit.models.inference_model(model)
    options = dict(image_size=size, mode="torch", protocol="whole")
    (x, y), (test_x, test_y) = (
        map(np.concatenate, zip(*(b[:2] for b in batches), strict=True))
        for batches in (
            data.batches(split, batch_size=32, **options)
            for split in ("train", "test")
        )
    )
    print("| | MB | 1 image, ms | 8 images, ms | cosine | lowest | k-NN |")
    print("|---|---|---|---|---|---|---|")
    expected = None
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        some = x[:: len(x) // NUM_CALIBRATION]
        for name, run in itertools.chain(
            keras_runs(model, folder), exported_runs(model, folder, some)
        ):
            times = [cpu_milliseconds(run, x[:n], a.rounds) for n in (1, 8)]
            files = [f for f in folder.iterdir() if f.stem == name]
            megabytes = sum(f.stat().st_size for f in files) / 1e6
            train, test = (
                np.concatenate([run(z[i : i + 8]) for i in range(0, len(z), 8)])
                for z in (x, test_x)
            )
            expected = test if expected is None else expected
            cosine = (test * expected).sum(axis=1)
            cosine /= np.prod(np.linalg.norm([test, expected], axis=2), axis=0)
            votes = keras_vit.evaluation.nearest_neighbours(
                train, y, len(data.class_names), test, 5
            )
            print(
                f"| {name} | {megabytes:.1f} | {times[0]:.0f} | {times[1]:.0f} "
                f"| {cosine.mean():.4f} | {cosine.min():.4f} "
                f"| {keras_vit.evaluation.accuracy(votes, test_y):.3f} |",
                flush=True,
            )
