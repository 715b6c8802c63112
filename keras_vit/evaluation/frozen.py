"""The head of a classifier, and the features of images on which it is trained."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit.data import ImageDataset
from keras_vit.data.array_source import ArraySource
from keras_vit.data.short_way import Lists, labels_of
from keras_vit.evaluation.predict import predict_dataset
from keras_vit.models import Model, inference_model
from keras_vit.models.graph import Graph
from keras_vit.training.compiling import jit_compile
from keras_vit.training.freezing import HEADS
from keras_vit.utils.types import Array


def split_at_head(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Returns an encoder, and the head that completes it to a classifier.

    A head on a frozen encoder is trained faster on features that are computed once,
    such as those of `feature_dataset`.

    Args:
        model: Functional classifier of this package.

    Returns:
        A model that maps images to features of shape `(images, heads, columns)`, where
        a distilled model has 2 heads, and a model that takes such features. They share
        the layers and weights of `model`.
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
    epochs: int = 4,
    **options: Any,
) -> ImageDataset:
    """Returns a dataset with features in place of images.

    The features of training images are computed from the first epochs of `data.train`,
    which augments images at random. The features are held in memory.

    Args:
        encoder: Model that takes images, such as the encoder that `split_at_head`
            returns.
        data: `ImageDataset`.
        batch_size: Integer. Number of images of a batch of the encoder.
        epochs: Integer. How many times each training image is read and augmented.
        **options: Arguments of `ImageDataset.train`, such as `image_size`, `mode` and
            `seed`.

    Returns:
        An `ImageDataset` with `epochs` times as many training examples, and with the
        images of `data.evaluation_split`.
    """
    # Labels stay integers, of which class weights are looked up: they become one-hot
    # when the batches of features are made.
    training = data.train(batch_size=batch_size, **dict(options, one_hot=False))
    reading = {
        k: v for k, v in options.items() if k in ("image_size", "mode", "protocol")
    }
    split = data.evaluation_split
    found = {
        "train": predict_dataset(
            encoder,
            ((x, y, np.ones(len(y))) for x, y, *_ in training),
            epochs * data.num_train,
        ),
        split: predict_dataset(
            encoder,
            data.batches(split, batch_size=batch_size, pad=True, **reading),
            getattr(data, f"num_{split}"),
        ),
    }

    def example(split: str, index: int) -> tuple[Array, Array]:
        features, labels = found[split]
        return features[index], labels[index]

    source = ArraySource(example, _steps, labels=found["train"][1])
    # Images without a label are left out.
    counts = {f"num_{split}": len(labels) for split, (_, labels) in found.items()}
    return dataclasses.replace(data, source=source, **counts)


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
    """Features instead of images, which have been read: the last four are accepted, as
    for images, but have no effect."""
    labels, _ = labels_of(data, 0, 0, one_hot, class_weights)
    return labels, []
