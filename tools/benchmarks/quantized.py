"""Size, time and features of an encoder in float32 and in fewer bits.

It needs PyTorch, onnxruntime, OpenVINO and NNCF. `--images` is a folder with
train/CLASS/* and test/CLASS/*. The cosine of the features with those of
float32 is the mean of the test images, and the lowest; the accuracy is that of
the 5 nearest neighbours among the training images. 64 training images calibrate
static quantization. Milliseconds are CPU time, which other programs hardly
affect, on one thread; runs of the contenders alternate.
"""

import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

NUM_CALIBRATION = 64
Runner = Callable[[np.ndarray], np.ndarray]


def keras_runs(model: object, folder: pathlib.Path) -> dict[str, Runner]:
    """Returns the model in Keras, by the name of its precision."""
    from keras_vit import converters

    found = {"Keras": model.predict_on_batch}
    model.save(folder / "Keras.keras")
    for bits in ("int8", "int4"):
        copy = converters.load(folder / "Keras.keras")
        copy.quantize(bits)
        copy.save(folder / f"Keras {bits}.keras")
        found[f"Keras {bits}"] = copy.predict_on_batch
    return found


def exported_runs(
    model: object, folder: pathlib.Path, calibration: np.ndarray
) -> dict[str, Runner]:
    """Returns the exported model and quantized ones, by their names."""
    import nncf
    import openvino
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    from keras_vit.exporting import export
    from keras_vit.exporting import formats

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = list(calibration)

        def get_next(self) -> dict | None:
            return {"images": self.rest.pop()[None]} if self.rest else None

    paths = {
        name: folder / f"ONNX Runtime{name}.onnx"
        for name in ("", " int8 dynamic", " int8 static")
    }
    path, dynamic, static = paths.values()
    size = calibration.shape[1:]
    export.export(
        model, path, "onnx", (None, *size), size[:2], check=False, log=str
    )
    shape_inference.quant_pre_process(
        path, folder / "ready.onnx", skip_symbolic_shape=True
    )
    # As in tools/export.py --int8-weights.
    options = {
        "op_types_to_quantize": ["MatMul", "Gemm"],
        "per_channel": True,
        "weight_type": quantization.QuantType.QInt8,
        "reduce_range": True,
    }
    quantization.quantize_dynamic(folder / "ready.onnx", dynamic, **options)
    quantization.quantize_static(
        folder / "ready.onnx", static, Batches(), **options
    )
    found = {x.stem: formats.read_onnx(x) for x in paths.values()}
    read = openvino.Core().read_model
    transformer = nncf.ModelType.TRANSFORMER
    samples = nncf.Dataset([image[None] for image in calibration])
    for name, make in {
        "OpenVINO": lambda: read(path),
        "OpenVINO int8 dynamic": lambda: read(dynamic),
        "OpenVINO int8 static": lambda: nncf.quantize(
            read(path),
            samples,
            model_type=transformer,
            subset_size=NUM_CALIBRATION,
        ),
        "OpenVINO int8 weights": lambda: nncf.compress_weights(read(path)),
    }.items():
        target = folder / f"{name}.xml"
        # The default would round the weights to float16.
        openvino.save_model(make(), target, compress_to_fp16=False)
        found[name] = formats.read_openvino(target)
    return found


def cpu_milliseconds(
    runs: dict[str, Runner], images: np.ndarray, rounds: int
) -> dict[str, float]:
    """Returns the median CPU time of each contender."""
    times = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run(images)
            if number:  # the first call may compile
                times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(x) for name, x in times.items()}


def main(encoder: str, images: str, image_size: int, rounds: int) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    # The runtimes take as many threads as there are cores, and wait by
    # spinning, which is CPU time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

    import keras_vit

    data = keras_vit.data.load_dataset(images)
    shape = (image_size, image_size, 3)
    model = keras_vit.converters.load(encoder, input_shape=shape)
    model = keras_vit.models.inference_model(model)
    options = dict(image_size=image_size, mode="torch", protocol="whole")
    (x, y), (test_x, test_y) = (
        map(np.concatenate, zip(*(b[:2] for b in batches), strict=True))
        for batches in (
            data.batches(split, batch_size=32, **options)
            for split in ("train", "test")
        )
    )
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = keras_runs(model, folder)
        runs |= exported_runs(model, folder, x[:: len(x) // NUM_CALIBRATION])
        one, eight = (cpu_milliseconds(runs, x[:n], rounds) for n in (1, 8))
        print("| | MB | 1 image, ms | 8 images, ms | cosine | lowest | k-NN |")
        print("|---|---|---|---|---|---|---|")
        expected = None
        for name, run in runs.items():
            files = [f for f in folder.iterdir() if f.stem == name]
            size = sum(f.stat().st_size for f in files) / 1e6
            train, test = (
                np.concatenate([run(z[i : i + 8]) for i in range(0, len(z), 8)])
                for z in (x, test_x)
            )
            expected = test if expected is None else expected
            cosine = (test * expected).sum(1)
            cosine /= np.prod(np.linalg.norm([test, expected], axis=2), axis=0)
            votes = keras_vit.evaluation.nearest_neighbours(
                train, y, len(data.class_names), test, 5
            )
            accuracy = keras_vit.evaluation.accuracy(votes, test_y)
            times = f"{one[name]:.0f} | {eight[name]:.0f}"
            same = f"{cosine.mean():.4f} | {cosine.min():.4f}"
            print(
                f"| {name} | {size:.1f} | {times} | {same} | {accuracy:.3f} |",
                flush=True,
            )
