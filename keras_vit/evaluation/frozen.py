"""The head of a classifier alone, and the features of images that it is trained on."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.data import ImageDataset
from keras_vit.data.array_source import ArraySource
from keras_vit.data.short_way import Lists, labels_of
from keras_vit.data.steps.base import Example, Seed, step
from keras_vit.evaluation.predict import predict_dataset
from keras_vit.models import Model, inference_model
from keras_vit.models.graph import Graph
from keras_vit.training.compiling import jit_compile
from keras_vit.training.freezing import HEADS
from keras_vit.utils.types import Array


def split_at_head(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Returns an encoder, and the head that completes it to a classifier.

    A head on a frozen encoder is trained faster on features that are computed once,
    as those of `feature_dataset`.

    Args:
        model: Functional classifier of this package.

    Returns:
        A model of images with outputs of shape `(images, heads, columns)`, where
        a distilled model has 2 heads, and a model of such outputs. They share the
        layers and weights of `model`.
    """
    graph = Graph(model)
    inputs = [graph.input(x) for x in model.layers if x.name in HEADS]
    features = keras.ops.stack(inputs, axis=1)
    encoder = inference_model(Model(graph.inputs[0], features))
    encoder.jit_compile = jit_compile() is True
    rest = Model(inputs, graph.outputs, name=model.name)
    given = keras.Input(features.shape[1:])
    return encoder, Model(given, rest([given[:, i] for i in range(len(inputs))]))


def feature_dataset(
    encoder: keras.Model,
    data: ImageDataset,
    *,
    batch_size: int,
    flip: bool = True,
    **reading: Any,
) -> ImageDataset:
    """Returns a dataset with the features of images in the place of the images.

    Each image is read and given to the encoder once, whole and resized as in an
    evaluation. The features are held in memory.

    Args:
        encoder: Model of images, such as `split_at_head` returns.
        data: `ImageDataset`.
        batch_size: Integer. Number of images of a batch of the encoder.
        flip: Boolean. Whether half of the training images are mirrored, at random:
            the encoder is then given each of them twice.
        **reading: `image_size`, `mode` and `protocol` of `ImageDataset.batches`.

    Returns:
        An `ImageDataset` of the training images and the images of
        `data.evaluation_split`.
    """
    views = 2 if flip else 1
    found: dict[str, tuple[Array, Array]] = {}
    for split, count in (("train", views), (data.evaluation_split, 1)):
        images = max(1, batch_size // views) * (views // count)  # one compiled size
        options = reading | {"batch_size": images, "pad": True, "one_hot": False}
        batches = data.batches(split, **options)
        batches = _with_mirrored(batches) if count == 2 else batches
        total = count * getattr(data, f"num_{split}")
        features, labels = predict_dataset(encoder, batches, total)
        features = features.reshape(-1, count, *features.shape[1:])
        found[split] = features, labels[::count]

    def example(split: str, index: int) -> tuple[Array, Array]:
        features, labels = found[split]
        return features[index], labels[index]

    source = ArraySource(example, _steps, labels=found["train"][1])
    # Images without a label are left out.
    counts = {f"num_{split}": len(labels) for split, (_, labels) in found.items()}
    return dataclasses.replace(data, source=source, **counts)


def _with_mirrored(batches: Iterable[tuple]) -> Iterator[tuple[Array, ...]]:
    """Yields batches in which each image is followed by the same mirrored."""
    for images, labels, weights in batches:
        images = np.asarray(images)
        both = np.stack([images, images[:, :, ::-1]], axis=1)
        doubled = (np.repeat(np.asarray(x), 2, axis=0) for x in (labels, weights))
        yield both.reshape(-1, *images.shape[1:]), *doubled


@step
def _choose(example: Example, seed: Seed, training: bool) -> Example:
    """The features of an image, or with equal chance of the same mirrored."""
    views = example["image"]
    index = seed.integers(len(views)) if training else 0
    return example | {"image": views[index]}


def _steps(
    data: ImageDataset,
    training: bool,
    *,
    one_hot: bool = False,
    class_weights: Any = None,
    image_size: Any = None,
    protocol: str = "",
    mode: Any = None,
    flip: bool = True,
) -> Lists:
    """Features instead of images, which have been read: the last four are accepted,
    as those of images are, and change nothing."""
    labels, _ = labels_of(data, 0, 0, one_hot, class_weights)
    return [_choose(training), *labels], []
