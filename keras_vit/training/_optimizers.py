"""Optimizers whose steps are those of the published code.

Keras's own depart from it in what a recipe does not show: the learning rate
inside SGD's momentum, weight decay that follows the base rate, and, where
gradients are accumulated or devices share a batch, schedules, averages and
clipping that count something else than steps of the whole batch.
"""

import contextlib

import keras
from keras import ops


class _WholeBatch(keras.optimizers.Optimizer):
    """What counts steps and gradients of the whole batch.

    A batch may come in parts: one after the other
    (`gradient_accumulation_steps`), or on several devices (`tf.distribute`).
    """

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


@keras.saving.register_keras_serializable("keras_vit")
class SGD(_WholeBatch):
    """Stochastic gradient descent that scales its momentum by today's rate.

    The momentum `m` collects gradients, `m = momentum * m + gradient`, and a
    step is `-learning_rate * m`, as in PyTorch and optax, with which the paper
    fine-tunes ("An Image is Worth 16x16 Words", Table 4). Keras's own SGD
    collects `learning_rate * gradient`: the same at a constant rate, another
    path with warm-up and decay.

    Args:
        learning_rate: Float or schedule.
        momentum: Float in [0, 1).
        momentum_dtype: String, such as "bfloat16", which the paper's code
            has: half the memory. None takes each variable's own.
        **kwargs: As for `keras.optimizers.SGD`: `global_clipnorm`, `use_ema`,
            `ema_momentum`, `gradient_accumulation_steps`, ...
    """

    def __init__(
        self, learning_rate=0.01, momentum=0.9, momentum_dtype=None, **kwargs
    ):
        if not 0 <= momentum < 1:
            raise ValueError(
                f"`momentum` must be in [0, 1). Received: momentum={momentum}"
            )
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = _moments(self, variables, self.momentum_dtype)

    def update_step(self, gradient, variable, learning_rate):
        dtype = variable.dtype
        moment = self.momentums[self._get_variable_index(variable)]
        # In half precision the product is rounded too, as optax does.
        update = ops.cast(gradient, dtype) + ops.cast(
            self.momentum * moment, dtype
        )
        self.assign(moment, ops.cast(update, moment.dtype))
        self.assign_sub(variable, ops.cast(learning_rate, dtype) * update)

    def get_config(self):
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "momentum_dtype": self.momentum_dtype,
        }


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(_WholeBatch):
    """Adam with decoupled weight decay that follows the schedule's shape.

    A kernel loses `weight_decay * rate / peak_rate` of itself a step: the
    decay follows warm-up and decay of the rate, not its size. So AugReg
    defines it (https://arxiv.org/abs/2106.10270; big_vision). The paper's
    "weight decay 0.1" at a rate of 0.001 is 1e-4 here. Keras's `AdamW` has
    `weight_decay * rate`. Biases, norms, tokens and positions do not decay.
    Epsilon is added to the corrected root, as in the publication of Adam and
    in optax; Keras's own adds it before the correction.

    Args:
        learning_rate: Float or schedule.
        weight_decay: Float. What a kernel loses a step at the peak rate.
        peak_rate: Float. The schedule's highest rate; None takes
            `learning_rate` if that is a float.
        beta_1: Float in [0, 1).
        beta_2: Float in [0, 1).
        epsilon: Float.
        momentum_dtype: String, such as "bfloat16" in AugReg; None takes each
            variable's own.
        **kwargs: As for `keras.optimizers.Adam`.
    """

    def __init__(
        self,
        learning_rate=0.001,
        weight_decay=1e-4,
        peak_rate=None,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        momentum_dtype=None,
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
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.epsilon = epsilon
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = _moments(self, variables, self.momentum_dtype)
        self.velocities = self.add_optimizer_variables(variables, "velocity")
        self._decays = [is_kernel(variable) for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        rate = ops.cast(learning_rate, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        moment, velocity = self.momentums[index], self.velocities[index]

        mean = ops.cast(self.beta_1 * moment, dtype)
        mean = mean + (1 - self.beta_1) * gradient
        square = self.beta_2 * velocity + (1 - self.beta_2) * gradient**2
        self.assign(moment, ops.cast(mean, moment.dtype))
        self.assign(velocity, square)
        mean = mean / (1 - ops.power(ops.cast(self.beta_1, dtype), step))
        square = square / (1 - ops.power(ops.cast(self.beta_2, dtype), step))
        update = rate * mean / (ops.sqrt(square) + self.epsilon)
        if self.decay and self._decays[index]:
            update = update + self.decay / self.peak_rate * rate * variable
        self.assign_sub(variable, update)

    def get_config(self):
        config = super().get_config()
        config.update(
            weight_decay=self.decay,
            peak_rate=self.peak_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            momentum_dtype=self.momentum_dtype,
        )
        return config


def _num_tf_replicas():
    """Among how many devices `tf.distribute` splits the step at hand."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


@contextlib.contextmanager
def averaged(model):
    """Lends a model the averages of its weights (`use_ema=True`).

    In its body the model has the averages, and afterwards its own weights
    again. Without averages nothing happens.
    """
    optimizer = model.optimizer
    averages = getattr(optimizer, "_model_variables_moving_average", None)
    if not getattr(optimizer, "use_ema", False) or not averages:
        yield model
        return
    pairs = [
        (variable, average)
        for variable, average in zip(
            model.trainable_variables, averages, strict=True
        )
        if average is not None
    ]
    own = [ops.convert_to_numpy(variable) for variable, _ in pairs]
    for variable, average in pairs:
        # A copy: JAX gives a model's own arrays away when it runs.
        variable.assign(ops.convert_to_numpy(average))
    try:
        yield model
    finally:
        for (variable, _), value in zip(pairs, own, strict=True):
            variable.assign(value)


def is_kernel(variable):
    """Whether weight decay applies to a variable."""
    return variable.path.rpartition("/")[2] == "kernel"


def _moments(optimizer, variables, dtype):
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
