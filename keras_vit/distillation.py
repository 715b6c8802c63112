"""Training of a student with the outputs of a trained teacher."""

import dataclasses
import zlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import losses
from keras_vit.data import ImageDataset
from keras_vit.evaluation import (
    LoadedClassifier,
    feature_model,
    match_class_names,
    num_classes_of,
)
from keras_vit.layers import ImagePreprocessing
from keras_vit.models import Model, preprocessing_of
from keras_vit.models.graph import Graph, heads_of, output_activation
from keras_vit.training.freezing import HEADS
from keras_vit.utils import checks, replicas
from keras_vit.utils.memory import free_gradients
from keras_vit.utils.scaling import ModeLike, as_mode, scale_and_shift
from keras_vit.utils.types import Tensor

__all__ = ["as_teacher", "Distillation", "TARGETS"]

# What a student learns from: the losses of each, the default first.
TARGETS = {
    "token": ("hard", "soft"),
    "logits": ("soft", "hard"),
    "features": ("cosine", "smooth_l1", "mse"),
}


class Distillation(keras.Model):
    """A model that trains a student with labels and with a frozen teacher.

    The loss is `(1 - alpha)` times the loss of `compile` plus `alpha` times the loss
    for the teacher's outputs, as in DeiT (https://arxiv.org/abs/2012.12877, Section 4,
    and facebookresearch/deit) and in `timm.task`.

    `evaluate` and `predict` run the student alone. After training, save
    `student`. The teacher sees the augmented images of the student, and runs in
    inference mode. Its weights do not change, and are neither averaged nor part
    of a `ResumableCheckpoint`.

    Args:
        student: A Vision Transformer, a hybrid or a BiT that outputs logits, or
            `keras_vit.mixed_sizes` of a Vision Transformer.
        teacher: A functional `keras.Model` with the inputs of the student, such as the
            result of `as_teacher`, which outputs logits or features of shape `(batch,
            columns)`. It is made non-trainable.
        target: String. "token": the head of the student's distillation token
            learns the teacher's logits, and the other head the labels.
            "logits": the student's logits learn both. "features": the features that the
            student's head reads learn the teacher's features, projected by a dense
            layer if they have another number of columns.
        loss: A `keras.losses.Loss` of the outputs of teacher and student.
            Defaults to a `losses.DistillationLoss`: "hard" for "token",
            "soft" for "logits", and "cosine" for "features".
        alpha: Float in [0, 1]. Weight of the teacher's loss.
        **kwargs: `name`, `dtype`.

    Raises:
        ValueError: if an argument is out of range, the student has no such head, the
            teacher has other classes or shares weights with the student, or one of them
            ends in a softmax.

    Example:

    >>> student = keras_vit.ViTTi16(classes=10, distillation=True)
    >>> trained = keras_vit.evaluation.load_classifier("runs/bit")
    >>> teacher = keras_vit.distillation.as_teacher(trained)
    >>> model = keras_vit.distillation.Distillation(student, teacher, "token")
    >>> model.compile("adamw", keras_vit.losses.get_loss("softmax", False))
    """

    def __init__(
        self,
        student: keras.Model,
        teacher: keras.Model,
        target: str = "logits",
        loss: keras.losses.Loss | None = None,
        alpha: float = 0.5,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", student.dtype_policy)
        # Autocast would round the pixels that the teacher takes.
        super().__init__(autocast=False, **kwargs)
        checks.one_of("target", target, TARGETS)
        checks.require(0 <= alpha <= 1, "alpha", alpha, "a number from 0 to 1")
        scalers = [preprocessing_of(x) is not None for x in (student, teacher)]
        if len({*scalers}) > 1:
            raise ValueError(
                "Student and teacher get the same images, so both or neither must "
                "scale them. Received: one of them with `preprocessing`; build the "
                "student without it, and the teacher by `as_teacher`."
            )
        if {*map(id, student.weights)} & {*map(id, teacher.weights)}:
            raise ValueError(
                "The teacher's weights do not change, so it must not share weights "
                f"with the student. Received: {teacher.name!r}, which shares weights "
                f"with {student.name!r}; load another model."
            )
        for model in (student, teacher) if target != "features" else ():
            if (activation := output_activation(model)) != "linear":
                raise ValueError(
                    "Student and teacher must output logits. Received: "
                    f"{model.name!r}, which ends in {activation!r}; build it "
                    "with `classifier_activation=None`."
                )
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.teacher_loss = loss or losses.DistillationLoss(TARGETS[target][0])
        self.alpha, self.projection = alpha, None
        graph = Graph(student)
        labels = learner = graph.outputs
        if target == "token":
            labels, learner = (graph.output(student.get_layer(x)) for x in HEADS)
        elif target == "features":
            learner = graph.input(student.get_layer(HEADS[0]))
        inputs = graph.inputs if len(graph.inputs) > 1 else graph.inputs[0]
        self.branches = Model(inputs, [labels, learner])
        shape, wanted = tuple(learner.shape), tuple(teacher.output_shape)
        if target == "features" and len(wanted) == 2 and shape != wanted:
            # float32 like the heads: the loss is computed from it.
            self.projection = keras.layers.Dense(
                wanted[1], name="projection", dtype="float32"
            )
            self.projection.build(shape)
        elif shape != wanted:
            raise ValueError(
                f"The teacher must output the student's {shape[1]} classes. "
                f"Received: a teacher of output shape {wanted}. Choose "
                "`target='features'` for one of other classes."
            )
        self.built = True

    def train_step(self, *args: Any) -> Any:
        free_gradients(self)
        return super().train_step(*args)  # type: ignore[misc]

    @property
    def reloaded_variables(self) -> list[keras.Variable]:
        """List of variables that checkpoints leave out: the teacher's."""
        return self.teacher.variables

    def teacher_digest(self) -> int:
        """Returns a checksum of the teacher's weights, which must match when a run
        resumes."""
        digest = 0
        for array in self.teacher.get_weights():
            digest = zlib.crc32(np.asarray(array).tobytes(), digest)
        return digest

    def call(self, inputs: Tensor, training: bool | None = None) -> Any:
        if not training:
            return self.student(inputs, training=False)
        labels, learner = self.branches(inputs, training=True)
        if self.projection is not None:
            learner = self.projection(learner)
        teacher = ops.stop_gradient(self.teacher(inputs, training=False))
        return {"labels": labels, "learner": learner, "teacher": teacher}

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        if not isinstance(y_pred, dict):  # of an evaluation
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        labels, weight = y_pred["labels"], sample_weight
        loss = super().compute_loss(x, y, labels, weight, training)
        other = self.teacher_loss(y_pred["teacher"], y_pred["learner"], weight)
        # Regularization, which is part of the loss of Keras, counts in full.
        others = sum(map(ops.sum, self.losses)) / replicas.count()
        return (1 - self.alpha) * loss + self.alpha * (other + others)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        labels = y_pred["labels"] if isinstance(y_pred, dict) else y_pred
        return super().compute_metrics(x, y, labels, sample_weight)


def as_teacher(
    trained: LoadedClassifier,
    features: bool = False,
    student_mode: ModeLike = "tf",
    channels: int = 3,
    data: ImageDataset | None = None,
) -> keras.Model:
    """Returns a trained model as the teacher of a student.

    It takes the images of the student, scales them as its own weights require, and
    resizes them bilinearly with antialiasing.

    Args:
        trained: The result of `keras_vit.evaluation.load_classifier` for a run's folder
            or a checkpoint of any code base; its `image_size` and `mode` are those of
            the teacher.
        features: Boolean. Whether to output the features that the head reads, or the
            whole output of a model without a head. Otherwise the output is logits, even
            if the head ends in a softmax.
        student_mode: The `mode` of `preprocess_input` of the student's images.
        channels: Integer. Channels of these images: as for the teacher, or 1, which is
            repeated.
        data: `keras_vit.data.ImageDataset` whose class names determine the order of the
            logits; None for the teacher's order.

    Returns:
        A `keras.Model` that takes images `(batch, height, width, channels)` of any
        size.

    Raises:
        ValueError: if the teacher does not have the classes of `data`, or takes another
            number of channels.

    Example:

    >>> trained = keras_vit.evaluation.load_classifier("runs/bit")
    >>> teacher = keras_vit.distillation.as_teacher(trained)
    """
    scale, shift = scale_and_shift(as_mode(student_mode, name="student_mode"))
    # It may have been trained on images of several sizes.
    trained = dataclasses.replace(trained, budget=None)
    classes = None
    if features:
        teacher = feature_model(trained.model)
    else:
        num_classes_of(trained)
        if data is not None:
            classes, names = match_class_names(trained, data)
            if classes.tolist() == [*range(len(names))]:
                classes = None
        teacher = trained.predictor
        for head in heads_of(teacher):
            head.activation = keras.activations.linear
    images = keras.Input((None, None, channels), name="images")
    # This restores values from 0 to 255.
    x = keras.layers.Rescaling(scale, scale * shift, dtype="float32")(images)
    if channels == 1:
        x = ops.repeat(x, trained.channels, axis=-1)
    x = ImagePreprocessing(trained.image_size, trained.mode, dtype="float32")(x)
    outputs = teacher(x)
    if classes is not None:
        outputs = ops.take(outputs, classes, axis=-1)
    return Model(images, outputs, name="teacher")
