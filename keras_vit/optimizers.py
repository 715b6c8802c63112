"""Optimizers of the published training code, as Keras optimizers."""

import contextlib
import re

import keras
from keras import ops

_BLOCK = re.compile(r"block_(\d+)")
# What comes before the blocks, a hybrid's ResNet among it.
_FIRST = re.compile(
    r"(patch_embedding|class_token|distillation_token|register_tokens"
    r"|mask_token|position_embedding|pre_norm|root_.*|stage_.*)"
)


def layer_decay_multipliers(paths, decay):
    """Returns the share of the learning rate that each variable has.

    As in the fine-tuning of "Masked Autoencoders Are Scalable Vision
    Learners" (https://arxiv.org/abs/2111.06377, Appendix A.1) and of BEiT:
    `decay` to the power of the layers above. The head and the last norm have
    1, the last block `decay`, what comes before the first block the least.

    Args:
        paths: List of variables' paths.
        decay: Float in (0, 1].

    Returns:
        List of floats.

    Raises:
        ValueError: if `decay` is out of range, or there are no blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(
            f"`layer_decay` must be in (0, 1]. Received: layer_decay={decay}"
        )
    blocks = [_block(path) for path in paths]
    known = [number for number in blocks if number is not None]
    if not known:
        raise ValueError(
            "`layer_decay` counts the blocks of a Vision Transformer, and "
            "this model has none. Leave it out."
        )
    top = max(known) + 2
    return [
        decay ** (top - _depth(path, block, top))
        for path, block in zip(paths, blocks, strict=True)
    ]


def _block(path):
    for part in path.split("/"):
        match = _BLOCK.fullmatch(part)
        if match:
            return int(match[1])
    return None


def _depth(path, block, top):
    if block is not None:
        return block + 1
    first = any(_FIRST.fullmatch(part) for part in path.split("/"))
    return 0 if first else top


CONVENTIONS = ("keras", "optax")


class ScheduledOptimizer(keras.optimizers.Optimizer):
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
            self._scales = layer_decay_multipliers(paths, self.layer_decay)

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


@keras.saving.register_keras_serializable("keras_vit")
class SGD(ScheduledOptimizer):
    """Stochastic gradient descent with momentum.

    By default it computes what `keras.optimizers.SGD` computes. With
    `convention="optax"`, it follows optax and PyTorch, and so the published
    code, where they define a step differently:

    - The momentum collects gradients, `m = momentum * m + gradient`, and a
      step is `-learning_rate * m`. Keras's collects
      `learning_rate * gradient`. Both are the same at a constant learning
      rate, and differ with warm-up and decay.
    - With `gradient_accumulation_steps`, schedules and moving averages count
      updates of the weights. Keras's count micro-batches.

    In both conventions a variable loses the fraction
    `weight_decay * learning_rate` of itself at each step; the decay does not
    enter the momentum.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        momentum: Float in [0, 1].
        nesterov: Boolean. Whether to apply Nesterov momentum.
        weight_decay: Float. As for `keras.optimizers.SGD`. big_vision's "wd"
            is the fraction at the peak of the schedule: divide it by the peak
            learning rate.
        convention: "keras" or "optax".
        decay_kernels_only: Boolean. Whether weight decay applies only to
            variables named "kernel", as in big_vision: not to biases, norms,
            tokens and position embeddings.
        layer_decay: Float in (0, 1]. Factor by which the learning rate
            decreases from each layer to the one below; see
            `layer_decay_multipliers`.
        momentum_dtype: String, such as "bfloat16", which the code of the
            paper uses to halve the memory of the momentum. Defaults to the
            dtype of each variable.
        **kwargs: As for `keras.optimizers.SGD`: `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.
    """

    def __init__(
        self,
        learning_rate=0.01,
        momentum=0.0,
        nesterov=False,
        *,
        weight_decay=None,
        **kwargs,
    ):
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"`momentum` must be in [0, 1]. Received: momentum={momentum}"
            )
        super().__init__(learning_rate, weight_decay, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = []
        if self.momentum:
            self.momentums = slots(
                self, variables, "momentum", self.momentum_dtype
            )

    def update_step(self, gradient, variable, learning_rate):
        dtype = compute_dtype(variable)
        gradient = ops.cast(gradient, dtype)
        rate = self._rate_of(variable, learning_rate)
        keras_order = self.convention == "keras"
        # Keras's momentum has the learning rate in it, optax's has not.
        step = rate * gradient if keras_order else gradient
        update = step
        if self.momentum:
            moment = self.momentums[self._get_variable_index(variable)]
            # With a momentum in half precision the product is rounded too, as
            # optax does.
            update = ops.cast(self.momentum * moment, dtype) + step
            self.assign(moment, ops.cast(update, moment.dtype))
            if self.nesterov:
                update = self.momentum * update + step
        if not keras_order:
            update = rate * update
        self._update(variable, update, rate)

    def get_config(self):
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(ScheduledOptimizer):
    """Adam with decoupled weight decay.

    By default it computes what `keras.optimizers.AdamW` computes. With
    `convention="optax"`, it follows optax and PyTorch, and so the published
    code, where they define a step differently:

    - Epsilon is added to the root of the bias-corrected second moment, as in
      Algorithm 1 of the publication of Adam, and defaults to 1e-8. Keras adds
      it before the correction ("epsilon hat"), and its default is 1e-7.
    - With `gradient_accumulation_steps`, schedules and moving averages count
      updates of the weights. Keras's count micro-batches.

    In both conventions a variable loses the fraction
    `weight_decay * learning_rate` of itself at each step: the paper's "weight
    decay 0.1" is `weight_decay=0.1`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        weight_decay: Float. As for `keras.optimizers.AdamW`. big_vision's
            "wd" is the fraction at the peak of the schedule: divide it by the
            peak learning rate.
        beta_1: Float in [0, 1).
        beta_2: Float in [0, 1).
        epsilon: Float. Defaults to 1e-7 in Keras's convention and to 1e-8 in
            optax's.
        amsgrad: Boolean. Whether to apply the AMSGrad variant.
        convention: "keras" or "optax".
        decay_kernels_only: Boolean. As for `SGD`.
        layer_decay: Float. As for `SGD`.
        momentum_dtype: String, of the first moment; "bfloat16" in AugReg. As
            for `SGD`.
        **kwargs: As for `SGD`.
    """

    def __init__(
        self,
        learning_rate=0.001,
        weight_decay=0.004,
        *,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=None,
        amsgrad=False,
        **kwargs,
    ):
        if weight_decay is None:
            raise ValueError(
                "`weight_decay` must be a float, such as 0.0 for none. "
                "Received: weight_decay=None"
            )
        super().__init__(learning_rate, weight_decay, **kwargs)
        if epsilon is None:
            epsilon = 1e-7 if self.convention == "keras" else 1e-8
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.epsilon = epsilon
        self.amsgrad = amsgrad

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = slots(self, variables, "momentum", self.momentum_dtype)
        self.velocities = slots(self, variables, "velocity")
        if self.amsgrad:
            self.velocity_hats = slots(self, variables, "velocity_hat")

    def update_step(self, gradient, variable, learning_rate):
        dtype = compute_dtype(variable)
        gradient = ops.cast(gradient, dtype)
        rate = self._rate_of(variable, learning_rate)
        step = ops.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        moment, velocity = self.momentums[index], self.velocities[index]

        mean = ops.cast(self.beta_1 * moment, dtype)
        mean = mean + (1 - self.beta_1) * gradient
        square = ops.cast(velocity, dtype)
        square = self.beta_2 * square + (1 - self.beta_2) * gradient**2
        self.assign(moment, ops.cast(mean, moment.dtype))
        self.assign(velocity, ops.cast(square, velocity.dtype))
        # What the moments lack, because they start from zero.
        mean_sum = 1 - ops.power(ops.cast(self.beta_1, dtype), step)
        square_sum = 1 - ops.power(ops.cast(self.beta_2, dtype), step)
        if self.convention == "optax":
            square = square / square_sum
        if self.amsgrad:
            largest = self.velocity_hats[index]
            square = ops.maximum(ops.cast(largest, dtype), square)
            self.assign(largest, ops.cast(square, largest.dtype))
        if self.convention == "optax":
            update = (
                rate * (mean / mean_sum) / (ops.sqrt(square) + self.epsilon)
            )
        else:
            rate_hat = rate * ops.sqrt(square_sum) / mean_sum
            update = rate_hat * mean / (ops.sqrt(square) + self.epsilon)
        self._update(variable, update, rate)

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "amsgrad": self.amsgrad,
        }


@contextlib.contextmanager
def averaged(model):
    """Temporarily assigns a model the moving averages of its weights.

    In the body of the context the weights are the averages (`use_ema=True` of
    the optimizer), and afterwards what they were before. Without averages
    nothing happens. `model.fit` leaves the averages in the model when it ends;
    this is for evaluations before that.

    Args:
        model: A compiled model.
    """
    optimizer = inner_optimizer(model)
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
    raw = [ops.convert_to_numpy(variable) for variable, _ in pairs]
    for variable, average in pairs:
        # A copy, because JAX donates the buffers of a model's variables.
        variable.assign(ops.convert_to_numpy(average))
    try:
        yield model
    finally:
        for (variable, _), value in zip(pairs, raw, strict=True):
            variable.assign(value)


def assign_averages(model):
    """Assigns a model the moving averages of its weights, if there are any.

    As `model.fit` does when it ends.
    """
    optimizer = inner_optimizer(model)
    if getattr(optimizer, "use_ema", False) and optimizer.built:
        optimizer.finalize_variable_values(model.trainable_variables)


def inner_optimizer(model):
    """Returns the optimizer that steps: what `LossScaleOptimizer` wraps."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
