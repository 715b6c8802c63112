"""SGD and AdamW with the options of published fine-tuning and pre-training."""

import contextlib

import keras
from keras import ops

from keras_vit.training._whole_batch import WholeBatch
from keras_vit.training._whole_batch import compute_dtype
from keras_vit.training._whole_batch import slots


@keras.saving.register_keras_serializable("keras_vit")
class SGD(WholeBatch):
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
            decreases from each layer to the one below; see `layer_scales`.
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
class AdamW(WholeBatch):
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
