"""What our optimizers share: they count steps of the whole batch."""

import keras
from keras import ops

from keras_vit.training._layer_decay import layer_scales


class WholeBatch(keras.optimizers.Optimizer):
    """What counts steps and gradients of the whole batch.

    A batch may come in parts: one after the other
    (`gradient_accumulation_steps`), or on several devices (`tf.distribute`).

    Weight decay is decoupled and follows the schedule's shape: a kernel loses
    `weight_decay * rate / peak_rate` of itself a step. With `layer_decay`,
    see `layer_scales`, each layer has its own share of the rate, and so of
    the decay. `decay_kernels_only=False` lets all variables decay but those
    that `exclude_from_weight_decay` names.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay=0.0,
        peak_rate=None,
        layer_decay=None,
        decay_kernels_only=True,
        **kwargs,
    ):
        if peak_rate is None and weight_decay:
            if not isinstance(learning_rate, (int, float)):
                raise ValueError(
                    "`peak_rate` must be given with a schedule: the weight "
                    "decay follows the rate's share of it. Received: "
                    f"learning_rate={learning_rate!r}, peak_rate=None"
                )
            peak_rate = learning_rate
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.decay = weight_decay
        self.peak_rate = peak_rate
        self.layer_decay = layer_decay
        self.decay_kernels_only = decay_kernels_only

    def build(self, variables):
        super().build(variables)
        # TensorFlow takes steps of variables of its own, without a path.
        self._decays = [self._decays_at_all(v) for v in variables]
        if self.layer_decay is not None:
            paths = [variable.path for variable in variables]
            self._scales = layer_scales(paths, self.layer_decay)

    def _decays_at_all(self, variable):
        if self.decay_kernels_only and not is_kernel(variable):
            return False
        return self._use_weight_decay(variable)

    def _rate_of(self, variable, learning_rate):
        rate = ops.cast(learning_rate, variable.dtype)
        if self.layer_decay is None:
            return rate
        return rate * self._scales[self._get_variable_index(variable)]

    def _decayed(self, update, variable, rate):
        """An update with the decay of its variable, before the step."""
        if not self.decay:
            return update
        if not self._decays[self._get_variable_index(variable)]:
            return update
        return update + self.decay / self.peak_rate * rate * variable

    def get_config(self):
        return {
            **super().get_config(),
            "weight_decay": self.decay,
            "peak_rate": self.peak_rate,
            "layer_decay": self.layer_decay,
            "decay_kernels_only": self.decay_kernels_only,
        }

    def _get_current_learning_rate(self):
        # Keras counts the parts of a batch here.
        schedule = self._learning_rate
        if isinstance(
            schedule, keras.optimizers.schedules.LearningRateSchedule
        ):
            return schedule(self.iterations)
        return super()._get_current_learning_rate()

    def _update_model_variables_moving_average(self, trainable_variables):
        if not self.gradient_accumulation_steps:
            super()._update_model_variables_moving_average(trainable_variables)
            return
        # Keras would average at every part: with 8 parts, a decay of 0.9999
        # would be one of 0.9992.
        step = self._iterations + 1
        is_step = ops.equal(step % self.gradient_accumulation_steps, 0)
        is_first = ops.equal(self.iterations, 0)
        for variable, average in zip(
            trainable_variables,
            self._model_variables_moving_average,
            strict=True,
        ):
            if average is None:
                continue
            momentum = ops.where(is_first, 0.0, self.ema_momentum)
            momentum = ops.where(is_step, momentum, 1.0)
            momentum = ops.cast(momentum, variable.dtype)
            average.assign(momentum * average + (1 - momentum) * variable)

    def _backend_apply_gradients(self, grads, trainable_variables):
        if self.gradient_accumulation_steps and _num_tf_replicas() > 1:
            # Keras would end in TensorFlow's words about `merge_call`.
            raise ValueError(
                "Keras accumulates gradients on one device of TensorFlow. "
                "Leave out `gradient_accumulation_steps`, or use "
                "KERAS_BACKEND=jax. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps} on "
                f"{_num_tf_replicas()} devices"
            )
        super()._backend_apply_gradients(grads, trainable_variables)
        if keras.config.backend() == "torch":
            # Keras's step would hold them through the next forward pass.
            for variable in trainable_variables:
                variable.value.grad = None

    def finalize_variable_values(self, var_list):
        """Keras puts the averages in the weights' place at the end of every
        `fit`, and training that goes on would start from them. Here that is
        for `averaged` to do."""

    def _clip_gradients(self, grads):
        if not self.global_clipnorm or _num_tf_replicas() == 1:
            return super()._clip_gradients(grads)
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        # Keras would clip what each device has of the gradient. Summing here
        # and once more when the step is applied: hence the division.
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, list(grads))
        count = context.num_replicas_in_sync
        return [grad / count for grad in super()._clip_gradients(whole)]


def _num_tf_replicas():
    """Among how many devices `tf.distribute` splits the step at hand."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def is_kernel(variable):
    """Whether weight decay applies to a variable."""
    return variable.path.rpartition("/")[2] == "kernel"


def moments(optimizer, variables, dtype):
    if dtype is None:
        return optimizer.add_optimizer_variables(variables, "momentum")
    return [
        optimizer.add_variable(
            shape=variable.shape,
            dtype=dtype,
            name=f"{variable.path.replace('/', '_')}_momentum",
            layout=getattr(variable, "_layout", None),
        )
        for variable in variables
    ]
