"""Random patch sizes in training: FlexiViT."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit._types import Array, Dataset, Tensor
from keras_vit.data._decode import tf
from keras_vit.layers.resampling import resampling_matrix


@dataclasses.dataclass(frozen=True)
class RandomPatchSizes:
    """Batches for training a Vision Transformer with random patch sizes.

    From "FlexiViT: One Model for All Patch Sizes", Section 3
    (https://arxiv.org/abs/2212.08013): every step uses another patch size, to
    which the kernel of the patch embedding is resized by a pseudo-inverse, and
    the position embeddings are resampled.

    The resized kernel is a linear map of the stored one, `B w`, and its product
    with a patch, `x . B w`, equals `B' x . w`. Here, the patches of the images
    are therefore multiplied by B', the transpose of B: the model, which must
    take images of any size, keeps its own patch size, and gets an image of as
    many patches as the sampled size gives. Outputs and gradients are those of a
    resized kernel, up to rounding. Afterwards, load the model with
    `patch_size=` one of `sizes`.

    Pass one as `patch_sizes` to `ImageDataset.train`. The patch size of a batch
    depends only on the seed and on the number of the batch, also in a run that
    resumes, in all processes and in the micro-batches of a step.

    An image becomes `(patch_size / size) ** 2` times as large, in memory, on
    its way to the device and in the patch embedding.

    Attributes:
        sizes: Integers. The patch sizes, in pixels, each of which must divide
            the image size. All are equally probable.
        patch_size: Integer. That of the model.

    Example:

    >>> model = keras_vit.VisionTransformer(
    ...     input_shape=(None, None, 1), grid_size=(4, 4), patch_size=4,
    ...     hidden_size=64, num_layers=2, num_heads=2, classes=10)
    >>> sizes = keras_vit.data.RandomPatchSizes((2, 4, 8), patch_size=4)
    >>> batches = keras_vit.data.load_dataset("digits").train(
    ...     image_size=16, batch_size=32, patch_sizes=sizes)
    """

    sizes: tuple
    patch_size: int

    def __post_init__(self) -> None:
        sizes = tuple(_checks.positive_int("sizes", x) for x in self.sizes)
        if len(set(sizes)) < max(2, len(sizes)):
            raise ValueError(
                "`sizes` must be two or more different patch sizes. Received: "
                f"{self.sizes}"
            )
        object.__setattr__(self, "sizes", sizes)

    def check(self, image_size: tuple[int, int]) -> None:
        """Raises a `ValueError` if a patch size does not divide an image of
        `(height, width)`."""
        for size in self.sizes:
            if any(side % size for side in image_size):
                raise ValueError(
                    "Every patch size must divide the image size. Received: "
                    f"{size} of {', '.join(map(str, self.sizes))}, and images "
                    f"of {image_size[0]} x {image_size[1]} pixels."
                )

    def choose(self, seed: int, number: int) -> int:
        """Returns the patch size of batch `number`, for the seed of the run."""
        rng = np.random.default_rng((seed, 2, number))
        return self.sizes[rng.integers(len(self.sizes))]

    def matrix(self, size: int) -> Array:
        """Returns the map of an axis of a patch of `size` pixels, the transpose
        of that in `resample_patch_kernel`: `(patch_size, size)`."""
        if size == self.patch_size:
            return np.eye(size, dtype="float32")
        matrix = resampling_matrix(self.patch_size, size, "bicubic_antialias")
        return np.linalg.pinv(matrix).astype("float32")

    def resize(self, images: Tensor, matrix: Tensor, xp: Any = np) -> Tensor:
        """Multiplies the patches of images `(batch, height, width, channels)`
        by a `matrix`; `xp` is `numpy` or `tensorflow`."""
        batch, height, width, channels = images.shape
        new, size = self.patch_size, xp.shape(matrix)[1]
        rows, columns = height // size, width // size
        # h w rows and columns of the grid, y x pixels, Y X resized pixels
        patches = xp.reshape(images, (batch, rows, size, columns, size, channels))
        patches = xp.einsum(
            "bhywxc,Yy,Xx->bhYwXc", patches, matrix, matrix, optimize="greedy"
        )
        return xp.reshape(patches, (batch, rows * new, columns * new, channels))

    def map(self, batches: Dataset, options: Any) -> Dataset:
        """Resizes the patches of a `tf.data.Dataset` of `(images, ...)`,
        micro-batches of a known size."""

        def matrix(number: int) -> Array:
            return self.matrix(self.choose(options.seed, number))

        def resize(index: Tensor, batch: tuple[Tensor, ...]) -> tuple[Any, ...]:
            number = options.start + index // options.micro_batches
            chosen = tf.numpy_function(matrix, [number], tf.float32)
            chosen = tf.ensure_shape(chosen, (self.patch_size, None))
            return self.resize(batch[0], chosen, tf), *batch[1:]

        return batches.enumerate().map(resize)
