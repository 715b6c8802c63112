"""Keras callback that measures features during pre-training."""

from typing import Any

import keras
import numpy as np

from keras_vit.data import ImageDataset
from keras_vit.evaluation.probes import nearest_neighbors
from keras_vit.evaluation.scores import accuracy
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Config


class NearestNeighbors(keras.callbacks.Callback):
    """Measures the k-NN accuracy of an encoder while it is pre-trained.

    After each evaluation, images of the evaluation split are classified by the
    labels of their nearest training images, without augmentation. Callbacks after this
    one see the accuracy as the metric `val_knn_accuracy`. No labels are used in
    training.

    The model must be one of `keras_vit.pretraining` with a momentum encoder.

    Args:
        data: `keras_vit.data.ImageDataset` with labels.
        options: Dict. The arguments of `ImageDataset.batches`.
        k: Integer. Number of neighbors, at most the number of images.
        limit: Integer. Maximum number of training images to compare with. If there are
            more, a random sample is used.
    """

    def __init__(
        self,
        data: ImageDataset,
        options: Config,
        k: int = 20,
        limit: int = 20_000,
    ) -> None:
        super().__init__()
        require("sklearn.neighbors")  # before the training
        self._data, self._options = data.sample("train", limit), options
        self._k = k

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        logs["val_knn_accuracy"] = self.accuracy()

    def accuracy(self) -> float:
        """Returns the accuracy of the model with its current weights."""
        x, y = self._compute("train")
        test = self._data.evaluation_split
        test_x, test_y = self._compute(test)
        classes = len(self._data.class_names)
        scores = nearest_neighbors(x, y, classes, test_x, k=min(self._k, len(x)))
        return accuracy(scores, test_y)

    def _compute(self, split: str) -> tuple[Array, Array]:
        """Returns the features and the labels of the images of a split."""
        features, labels = [], []
        for images, classes, weights in self._data.batches(split, **self._options):
            keep = np.asarray(weights) > 0
            # Padding is computed too, as other sizes of batches are compiled.
            encoder = self.model.pretrained_encoder
            tokens = encoder.predict_on_batch(np.asarray(images))
            tokens = keras.ops.convert_to_numpy(tokens).astype("float32")[keep]
            if self.model.stages.has_class_token:
                features.append(tokens[:, 0])
            else:  # the means of the patches
                patches = tokens[:, self.model.stages.num_prefix :]
                features.append(patches.mean(axis=1))
            labels.append(np.asarray(classes)[keep])
        return np.concatenate(features), np.concatenate(labels)
