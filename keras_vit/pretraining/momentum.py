"""Base class of models with a momentum encoder: DINO and MoCo v3."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import initializers
from keras_vit.layers.replicated import float32_variables
from keras_vit.pretraining.base import EncoderStages, PretrainingModel, freeze
from keras_vit.pretraining.losses import update_momentum
from keras_vit.utils import replicas
from keras_vit.utils.types import Tensor


class MomentumModel(PretrainingModel):
    """Base class of models with a student and a teacher, its moving average.

    The student is trained by gradients. The teacher is an encoder of the same
    architecture, whose weights are an exponential moving average of the
    student's, and no gradient flows into it. The teacher is updated at the beginning of
    each training step, with the student's weights from the previous step. Its weights
    are variables of the model like any others, so that checkpoints contain them.

    A subclass creates the heads of both, `projection` and `teacher_projection`,
    by `add_heads` and implements `call`, which calls `update_teacher` when it
    trains, and `compute_loss`, which calls `finish_step`.
    """

    def __init__(
        self,
        encoder: keras.Model,
        teacher_momentum: float | Callable,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.teacher_momentum = teacher_momentum
        config = {**encoder.get_config(), "name": "teacher"}
        with initializers.skip_init():  # the weights are copied below
            self.teacher = type(encoder).from_config(_float32(config))
        freeze(self.teacher)
        self.teacher_stages = EncoderStages(self.teacher)
        _assign(self.teacher.weights, encoder.weights)
        self.step = self.add_weight(
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            name="step",
        )
        self.diversity_tracker = keras.metrics.Mean(
            "teacher_diversity", dtype="float32"
        )

    def add_heads(
        self, make: Callable[[str, keras.DTypePolicy], keras.Layer]
    ) -> tuple[keras.Layer, keras.Layer]:
        """Returns the student's and the teacher's head for pooled features, with equal
        weights; `make` returns a head for a name and a dtype policy."""
        policy = self.dtype_policy
        student = make("projection", policy)
        teacher = make("teacher_projection", float32_variables(policy))
        for head in (student, teacher):
            head.build((None, self.stages.hidden_size))
        _assign(teacher.weights, student.weights)
        freeze(teacher)
        return student, teacher

    def update_teacher(self, step: Any) -> None:
        """Moves the teacher's weights toward those of the student, with the
        momentum of a step."""
        momentum = value_at(self.teacher_momentum, step)
        update_momentum(self.teacher.weights, self.encoder.weights, momentum)
        update_momentum(
            _parameters(self.teacher_projection),
            _parameters(self.projection),
            momentum,
        )

    def update_diversity(self, diversity: Tensor, weights: Tensor) -> None:
        """Adds the diversity of a batch to its metric, unless the batch has only one
        image."""
        count = ops.sum(ops.cast(weights > 0, "float32"))
        self.diversity_tracker.update_state(
            diversity, sample_weight=ops.where(count > 1, count, 0.0)
        )

    def finish_step(self) -> None:
        """Counts a training step. `compute_loss` calls it last."""
        self.step.assign(self.step + 1)

    def split_crops(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Returns the global and the local crops of a batch. The batch is a dict of
        `global` and optionally `local`, `(batch, crops, height, width, channels)`, or
        images, each of which counts as two equal global crops."""
        if isinstance(inputs, dict):
            return inputs["global"], inputs.get("local")
        images = ops.convert_to_tensor(inputs)
        return ops.stack([images, images], axis=1), None

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        **kwargs: Any,
    ) -> None:
        super().compile(optimizer, **kwargs)
        # Mixed float16 wraps the optimizer, in one with an `inner_optimizer`.
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        steps = getattr(optimizer, "gradient_accumulation_steps", None)
        if steps:
            raise ValueError(
                f"The loss of {type(self).__name__} depends on the whole "
                "batch, which cannot be split into micro-batches: leave out "
                "`gradient_accumulation_steps`. Received: "
                f"gradient_accumulation_steps={steps}"
            )


def _float32(config: object) -> Any:
    """Returns a config of layers whose variables are not in half precision.

    Averages need it: in bfloat16, a momentum of 0.999 is rounded to 1.
    """
    if isinstance(config, list):
        return [_float32(x) for x in config]
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        policy = keras.saving.deserialize_keras_object(config)
        return keras.saving.serialize_keras_object(float32_variables(policy))
    return {key: _float32(value) for key, value in config.items()}


def _assign(
    targets: Sequence[keras.Variable], sources: Sequence[keras.Variable]
) -> None:
    for target, source in zip(targets, sources, strict=True):
        # A copy, because JAX donates the buffers of a model's variables.
        target.assign(ops.convert_to_numpy(source))


def _parameters(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the weights of a layer without batch norms' moving statistics."""
    return [x for x in layer.weights if not x.name.startswith("moving_")]


def pool(tokens: Tensor, stages: EncoderStages) -> Tensor:
    """Returns the class token of tokens `(batch, length, hidden_size)`, or the
    mean of the patches if there is none."""
    if stages.has_class_token:
        return tokens[:, 0]
    return ops.mean(tokens[:, stages.num_prefix :], axis=1)


def features(
    stages: EncoderStages, crops: Tensor, training: bool | None = None
) -> Tensor:
    """Returns the pooled features `(batch, crops, hidden_size)` of crops
    `(batch, crops, height, width, channels)`."""
    count, shape = crops.shape[1], crops.shape[2:]
    images = ops.reshape(crops, (-1, *shape))
    tokens = stages.encode(stages.embed(images, training=training), training)
    return ops.reshape(pool(tokens, stages), (-1, count, stages.hidden_size))


def weighted_mean(losses: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Returns the mean of the images' losses times their weights, as Keras's losses do:
    averages over batches of any size are then averages over images."""
    return ops.mean(losses * weights_of(losses, sample_weight))


def weights_of(x: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Returns the weights of the rows of a tensor, 1 if none are given."""
    if sample_weight is None:
        return ops.ones((ops.shape(x)[0],), dtype=x.dtype)
    return ops.cast(ops.reshape(sample_weight, (-1,)), x.dtype)


def value_at(schedule: Any, step: Any) -> Any:
    """Returns the value of a schedule at a step, or a constant."""
    return schedule(step) if callable(schedule) else schedule


def mean_of_all(x: Tensor, axis: int) -> Tensor:
    """Returns the mean over an axis and over TensorFlow's replicas.

    Under JAX, a batch that is split over devices is one array.
    """
    return replicas.sum_of_all(ops.mean(x, axis=axis)) / replicas.count()
