"""Training of a student with the outputs of a trained teacher."""

import zlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit import losses
from keras_vit._types import Tensor
from keras_vit.data import ImageDataset
from keras_vit.evaluation import feature_model
from keras_vit.evaluation import load_classifier
from keras_vit.evaluation import match_class_names
from keras_vit.layers import ImagePreprocessing
from keras_vit.layers.preprocessing import SCALE_AND_SHIFT
from keras_vit.models import Model
from keras_vit.training.models import HEADS

# What a student learns from: the losses of `--distill-loss`, the default first.
TARGETS = {
    "token": ("hard", "soft"),
    "logits": ("soft", "hard"),
    "features": losses.FEATURE_LOSSES,
}


class Distillation(keras.Model):
    """A model that trains a student with labels and with a frozen teacher.

    The loss is `(1 - alpha) * labels + alpha * teacher`: the loss that
    `compile` was given, and that of the teacher's outputs. DeiT
    (https://arxiv.org/abs/2012.12877, Section 4) has it for the distillation
    token, and timm (`timm.task`) for all targets.

    `evaluate` and `predict` run the student alone, and metrics of training are
    those of its head. After training, save `student`: it has neither the
    teacher nor the projection. The teacher runs in inference mode on the images
    of the student, after their augmentation. Its weights are not trained, not
    averaged, and not part of a `ResumableCheckpoint`.

    Args:
        student: A Vision Transformer, a hybrid or a BiT with a head, whose
            output are logits.
        teacher: A functional `keras.Model` that maps the images of the student
            to logits of its classes, or to features, of shape `(batch,
            columns)`, such as that of `load_teacher`. It becomes not trainable.
        target: String. "token": the head of the student's distillation token
            learns the teacher's logits, and the other head the labels.
            "logits": the student's logits learn those of the teacher.
            "features": so do the features that the student's head reads,
            projected by a dense layer if the teacher has another number.
        loss: A `keras.losses.Loss` of the outputs of teacher and student.
            Defaults to `losses.HardDistillation` for "token",
            `SoftDistillation` for "logits", and `FeatureDistillation` for
            "features".
        alpha: Float in [0, 1]. Weight of the teacher's loss.
        **kwargs: `name`, `dtype`.

    Raises:
        ValueError: if an argument is out of range, the student has not the
            heads that `target` needs, or the teacher has other outputs.

    Example:

    >>> student = keras_vit.ViTTi16(classes=10, distillation=True)
    >>> teacher = keras_vit.distillation.load_teacher("runs/bit")
    >>> model = keras_vit.distillation.Distillation(student, teacher, "token")
    >>> model.compile("adamw", keras_vit.losses.get_loss("softmax", False))
    >>> model.fit(images, labels)
    >>> student.save("student.keras")
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
        # Without autocast, so that pixels are not rounded for the teacher.
        super().__init__(autocast=False, **kwargs)
        _checks.one_of("target", target, TARGETS)
        if not 0 <= alpha <= 1:
            raise ValueError(
                f"`alpha` must be a number from 0 to 1. Received: alpha={alpha}"
            )
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.target, self.alpha = target, alpha
        self.teacher_loss = loss or _make_loss(TARGETS[target][0])
        heads = [x.name for x in student.layers if x.name in HEADS]
        needed = {"token": HEADS, "features": HEADS[:1]}.get(target, ())
        if not {*heads} >= {*needed}:
            raise ValueError(
                f"`target={target!r}` needs a student with the layers "
                f"{', '.join(needed)}, and {student.name!r} has "
                f"{', '.join(heads) or 'none of them'}. Build it with "
                "`distillation=True` and `classes`, or choose "
                "`target='logits'`."
            )
        labels = taught = student.output
        if target == "token":
            labels, taught = (student.get_layer(x).output for x in HEADS)
        elif target == "features":
            taught = student.get_layer("head").input
        self.branches = Model(student.inputs[0], [labels, taught])
        wanted, found = teacher.output_shape[1:], tuple(taught.shape[1:])
        self.projection = None
        if target == "features" and len(wanted) == 1 and wanted != found:
            # float32 like the heads: the loss is computed from it.
            self.projection = keras.layers.Dense(
                wanted[0], name="projection", dtype="float32"
            )
            self.projection.build(taught.shape)
            found = wanted
        if wanted != found:
            raise ValueError(
                "The teacher must output one vector per image, with the "
                f"student's {found} classes. Received: a teacher of output "
                f"shape {teacher.output_shape}. To learn from a teacher of "
                "other classes, choose `target='features'`."
            )
        self.built = True

    @property
    def reloaded_variables(self) -> list[keras.Variable]:
        """List of variables that checkpoints leave out: the teacher's."""
        return self.teacher.variables

    def teacher_digest(self) -> int:
        """Returns a checksum of the teacher's weights, by which a run resumes
        only with the teacher that it began with."""
        digest = 0
        for weight in self.teacher.weights:
            array = ops.convert_to_numpy(ops.cast(weight, "float32"))
            digest = zlib.crc32(np.asarray(array).tobytes(), digest)
        return digest

    def call(self, inputs: Tensor, training: bool | None = None) -> Any:
        if not training:
            return self.student(inputs, training=False)
        labels, taught = self.branches(inputs, training=True)
        if self.projection is not None:
            taught = self.projection(taught)
        targets = ops.stop_gradient(self.teacher(inputs, training=False))
        return {"labels": labels, "student": taught, "teacher": targets}

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
        logits, weight = y_pred["labels"], sample_weight
        loss = super().compute_loss(x, y, logits, weight, training)
        taught = self.teacher_loss(y_pred["teacher"], y_pred["student"], weight)
        taught = ops.cast(taught, loss.dtype)
        return (1 - self.alpha) * loss + self.alpha * taught

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        if isinstance(y_pred, dict):
            y_pred = y_pred["labels"]
        return super().compute_metrics(x, y, y_pred, sample_weight)


