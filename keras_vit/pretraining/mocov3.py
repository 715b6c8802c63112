"""Contrastive pre-training with a momentum encoder (MoCo v3)."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.positions import sincos_positions
from keras_vit.pretraining import momentum
from keras_vit.pretraining.base import freeze
from keras_vit.pretraining.heads import MoCoHead
from keras_vit.pretraining.losses import contrastive_losses
from keras_vit.pretraining.mae import POSITIONS
from keras_vit.pretraining.momentum import MomentumModel
from keras_vit.utils import checks, replicas
from keras_vit.utils.types import Array, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class MoCoV3(MomentumModel):
    """Contrastive learning with a momentum encoder.

    The student's prediction for one crop of an image has to be closest to the
    momentum encoder's output for the other crop, among the outputs for all
    images of the batch. The loss is symmetric in the two crops. From "An
    Empirical Study of Training Self-Supervised Vision Transformers"
    (https://arxiv.org/abs/2104.02057) and its code, facebookresearch/moco-v3.
    The defaults are those of its ViT-S/16 and ViT-B/16, except that `teacher_momentum`
    is constant; in that code, it is `schedules.CosineSchedule(0.99, 1.0, steps)`.

    The loss compares images of the whole batch, over all devices: the keys of
    TensorFlow replicas are gathered, and a batch that JAX splits over devices and hosts
    is one array. Evaluation results therefore depend on the batch size.

    Args:
        encoder: A `VisionTransformer` for images of one size that outputs all
            tokens: `include_top=False, pooling=None`. It is the student. The
            features are its class token, or the mean of the patches if it has
            none.
        output_dim: Integer. Number of outputs of the heads.
        hidden_dim: Integer. Width of the heads' hidden layers.
        teacher_momentum: Float in [0, 1], or a schedule of the step. Momentum
            of the moving average of the student's weights.
        temperature: Float. Temperature of the softmax.
        frozen_patches: Boolean. Whether the patch embedding keeps its random
            initial values, which makes the training stable (Section 4.2).
        positions: "sincos2d" replaces the encoder's learned position
            embeddings by fixed sines and cosines, as published; "learned"
            trains them.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Dict of `global`, of shape `(batch, 2, height, width,
            channels)`; or images, of shape `(batch, height, width, channels)`,
            each of which counts as two equal crops.
        training: Boolean. Whether to update the momentum encoder, and to
            normalize by the statistics of the batch.

    Returns:
        A call returns a dict of `student`, the predictions, and `teacher`, the
        keys, both of shape `(batch, 2, output_dim)`.

    Raises:
        ValueError: if the encoder does not output all tokens, if it has no
            learned positions for "sincos2d" to replace, or if an argument is
            out of range.

    Example:

    >>> encoder = keras_vit.ViTS16(include_top=False)
    >>> model = keras_vit.pretraining.MoCoV3(encoder)
    >>> model.compile("adamw")
    >>> model.fit(data.train(
    ...     image_size=224, batch_size=256, mode="torch",
    ...     crops=keras_vit.data.CROPS["mocov3"],
    ... ), steps_per_epoch=1000)
    >>> model.encoder.save("encoder.keras")
    """

    def __init__(
        self,
        encoder: keras.Model,
        output_dim: int = 256,
        hidden_dim: int = 4096,
        teacher_momentum: float | Callable = 0.99,
        temperature: float = 0.2,
        frozen_patches: bool = True,
        positions: str = "sincos2d",
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, teacher_momentum, **kwargs)
        self.output_dim = checks.positive_int("output_dim", output_dim)
        self.hidden_dim = checks.positive_int("hidden_dim", hidden_dim)
        self.temperature = checks.positive_float("temperature", temperature)
        self.frozen_patches = frozen_patches
        if frozen_patches:
            freeze(self.stages.embedding)
        self.positions = checks.one_of("positions", positions, POSITIONS)
        if positions == "sincos2d":
            for stages in (self.stages, self.teacher_stages):
                stages.freeze_positions(
                    _moco_positions(stages.grid_size, stages.hidden_size)
                )
        self.projection, self.teacher_projection = self.add_heads(
            lambda name, policy: self._head(3, name, policy)
        )
        self.prediction = self._head(2, "prediction", self.dtype_policy)
        self.prediction.build((None, output_dim))
        self.accuracy_tracker = keras.metrics.Mean(
            "contrastive_accuracy", dtype="float32"
        )
        self.built = True

    def _head(self, num_layers: int, name: str, policy: keras.DTypePolicy) -> MoCoHead:
        return MoCoHead(
            self.output_dim,
            self.hidden_dim,
            num_layers,
            dtype=policy,
            name=name,
        )

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Tensor]:
        crops, _ = self.split_crops(inputs)
        if training:
            self.update_teacher(self.step)
        student = momentum.features(self.stages, crops, training)
        teacher = momentum.features(self.teacher_stages, crops, False)
        # The statistics of batch norms are those of one crop of all images.
        queries = [
            self.prediction(self.projection(x, training=training), training=training)
            for x in ops.unstack(student, num=2, axis=1)
        ]
        keys = [
            self.teacher_projection(x, training=training)
            for x in ops.unstack(teacher, num=2, axis=1)
        ]
        return {
            "student": ops.stack(queries, axis=1),
            "teacher": ops.stop_gradient(ops.stack(keys, axis=1)),
        }

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        queries, keys = y_pred["student"], y_pred["teacher"]
        weights = momentum.weights_of(queries, sample_weight)
        every_weight, _ = replicas.gather(weights)
        losses = 0.0
        for query, other in ((0, 1), (1, 0)):
            every, first = replicas.gather(keys[:, other])
            labels = first + ops.arange(ops.shape(queries)[0])
            losses = losses + contrastive_losses(
                queries[:, query], every, labels, self.temperature, every_weight
            )
            self._update_metrics(
                queries[:, query], every, labels, weights, every_weight
            )
        if training:
            self.finish_step()
        loss = momentum.weighted_mean(losses, sample_weight)
        return self.add_extra_losses(loss)

    def _update_metrics(
        self,
        queries: Tensor,
        keys: Tensor,
        labels: Tensor,
        weights: Tensor,
        every_weight: Tensor,
    ) -> None:
        keys = ops.normalize(ops.stop_gradient(keys), axis=-1)
        # The standard deviation of unit vectors is 1 / sqrt(dimensions) if
        # they are spread evenly, and 0 if they are all the same.
        share = every_weight / ops.maximum(ops.sum(every_weight), 1e-12)
        share = share[:, None]
        mean = ops.sum(share * keys, axis=0)
        spread = ops.sqrt(ops.sum(share * (keys - mean) ** 2, axis=0))
        self.update_diversity(ops.mean(spread) * self.output_dim**0.5, every_weight)
        similarity = ops.matmul(queries, ops.transpose(keys))
        largest = ops.max(ops.abs(similarity)) + 1
        similarity = ops.where(every_weight > 0, similarity, -largest)
        nearest = ops.argmax(similarity, axis=1)
        correct = ops.equal(ops.cast(nearest, "int32"), labels)
        self.accuracy_tracker.update_state(
            ops.cast(correct, "float32"), sample_weight=weights
        )


def _moco_positions(grid_size: tuple[int, int], hidden_size: int) -> Array:
    """Returns MoCo v3's fixed positions, for patches.

    The first half of the channels is of the row and the second of the column;
    in MAE's positions it is the other way round.
    """
    positions = sincos_positions(grid_size, hidden_size, endpoint=False)
    return np.roll(positions, hidden_size // 2, axis=-1)
