"""Self-distillation with no labels (DINO)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import MaskToken
from keras_vit.pretraining import masks, momentum
from keras_vit.pretraining.heads import DINOHead
from keras_vit.pretraining.losses import (
    dino_losses,
    entropy_and_diversity,
    ibot_losses,
    koleo_loss,
    teacher_probabilities,
    updated_center,
)
from keras_vit.pretraining.momentum import MomentumModel
from keras_vit.utils import checks
from keras_vit.utils.replicas import SeedGenerator
from keras_vit.utils.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class DINO(MomentumModel):
    """Self-distillation: a student predicts the outputs of its moving average.

    Student and teacher see different crops of an image; the teacher sees only
    the large, global ones. From "Emerging Properties in Self-Supervised Vision
    Transformers" (https://arxiv.org/abs/2104.14294). The defaults are those of
    facebookresearch/dino, main_dino.py, for ViT-S/16, except for two that depend on the
    number of steps: here, `teacher_momentum` is constant and `frozen_steps` is 0. In
    main_dino.py, the momentum is `schedules.CosineSchedule(0.996, 1.0, steps)`, and
    `frozen_steps` is the number of steps of the first epoch.

    `recipes/pretrain_contrastive.py` trains with all published settings, and
    `keras_vit.data.CROPS["dino"]` makes the crops.

    Args:
        encoder: A `VisionTransformer` for images of the size of the global crops that
            outputs all tokens: `include_top=False, pooling=None`. It is the student.
            The features are its class token, or the mean of the patches if it has none.
            With `drop_path`, the student has stochastic depth, but the teacher does
            not.
        output_dim: Integer. Number of outputs of the head.
        hidden_dim: Integer. Width of the head's hidden layers.
        bottleneck_dim: Integer. Width of the head before the last layer.
        teacher_momentum: Float in [0, 1], or a schedule of the step. Momentum
            of the moving average of the student's weights.
        teacher_temperature: Float, or a schedule of the step. Temperature of
            the teacher's softmax; a lower one sharpens its outputs.
        student_temperature: Float. Temperature of the student's softmax.
        center_momentum: Float in [0, 1], or None. Momentum of the moving
            average of the teacher's outputs, which is subtracted from them.
            None for no centering; training then sooner or later collapses.
        frozen_steps: Integer. Number of steps in which the head's last layer is
            not trained.
        koleo_weight: Float. Weight of the KoLeo regularizer of DINOv2, which
            spreads the features of global crops; 0.1 in DINOv2. As it compares the
            images of a batch, evaluation losses with it depend on the batch size, as
            does `teacher_diversity`. Each TensorFlow replica computes both for its part
            of the batch.
        ibot_weight: Float. Weight of iBOT's loss of masked patches
            (https://arxiv.org/abs/2111.07832), for which half of the global
            crops are masked; 1.0 in DINOv2. The head is shared.
        mask_ratio: Float in (0, 1). Fraction of patches that are masked for
            `ibot_weight`.
        seed: Integer. Seed of the masks; None for a random one.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Dict of `global`, of shape `(batch, 2, height, width,
            channels)`, and optionally `local`, of shape `(batch, crops, local
            height, local width, channels)`; or images, of shape `(batch,
            height, width, channels)`, each of which counts as two equal global
            crops.
        training: Boolean. Whether to update the teacher, and to apply the
            student's dropout and stochastic depth.

    Returns:
        A call returns a dict of `student`, of shape `(batch, crops,
        output_dim)`, global crops first; `teacher`, of shape `(batch, 2, output_dim)`;
        and the outputs that `koleo_weight` and `ibot_weight` need.

    Raises:
        ValueError: if the encoder does not output all tokens, or if an
            argument is out of range.

    Example:

    >>> encoder = keras_vit.ViTS16(include_top=False, drop_path=0.1)
    >>> model = keras_vit.pretraining.DINO(encoder)
    >>> model.compile("adamw")
    >>> model.fit(data.train(
    ...     image_size=224, batch_size=64, mode="torch",
    ...     crops=keras_vit.data.CROPS["dino"],
    ... ), steps_per_epoch=1000)
    >>> model.teacher.save("encoder.keras")
    """

    def __init__(
        self,
        encoder: keras.Model,
        output_dim: int = 65536,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        teacher_momentum: float | Callable = 0.996,
        teacher_temperature: float | Callable = 0.04,
        student_temperature: float = 0.1,
        center_momentum: float | None = 0.9,
        frozen_steps: int = 0,
        koleo_weight: float = 0.0,
        ibot_weight: float = 0.0,
        mask_ratio: float = 0.3,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, teacher_momentum, **kwargs)
        self.output_dim = checks.positive_int("output_dim", output_dim)
        self.hidden_dim = checks.positive_int("hidden_dim", hidden_dim)
        self.bottleneck_dim = checks.positive_int("bottleneck_dim", bottleneck_dim)
        self.teacher_temperature = teacher_temperature
        self.student_temperature = checks.positive_float(
            "student_temperature", student_temperature
        )
        self.center_momentum = center_momentum
        self.frozen_steps = checks.non_negative_int("frozen_steps", frozen_steps)
        self.koleo_weight, self.ibot_weight = koleo_weight, ibot_weight
        masks.num_kept(self.stages.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        self.seed = seed
        self.projection, self.teacher_projection = self.add_heads(
            lambda name, policy: DINOHead(
                output_dim,
                hidden_dim,
                bottleneck_dim,
                dtype=policy,
                name=name,
            )
        )
        self.center = self._add_center("center")
        if ibot_weight:
            self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
            self.mask_token.build((None, None, self.stages.hidden_size))
            self.patch_center = self._add_center("patch_center")
            self.seed_generator = SeedGenerator(seed)
        self.entropy_tracker = keras.metrics.Mean("teacher_entropy", dtype="float32")
        self.built = True

    def _add_center(self, name: str) -> keras.Variable:
        return self.add_weight(
            shape=(self.output_dim,),
            dtype="float32",
            initializer="zeros",
            trainable=False,
            name=name,
        )

    @property
    def pretrained_encoder(self) -> keras.Model:
        """The teacher, which is better than the student (Section 5.2)."""
        return self.teacher

    def variables_by_path(self) -> dict[str, keras.Variable]:
        paths = {**super().variables_by_path(), "center": self.center}
        if self.ibot_weight:
            paths["patch_center"] = self.patch_center
        return paths

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Tensor]:
        crops, local = self.split_crops(inputs)
        frozen = None
        if training:
            # The teacher follows the student after each step: this is the
            # update that ends the step before this one.
            self.update_teacher(ops.maximum(self.step - 1, 0))
            if self.frozen_steps:
                frozen = self.step < self.frozen_steps
        outputs = {}
        if self.ibot_weight:
            student = self._masked(crops, frozen, training, outputs)
        else:
            student = momentum.features(self.stages, crops, training)
            teacher = momentum.features(self.teacher_stages, crops, False)
            outputs["teacher"] = self.teacher_projection(teacher)
        if self.koleo_weight:
            outputs["features"] = ops.cast(student, "float32")
        if local is not None:
            small = momentum.features(self.stages, local, training)
            student = ops.concatenate([student, small], axis=1)
        outputs["student"] = self.projection(student, frozen=frozen)
        return outputs

    def _masked(
        self,
        crops: Tensor,
        frozen: Tensor | None,
        training: bool | None,
        outputs: dict[str, Tensor],
    ) -> Tensor:
        """Returns the features of masked global crops, for iBOT's loss.

        It adds the outputs of teacher and student for the patches.
        """
        stages, count = self.stages, crops.shape[1]
        images = ops.reshape(crops, (-1, *crops.shape[2:]))
        batch = ops.shape(images)[0]
        masked = masks.random_mask(
            batch, stages.num_patches, self.mask_ratio, self.seed_generator
        )
        chosen = keras.random.uniform((batch, 1), seed=self.seed_generator)
        masked = masked * ops.cast(chosen < 0.5, masked.dtype)
        tokens = stages.embed(images, lambda x: self.mask_token(x, masked), training)
        tokens = stages.encode(tokens, training)
        targets = self.teacher_stages.encode(
            self.teacher_stages.embed(images, training=False), False
        )

        def per_image(x: Tensor) -> Tensor:
            return ops.reshape(x, (-1, count, *x.shape[1:]))

        first = stages.num_prefix
        outputs["masked"] = per_image(masked)
        outputs["patches"] = per_image(
            self.projection(tokens[:, first:], frozen=frozen)
        )
        outputs["teacher_patches"] = per_image(
            self.teacher_projection(targets[:, first:])
        )
        outputs["teacher"] = per_image(
            self.teacher_projection(momentum.pool(targets, stages))
        )
        return per_image(momentum.pool(tokens, stages))

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        teacher = ops.stop_gradient(y_pred["teacher"])
        temperature = momentum.value_at(self.teacher_temperature, self.step)
        losses = dino_losses(
            y_pred["student"],
            teacher,
            self.center,
            temperature,
            self.student_temperature,
        )
        if self.ibot_weight:
            losses = losses + self.ibot_weight * self._patch_losses(
                y_pred, temperature, training
            )
        loss = momentum.weighted_mean(losses, sample_weight)
        if self.koleo_weight:
            crops = ops.unstack(y_pred["features"], axis=1)
            weights = momentum.weights_of(losses, sample_weight)
            koleo = sum(koleo_loss(x, weights=weights) for x in crops)
            loss = loss + self.koleo_weight * koleo
        self._update_metrics(teacher, temperature, sample_weight)
        if training:
            self._update_center(self.center, teacher)
            self.finish_step()
        return self.add_extra_losses(loss)

    def _patch_losses(
        self, y_pred: dict[str, Tensor], temperature: Tensor, training: bool
    ) -> Tensor:
        """Returns iBOT's loss of each image, the mean over its crops."""
        teacher = ops.stop_gradient(y_pred["teacher_patches"])
        losses = ibot_losses(
            y_pred["patches"],
            teacher,
            y_pred["masked"],
            self.patch_center,
            temperature,
            self.student_temperature,
        )
        if training:
            self._update_center(self.patch_center, teacher)
        return ops.mean(losses, axis=1)

    def _update_center(self, center: keras.Variable, teacher: Tensor) -> None:
        if self.center_momentum is not None:
            center.assign(
                updated_center(
                    center, teacher, self.center_momentum, momentum.mean_of_all
                )
            )

    def _update_metrics(
        self, teacher: Tensor, temperature: Tensor, sample_weight: Tensor | None
    ) -> None:
        probabilities = teacher_probabilities(teacher, self.center, temperature)
        weights = momentum.weights_of(probabilities, sample_weight)
        entropy, diversity = entropy_and_diversity(probabilities[:, 0], weights)
        self.entropy_tracker.update_state(entropy, sample_weight=ops.sum(weights))
        self.update_diversity(diversity, weights)
