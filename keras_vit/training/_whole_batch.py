"""What the optimizers share: conventions, weight decay, whole batches."""

import keras
from keras import ops

from keras_vit.training._layer_decay import layer_scales

CONVENTIONS = ("keras", "optax")


class WholeBatch(keras.optimizers.Optimizer):
    """Base of the optimizers; see `SGD` for its arguments.

    A batch may be computed as micro-batches, sequentially
    (`gradient_accumulation_steps`) or on several devices (`tf.distribute`).
    Global clipping, and with `convention="optax"` schedules and averages too,
    are of the whole batch.

    Subclasses compute an update in `update_step` and subtract it with
    `_update`, which adds the weight decay.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay=None,
        *,
        convention="keras",
        decay_kernels_only=False,
        layer_decay=None,
        momentum_dtype=None,
        **kwargs,
    ):
        if "peak_rate" in kwargs:
            raise ValueError(
                "`peak_rate` was removed: `weight_decay` is multiplied by the "
                "learning rate, as in Keras. For the steps of before, divide "
                "`weight_decay` by the peak learning rate, and give "
                "convention='optax' and decay_kernels_only=True. Received: "
                f"peak_rate={kwargs['peak_rate']}"
            )
        if convention not in CONVENTIONS:
            raise ValueError(
                f"`convention` must be one of {CONVENTIONS}. Received: "
                f"convention={convention!r}"
            )
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **kwargs
        )
        self.convention = convention
        self.decay_kernels_only = decay_kernels_only
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        super().build(variables)
        if self.layer_decay is not None:
            paths = [variable.path for variable in variables]
            self._scales = layer_scales(paths, self.layer_decay)

    def _rate_of(self, variable, learning_rate):
        """Returns the learning rate of a variable."""
        rate = ops.cast(learning_rate, compute_dtype(variable))
        if self.layer_decay is None:
            return rate
        return rate * self._scales[self._get_variable_index(variable)]

    def _update(self, variable, update, rate):
        """Subtracts an update and the weight decay from a variable."""
        if self.weight_decay and self._decays(variable):
            value = ops.cast(variable, update.dtype)
            update = update + self.weight_decay * rate * value
        self.assign_sub(variable, ops.cast(update, variable.dtype))

    def _decays(self, variable):
        # TensorFlow steps variables of its own, which have no path.
        variable = self._trainable_variables[self._get_variable_index(variable)]
        if self.decay_kernels_only and not is_kernel(variable):
            return False
        return self._use_weight_decay(variable)

    def _apply_weight_decay(self, variables):
        """Does nothing: `_update` applies it, at the rate of each layer."""

    def get_config(self):
        return {
            **super().get_config(),
            "convention": self.convention,
            "decay_kernels_only": self.decay_kernels_only,
            "layer_decay": self.layer_decay,
            "momentum_dtype": self.momentum_dtype,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if "peak_rate" in config:
            # Of a file written when `weight_decay` was the fraction at the
            # peak learning rate, and optax's the only convention.
            config = dict(config)
            peak = config.pop("peak_rate")
            config["weight_decay"] = (config["weight_decay"] or 0.0) / (
                peak or 1.0
            )
            config |= {"convention": "optax", "decay_kernels_only": True}
        return super().from_config(config, custom_objects)

    def _get_current_learning_rate(self):
        # Keras counts micro-batches here.
        schedule = self._learning_rate
        if self.convention == "optax" and isinstance(
            schedule, keras.optimizers.schedules.LearningRateSchedule
        ):
            return schedule(self.iterations)
        return super()._get_current_learning_rate()

    @property
    def _averages_updates(self):
        return self.convention == "optax" and self.gradient_accumulation_steps

    def _update_model_variables_moving_average(self, trainable_variables):
        if not self._averages_updates:
            super()._update_model_variables_moving_average(trainable_variables)
            return
        # Keras would average at every micro-batch: with 8 of them, a decay of
        # 0.9999 would be one of 0.9992.
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

    def _overwrite_at_updates(self, frequency):
        is_step = ops.equal(
            (self._iterations + 1) % self.gradient_accumulation_steps, 0
        )
        is_due = ops.equal((self.iterations + 1) % frequency, 0)
        overwrite = ops.logical_and(is_step, is_due)
        for variable, average in zip(
            self._trainable_variables,
            self._model_variables_moving_average,
            strict=True,
        ):
            if average is not None:
                share = ops.cast(overwrite, variable.dtype)
                variable.assign(share * average + (1 - share) * variable)

    def _backend_apply_gradients(self, grads, trainable_variables):
        if self.gradient_accumulation_steps and _num_tf_replicas() > 1:
            # Keras would fail with TensorFlow's message about `merge_call`.
            raise ValueError(
                "Keras accumulates gradients on one device of TensorFlow. "
                "Leave out `gradient_accumulation_steps`, or use "
                "KERAS_BACKEND=jax. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps} on "
                f"{_num_tf_replicas()} devices"
            )
        frequency = self.ema_overwrite_frequency
        if self.use_ema and self._averages_updates and frequency:
            # Keras would overwrite at every micro-batch of an update.
            self.ema_overwrite_frequency = None
            try:
                super()._backend_apply_gradients(grads, trainable_variables)
            finally:
                self.ema_overwrite_frequency = frequency
            self._overwrite_at_updates(frequency)
        else:
            super()._backend_apply_gradients(grads, trainable_variables)
        if keras.config.backend() == "torch":
            # Keras's step would hold them through the next forward pass.
            for variable in trainable_variables:
                variable.value.grad = None

    def _clip_gradients(self, grads):
        if not self.global_clipnorm or _num_tf_replicas() == 1:
            return super()._clip_gradients(grads)
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        # Keras would clip the gradient of each device. Summing here
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


def slots(optimizer, variables, name, dtype=None):
    """Adds a variable to an optimizer for each variable of a model.

    Args:
        optimizer: Keras optimizer.
        variables: List of variables.
        name: String.
        dtype: String. Defaults to that of `compute_dtype`.

    Returns:
        List of variables, with None for those that are overwritten with their
        gradients (the scales of float8 layers).
    """
    made = []
    for variable in variables:
        wanted = dtype or compute_dtype(variable)
        if getattr(variable, "overwrite_with_gradient", False):
            made.append(None)
        elif wanted == keras.backend.standardize_dtype(variable.dtype):
            made.append(optimizer.add_variable_from_reference(variable, name))
        else:
            made.append(
                optimizer.add_variable(
                    shape=variable.shape,
                    dtype=wanted,
                    name=f"{variable.path.replace('/', '_')}_{name}",
                    layout=getattr(variable, "_layout", None),
                )
            )
    return made


def compute_dtype(variable):
    """Returns the dtype to compute the step of a variable in.

    In float16 and bfloat16, 0.999 is 1, and the bias corrections of Adam are 0.
    """
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype
