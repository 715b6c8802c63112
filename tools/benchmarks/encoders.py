"""What the features of a trained encoder are worth."""

import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHOTS = 5
PIXELS = 28  # height and width of the images whose pixels are features
BATCH, EPOCHS = 32, 60  # of the head of a segmenter
NUM_CALIBRATION = 64
Runner = Callable[[np.ndarray], Any]


def probes(
    images: str, encoder: str, image_size: int = 56, mode: str = "torch"
) -> None:
    """Accuracy of simple classifiers of frozen features.

    k-NN, linear probe and few-shot accuracy of the features of an encoder, of
    the same model with random weights, and of the pixels. The images are a
    folder with train/CLASS/* and test/CLASS/*.
    """
    import keras

    import keras_vit
    from keras_vit import evaluation

    data = keras_vit.data.load_dataset(images)
    classes = len(data.class_names)

    def read(model: keras.Model, size: int) -> tuple[np.ndarray, ...]:
        options = dict(image_size=size, mode=mode, protocol="simple")
        options["batch_size"] = 50
        return evaluation.predict_splits(model, data, options)

    def features() -> Iterator[tuple]:
        model = keras_vit.converters.load(
            encoder,
            input_shape=(image_size, image_size, 3),
            include_top=False,
            pooling=None,
        )
        keras.utils.set_random_seed(0)
        random = keras.models.clone_model(model)
        patch = model.get_layer("patch_embedding").kernel.shape[0]
        patches = (image_size // patch) ** 2
        for name, tokens in {"weights": model, "random": random}.items():
            x, y, test_x, test_y = read(tokens, image_size)
            yield f"{name}, class token", x[:, 0], y, test_x[:, 0], test_y
            x, test_x = (z[:, -patches:].mean(axis=1) for z in (x, test_x))
            yield f"{name}, mean of patches", x, y, test_x, test_y
        pixels = keras.Input((PIXELS, PIXELS, 3))
        flat = keras.Model(pixels, keras.layers.Flatten()(pixels))
        yield "pixels", *read(flat, PIXELS)

    print(f"| features | k-NN | linear probe | {SHOTS} images a class |")
    print("|---|---|---|---|")
    for name, x, y, test_x, test_y in features():
        votes = evaluation.nearest_neighbors(x, y, classes, test_x)
        scores = evaluation.linear_probe(x, y, classes).scores(test_x)
        (few,) = evaluation.few_shot(
            x, y, (SHOTS,), test_features=test_x, test_labels=test_y
        )
        found = [evaluation.accuracy(z, test_y) for z in (votes, scores)]
        found.append(few["accuracy"])
        print(f"| {name} | " + " | ".join(f"{a:.3f}" for a in found) + " |")


def dense(images: str, encoder: str, image_size: int = 112) -> None:
    """Segmentation by the features of a trained and of a random encoder.

    The images are a folder with {train,test}/{images,masks}/*, as for
    recipes/segment.py. A `LinearSegmenter` on the frozen features of the last
    block is trained without augmentation, so that they are computed once. The
    foreground is that of `feature_pca`, computed for each test image on its
    own; it is compared with the pixels of any class but the first, the
    background. The random encoder is a ViT-S with the initial weights of the
    paper.
    """
    import keras_vit

    data = keras_vit.data.load_segmentation(images)
    options = {"image_size": image_size, "mode": "torch"}
    train, test = (
        data.batches(split, batch_size=getattr(data, f"num_{split}"), **options)[0]
        for split in ("train", "test")
    )
    shape = (image_size, image_size, 3)
    random = keras_vit.ViTS16(input_shape=shape, patch_size=14, include_top=False)
    trained = keras_vit.converters.load(encoder, input_shape=shape)
    print("| encoder | linear head | foreground by PCA |\n|---|---|---|")
    for name, model in {"random": random, "trained": trained}.items():
        linear = linear_iou(model, data, train, test)
        found = foreground_iou(model, *test, data.ignore)
        print(f"| {name} | {linear:.3f} | {found:.3f} |", flush=True)


def linear_iou(encoder: Any, data: Any, train: tuple, test: tuple) -> float:
    """Returns the mean IoU of a linear head on the frozen encoder."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    encoder.trainable = False
    classes = len(data.class_names)
    model = keras_vit.segmentation.LinearSegmenter(encoder, classes)
    maps = model.get_layer("head_norm").input
    features = keras.Model(model.input, maps)
    head = keras.Model([maps, model.input], model.output)
    (x, y), (test_x, test_y) = train, test
    steps = EPOCHS * -(-len(x) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(0.01, steps)
    head.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=data.ignore
        ),
    )
    inputs, test_inputs = (
        [features.predict(z, BATCH, verbose=0), z] for z in (x, test_x)
    )
    head.fit(inputs, y, BATCH, EPOCHS, verbose=0)
    found = head.predict(test_inputs, BATCH, verbose=0).argmax(-1)
    return _mean_iou(found, test_y, classes, data.ignore)


def foreground_iou(
    encoder: Any, images: np.ndarray, masks: np.ndarray, ignore: int
) -> float:
    """Returns the mean IoU of foreground and background of `feature_pca`."""
    from keras_vit.data.steps import places
    from keras_vit.inspection import feature_pca

    found = [feature_pca(encoder, x[None]).foreground[0] for x in images]
    found = [places.resize_mask(x, masks.shape[1:]) for x in found]
    objects = np.where(masks == ignore, ignore, masks > 0)
    return _mean_iou(np.stack(found).astype(int), objects, 2, ignore)


def _mean_iou(found: np.ndarray, masks: np.ndarray, classes: int, ignore: int) -> float:
    from keras_vit import evaluation

    confusion = evaluation.confusion_matrix(found, masks, classes, ignore)
    return evaluation.mean_iou(confusion)[0]


def quantized(
    images: str, encoder: str, image_size: int = 112, rounds: int = 7
) -> None:
    """Size, time and features of an encoder in float32 and in fewer bits.

    It needs PyTorch, onnxruntime, OpenVINO and NNCF. The images are a folder
    with train/CLASS/* and test/CLASS/*. The features are the class token. Their
    cosine with those of float32 is the mean of the test images, and the lowest;
    the accuracy is that of the 5 nearest neighbors among the training images,
    some of which calibrate static quantization. Milliseconds are medians of CPU
    time, which other programs hardly affect, on one core.
    """
    os.environ["KERAS_BACKEND"] = "torch"
    # The runtimes take as many threads as there are cores, and wait by
    # spinning, which is CPU time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

    import keras_vit
    from keras_vit import evaluation

    data = keras_vit.data.load_dataset(images)
    model = keras_vit.converters.load(
        encoder, input_shape=(image_size, image_size, 3), pooling="token"
    )
    model = keras_vit.models.inference_model(model)
    options = dict(image_size=image_size, mode="torch", protocol="whole")
    (x, y), (test_x, test_y) = (
        map(np.concatenate, zip(*(b[:2] for b in batches), strict=True))
        for batches in (
            data.batches(split, batch_size=32, **options) for split in ("train", "test")
        )
    )
    print("| | MB | 1 image, ms | 8 images, ms | cosine | lowest | k-NN |")
    print("|---|---|---|---|---|---|---|")
    expected = None
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        some = x[:: len(x) // NUM_CALIBRATION]
        for name, run in quantized_runs(model, folder, some):
            times = [cpu_milliseconds(run, x[:n], rounds) for n in (1, 8)]
            files = [f for f in folder.iterdir() if f.stem == name]
            megabytes = sum(f.stat().st_size for f in files) / 1e6
            train, test = (
                np.concatenate([run(z[i : i + 8]) for i in range(0, len(z), 8)])
                for z in (x, test_x)
            )
            expected = test if expected is None else expected
            cosine = (test * expected).sum(axis=1)
            cosine /= np.prod(np.linalg.norm([test, expected], axis=2), axis=0)
            votes = evaluation.nearest_neighbors(
                train, y, len(data.class_names), test, 5
            )
            print(
                f"| {name} | {megabytes:.1f} | {times[0]:.0f} | {times[1]:.0f} "
                f"| {cosine.mean():.4f} | {cosine.min():.4f} "
                f"| {evaluation.accuracy(votes, test_y):.3f} |",
                flush=True,
            )


def quantized_runs(
    model: Any, folder: pathlib.Path, calibration: np.ndarray
) -> Iterator[tuple[str, Runner]]:
    """Yields the model, exported models and quantized ones, with the names of
    their files."""
    from keras_vit import converters, exporting

    model.save(folder / "Keras.keras")
    yield "Keras", model.predict_on_batch
    for bits in ("int8", "int4"):
        copy = converters.load(folder / "Keras.keras")
        copy.quantize(bits)
        copy.save(folder / f"Keras {bits}.keras")
        yield f"Keras {bits}", copy.predict_on_batch

    import nncf
    import openvino
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

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
    ready = folder / "ready.onnx"
    shape_inference.quant_pre_process(path, ready, skip_symbolic_shape=True)
    options = {  # as in tools/export.py --int8-weights
        "op_types_to_quantize": ["MatMul", "Gemm"],
        "per_channel": True,
        "weight_type": quantization.QuantType.QInt8,
        "reduce_range": True,
    }
    quantization.quantize_dynamic(ready, dynamic, **options)
    quantization.quantize_static(ready, static, Batches(), **options)
    for file in (path, dynamic, static):
        yield file.stem, exporting.read_onnx(file)
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
