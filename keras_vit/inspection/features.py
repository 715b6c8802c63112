"""Principal components of feature maps, which show similarities between patches."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.inspection import tokens
from keras_vit.models import dense_features
from keras_vit.utils import checks
from keras_vit.utils.types import Array, ArrayLike


@dataclasses.dataclass(frozen=True)
class FeaturePCA:
    """The result of `feature_pca`.

    Attributes:
        components: List of float arrays of shape `(rows, columns, 3)`, one per
            image: the first three principal components of each patch of the
            foreground, NaN in the background.
        foreground: List of boolean arrays of shape `(rows, columns)`.
        explained: Array of shape `(3,)`. Fraction of the variance that each component
            explains; of shape `(images, 3)` without `joint`.
    """

    components: list[Array]
    foreground: list[Array]
    explained: Array


def feature_pca(
    model: keras.Model,
    images: ArrayLike | Sequence[ArrayLike],
    block: int = -1,
    foreground: bool = True,
    joint: bool = True,
) -> FeaturePCA:
    """Computes the principal components of the features of patches.

    Patches of similar parts of objects get similar components, across all images. With
    `foreground`, the first component of all patches splits them into foreground and
    background by its sign; the components of the foreground are then computed without
    the background. The background is the side that has more of the patches at the
    borders of the images. If an image had almost none then, the component separates
    images, as with random weights, and all patches are foreground.

    From "DINOv2: Learning Robust Visual Features without Supervision", Section
    7.6 and Figure 1 (https://arxiv.org/abs/2304.07193).

    Args:
        model: A Vision Transformer or a hybrid.
        images: A batch of images, preprocessed for the model, `(batch, height, width,
            channels)`, or a list of batches of several sizes. Sizes must be multiples
            of the patch size, and may differ from the model's.
        block: Integer. The block whose output is used, with the model's
            `encoder_norm` if it has one; see `dense_features`.
        foreground: Boolean. Whether to separate the foreground.
        joint: Boolean. Whether all images share the directions of the components, so
            that equal colors mean similar features in all of them. Otherwise each image
            has its own directions, which show more of its details, but its colors
            cannot be compared with those of other images.

    Returns:
        A `FeaturePCA`, with an item for each image.

    Raises:
        ValueError: if the model has no blocks, or there are fewer than four
            patches.

    Example:

    >>> found = keras_vit.inspection.feature_pca(model, images)
    >>> figure = keras_vit.inspection.plot_feature_pca(images, found)
    """
    tokens.find_blocks(model, block, "block")
    checks.boolean("foreground", foreground)
    checks.boolean("joint", joint)
    names = [layer.name for layer in model.layers]
    maps_of = dense_features(model, block, norm="encoder_norm" in names)
    maps = []
    batches: Sequence[Any] = images if isinstance(images, (list, tuple)) else [images]
    for batch in batches:
        batch = tokens.check_images(maps_of, batch)
        found = maps_of(keras.ops.convert_to_tensor(batch), training=False)
        found = keras.ops.cast(found, "float32")
        maps += list(keras.ops.convert_to_numpy(found))
    expected = "a batch of images, or a list of batches"
    checks.require(bool(maps), "images", images, expected)
    if joint:
        return _components(maps, foreground)
    each = [_components([x], foreground) for x in maps]
    return FeaturePCA(
        [x.components[0] for x in each],
        [x.foreground[0] for x in each],
        np.stack([x.explained for x in each]),
    )


def _components(maps: list[Array], foreground: bool) -> FeaturePCA:
    """Returns the principal components of all patches of feature maps."""
    shapes = [x.shape[:2] for x in maps]
    features = np.concatenate([x.reshape(-1, x.shape[-1]) for x in maps])
    ends = np.cumsum([rows * columns for rows, columns in shapes])[:-1]
    kept = np.ones(len(features), bool)
    if foreground:
        found = _foreground(principal_components(features, 1)[0][:, 0], shapes)
        # If an image has almost none, the component separates images instead.
        if min(part.mean() for part in np.split(found, ends)) > 0.02:
            kept = found
    scores, explained = principal_components(features[kept], 3)
    components = np.full((len(features), 3), np.nan, "float32")
    components[kept] = scores
    return FeaturePCA(
        [
            x.reshape(*shape, 3)
            for x, shape in zip(np.split(components, ends), shapes, strict=True)
        ],
        [
            x.reshape(shape)
            for x, shape in zip(np.split(kept, ends), shapes, strict=True)
        ],
        explained,
    )


def principal_components(features: Array, count: int) -> tuple[Array, Array]:
    """Returns the first principal components of samples, in float64, and their
    fractions of the variance.

    The entry of largest magnitude of each direction is positive.
    """
    if len(features) <= count or features.shape[1] < count:
        raise ValueError(
            f"{count} principal components need more than {count} patches and "
            f"as many channels. Received: {len(features)} patches of "
            f"{features.shape[1]} channels. Give larger images, or "
            "`foreground=False`."
        )
    centered = features.astype("float64")
    centered = centered - centered.mean(axis=0)
    variances, directions = np.linalg.eigh(centered.T @ centered)
    directions = directions[:, ::-1][:, :count]
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(count)])
    total = max(variances.sum(), np.finfo("float64").tiny)
    return centered @ directions, variances[::-1][:count] / total


def _foreground(scores: Array, shapes: list[tuple[int, int]]) -> Array:
    """Returns which patches are on the side of the first component that has
    fewer of the patches at the borders."""
    border = []
    for shape in shapes:
        inside = np.zeros(shape, bool)
        inside[1:-1, 1:-1] = True
        border.append(~inside.ravel())
    positive = scores > 0
    if positive[np.concatenate(border)].mean() > 0.5:
        positive = ~positive
    return positive