def _make_loss(kind: str, temperature: float = 1.0) -> keras.losses.Loss:
    """Returns the loss of a name in `TARGETS`."""
    if kind == "soft":
        return losses.SoftDistillation(temperature)
    if kind == "hard":
        return losses.HardDistillation()
    return losses.FeatureDistillation(kind)


def load_teacher(
    weights: str,
    features: bool = False,
    model: str | None = None,
    image_size: int | tuple[int, int] | str | None = None,
    mode: str | None = None,
    student_mode: str = "tf",
    channels: int = 3,
    data: ImageDataset | None = None,
) -> keras.Model:
    """Loads a trained model as the teacher of a student.

    It takes images as the student does, scales them as its own weights need,
    and resizes them, bilinear with antialiasing.

    Args:
        weights: String. Path, URL or name as for `evaluation.load_classifier`:
            a run's folder, or a checkpoint of any code base.
        features: Boolean. Whether the output are the features that its head
            reads, or its output if it has no head. Otherwise they are logits,
            also if its head ends in a softmax.
        model: String. Name of a model function, for released weights.
        image_size: Integer or `(height, width)`. Size of the images that the
            teacher sees. Defaults to its own.
        mode: String. The `mode` of `preprocess_input` of the teacher. Defaults
            to its own, or "tf" if its file does not tell.
        student_mode: String. That of the images that the student gets.
        channels: Integer. Channels of these images: those of the teacher, or 1,
            which is repeated.
        data: `keras_vit.data.ImageDataset`, whose classes the logits are in
            order, by their names; None for those of the teacher.

    Returns:
        A `keras.Model` of images `(batch, height, width, channels)` of any
        size.

    Raises:
        FileNotFoundError, OSError: if there are no such weights.
        ValueError: if they cannot be read, have not the classes of `data`, or
            take another number of channels.
    """
    _checks.one_of("student_mode", student_mode, tuple(SCALE_AND_SHIFT))
    trained = load_classifier(weights, model, image_size, mode)
    if channels not in (1, trained.channels):
        raise ValueError(
            f"The teacher {weights!r} takes images of {trained.channels} "
            f"channels, and the student's have {channels}. Give another "
            "teacher."
        )
    classes = None
    if features:
        teacher = feature_model(trained.model)
    else:
        if data is not None:
            classes, names = match_class_names(trained, data)
            if classes.tolist() == list(range(len(names))):
                classes = None
        teacher = trained.predictor
        for layer in teacher.layers:
            if layer.name in HEADS:
                layer.activation = keras.activations.linear
    images = keras.Input((None, None, channels), name="images")
    scale, shift = SCALE_AND_SHIFT[student_mode]
    # To values from 0 to 255.
    x = keras.layers.Rescaling(scale, scale * shift, dtype="float32")(images)
    if channels != trained.channels:
        x = ops.repeat(x, trained.channels, axis=-1)
    x = ImagePreprocessing(trained.image_size, trained.mode, dtype="float32")(x)
    outputs = teacher(x)
    if classes is not None:
        outputs = ops.take(outputs, classes, axis=-1)
    return Model(images, outputs, name="teacher")


def distill(student: keras.Model, config: Any, data: ImageDataset) -> Any:
    """Returns the model that a recipe trains: the student, or with `--teacher`
    a `Distillation`, by the flags of `SupervisedFlags`."""
    if config.teacher is None:
        return student
    target = config.distill or "logits"
    if target != "features" and config.loss == "sigmoid":
        raise ValueError(
            f"--distill {target} compares classes of which each image has one: "
            "give --loss softmax, or --distill features. Received: --loss "
            "sigmoid"
        )
    kinds = TARGETS[target]
    kind = config.distill_loss or kinds[0]
    if kind not in kinds or config.temperature and kind != "soft":
        raise ValueError(
            f"--distill {target} has --distill-loss {' or '.join(kinds)}, and "
            "only soft a --temperature. Received: --distill-loss "
            f"{config.distill_loss}, --temperature {config.temperature}"
        )
    teacher = load_teacher(
        config.teacher,
        target == "features",
        config.teacher_model,
        config.teacher_size,
        config.teacher_mode,
        config.mode,
        data.channels,
        data,
    )
    loss = _make_loss(kind, config.temperature or 1.0)
    return Distillation(student, teacher, target, loss, config.alpha)
