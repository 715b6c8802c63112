"""Base class of the models that predict masked patches."""

from typing import Any

import keras
from keras import ops

from keras_vit.pretraining.base import PretrainingModel
from keras_vit.utils.replicas import SeedGenerator
from keras_vit.utils.types import Tensor


class MaskedModel(PretrainingModel):
    """Base class of models that learn to predict masked patches of images.

    A subclass implements `patch_losses`, `prediction_to_pixels` and `call`,
    which returns a dict of `prediction` (one row per patch) and `masked` (1 for
    patches that count in the loss). `fit` takes images only, as an array or a
    `tf.data.Dataset`. Labels are ignored; a sample weight multiplies the loss
    of its image.
    """

    def __init__(
        self, encoder: keras.Model, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.seed = seed
        self.seed_generator = SeedGenerator(seed)
        self.built = True  # subclass constructors build all layers

    def patch_losses(self, images: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        """Computes the loss of each patch, `(batch, num_patches)`; only masked patches
        count."""
        raise NotImplementedError

    def prediction_to_pixels(self, prediction: Tensor, patches: Tensor) -> Tensor:
        """Converts predictions to pixels of the shape of the original patches,
        `(batch, num_patches, rows * columns * channels)`, for display."""
        raise NotImplementedError

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        losses = self.patch_losses(x, y_pred)
        weights = ops.cast(y_pred["masked"], losses.dtype)
        # All images have the same number of masked patches. The sum of the
        # sample weights is no divisor, as in Keras's losses: the mean over
        # batches of any size is then that over images.
        count = ops.sum(weights) + 1e-6
        if sample_weight is not None:
            image = ops.cast(ops.reshape(sample_weight, (-1, 1)), losses.dtype)
            losses = losses * image
        loss = ops.sum(losses * weights) / count
        return self.add_extra_losses(loss)

    def reconstruct(self, images: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns images with masked patches set to 0, and images with masked
        patches predicted; the keyword arguments, such as `masked` or `noise`,
        are those of a call."""
        outputs = self(images, **kwargs)
        patches = self.stages.patchify(images)
        masked = outputs["masked"][..., None]
        visible = patches * (1 - masked)
        pixels = self.prediction_to_pixels(outputs["prediction"], patches)
        filled = visible + masked * pixels
        return self.stages.unpatchify(visible), self.stages.unpatchify(filled)
