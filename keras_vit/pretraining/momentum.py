"""Base class of models with a momentum encoder: DINO and MoCo v3."""

from typing import Any

import keras
from keras import ops

from keras_vit import _replicas
from keras_vit.layers import initializers
from keras_vit.layers.replicated import float32_variables
from keras_vit.models import weights_by_path
from keras_vit.pretraining.base import EncoderStages
from keras_vit.pretraining.base import PretrainingModel
from keras_vit.pretraining.base import freeze
from keras_vit.pretraining.losses import update_momentum


class MomentumModel(PretrainingModel):
    """Base class of models of a student and a teacher, its moving average.

    The student is trained by gradients. The teacher is an encoder of the same
    architecture, whose weights are an exponential moving average of the
    student's, and no gradient flows into it. The teacher is updated at the
    beginning of each training step, with the student that the step before it
    has trained. It is a variable of the model like any other, so that
    checkpoints contain it.

    A subclass creates the heads of both, `projection` and
    `teacher_projection`, by `add_heads` and implements `call`, which calls
    `update_teacher` when it trains, and `compute_loss`, which calls
    `finish_step`.

    Args:
        encoder: A `VisionTransformer` for images of one size that outputs all
            tokens: `include_top=False, pooling=None`. Its weights are shared:
            it is the student.
        teacher_momentum: Float in [0, 1], or a schedule of the step.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, encoder, teacher_momentum, **kwargs):
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

    def add_heads(self, make):
        """Returns the student's and the teacher's head, with equal weights.

        Args:
            make: Function of a name and a dtype policy that returns a layer,
                which takes the pooled features.
        """
        policy = self.dtype_policy
        student = make("projection", policy)
        teacher = make("teacher_projection", float32_variables(policy))
        for head in (student, teacher):
            head.build((None, self.stages.hidden_size))
        _assign(teacher.weights, student.weights)
        freeze(teacher)
        return student, teacher

    def update_teacher(self, step):
        """Moves the teacher's weights towards those of the student.

        Args:
            step: Integer tensor. The step whose momentum is used.
        """
        momentum = value_at(self.teacher_momentum, step)
        update_momentum(self.teacher.weights, self.encoder.weights, momentum)
        update_momentum(
            _parameters(self.teacher_projection),
            _parameters(self.projection),
            momentum,
        )

    def update_diversity(self, diversity, weights):
        """Adds the diversity of a batch to its metric; one image has none."""
        count = ops.sum(ops.cast(weights > 0, "float32"))
        self.diversity_tracker.update_state(
            diversity, sample_weight=ops.where(count > 1, count, 0.0)
        )

    def finish_step(self):
        """Counts a training step. `compute_loss` calls it last."""
        self.step.assign(self.step + 1)

    def split_crops(self, inputs):
        """Returns the global and the local crops of a batch.

        Args:
            inputs: Dict of `global`, of shape `(batch, crops, height, width,
                channels)`, and optionally `local`, of shape `(batch, crops,
                local height, local width, channels)`; or a tensor of images,
                `(batch, height, width, channels)`, each of which counts as two
                equal global crops.

        Returns:
            Tuple of two tensors; the second is None without local crops.
        """
        if isinstance(inputs, dict):
            return inputs["global"], inputs.get("local")
        images = ops.convert_to_tensor(inputs)
        return ops.stack([images, images], axis=1), None

    @property
    def pretrained_encoder(self):
        """The encoder to use after training."""
        raise NotImplementedError

    def variables_by_path(self):
        """Returns `{path: variable}`, with the paths of `converters`.

        The paths of `pretrained_encoder` have no prefix, those of the other
        encoder begin with `student/` or `teacher/`, and those of any other
        layer with its name.
        """
        trained = self.pretrained_encoder
        paths = dict(weights_by_path(trained))
        for name, encoder in (
            ("student", self.encoder),
            ("teacher", self.teacher),
        ):
            if encoder is not trained:
                for path, variable in weights_by_path(encoder).items():
                    paths[f"{name}/{path}"] = variable
        for layer in self.layers:
            if not isinstance(layer, (keras.Model, keras.metrics.Metric)):
                for variable in layer.weights:
                    # Below the name of the model, if it is in the path.
                    path = variable.path.split(f"{layer.name}/", 1)[-1]
                    paths[f"{layer.name}/{path}"] = variable
        return paths

    def compile(self, optimizer="rmsprop", *args, **kwargs):
        super().compile(optimizer, *args, **kwargs)
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

    def get_config(self):
        return {
            **super().get_config(),
            "teacher_momentum": serialize_schedule(self.teacher_momentum),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        schedules = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            for name, value in config.items()
            if name in ("teacher_momentum", "teacher_temperature")
            and isinstance(value, dict)
        }
        return super().from_config({**config, **schedules}, custom_objects)


def _float32(config: Any) -> Any:
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


def _assign(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        # A copy, because JAX donates the buffers of a model's variables.
        target.assign(ops.convert_to_numpy(source))


def _parameters(layer):
    """Returns the weights of a layer without batch norms' moving statistics."""
    return [x for x in layer.weights if not x.name.startswith("moving_")]


def pool(tokens, stages):
    """Returns the class token, or the mean of the patches if there is none.

    Args:
        tokens: Tensor of shape `(batch, length, hidden_size)`.
        stages: `EncoderStages` of the encoder that computed them.
    """
    if stages.has_class_token:
        return tokens[:, 0]
    return ops.mean(tokens[:, stages.num_prefix :], axis=1)


def features(stages, crops, training=None):
    """Returns the pooled features of crops.

    Args:
        stages: `EncoderStages`.
        crops: Tensor of shape `(batch, crops, height, width, channels)`.
        training: Boolean. Whether to apply dropout and stochastic depth.

    Returns:
        Tensor of shape `(batch, crops, hidden_size)`.
    """
    count, shape = crops.shape[1], crops.shape[2:]
    images = ops.reshape(crops, (-1, *shape))
    tokens = stages.encode(stages.embed(images, training=training), training)
    return ops.reshape(pool(tokens, stages), (-1, count, stages.hidden_size))


def weighted_mean(losses, sample_weight=None):
    """Returns the mean of the images' losses, each times its weight, as Keras's
    losses do: the mean over batches of any size is then that over images."""
    return ops.mean(losses * weights_of(losses, sample_weight))


def weights_of(x, sample_weight=None):
    """Returns the weights of the rows of a tensor, 1 if none are given."""
    if sample_weight is None:
        return ops.ones((ops.shape(x)[0],), dtype=x.dtype)
    return ops.cast(ops.reshape(sample_weight, (-1,)), x.dtype)


def value_at(schedule, step):
    """Returns the value of a schedule at a step, or a constant."""
    return schedule(step) if callable(schedule) else schedule


def serialize_schedule(schedule):
    """Returns what `get_config` stores of a schedule, or a constant."""
    if callable(schedule):
        return keras.saving.serialize_keras_object(schedule)
    return schedule


def mean_of_all(x, axis):
    """Returns the mean over an axis and over the replicas of TensorFlow.

    Under JAX, a batch that is split over devices is one array.
    """
    return _replicas.sum_of_all(ops.mean(x, axis=axis)) / _replicas.count()


def gather(x):
    """Returns the rows of all TensorFlow replicas, and the first of this one.

    Args:
        x: Tensor of shape `(batch, ...)`, of the same size in each replica.

    Returns:
        Tuple of a tensor of shape `(replicas * batch, ...)` and an integer.
    """
    context = _replicas.context()
    if context is None:
        return x, 0
    index = context.replica_id_in_sync_group
    return context.all_gather(x, axis=0), index * ops.shape(x)[0]
