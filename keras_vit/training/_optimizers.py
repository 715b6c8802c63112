"""Optimizers whose steps are those of the published code.

Keras's own depart from it in what a recipe does not show: the learning rate
inside SGD's momentum, weight decay that follows the base rate, and, where
gradients are accumulated or devices share a batch, schedules, averages and
clipping that count something else than steps of the whole batch.
"""

import contextlib

import keras
from keras import ops

from keras_vit.training._whole_batch import WholeBatch
from keras_vit.training._whole_batch import moments


@keras.saving.register_keras_serializable("keras_vit")
class SGD(WholeBatch):
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
        weight_decay: Float. What a kernel loses a step at the peak rate, as
            in `AdamW`; 0.
        peak_rate: Float. As in `AdamW`.
        **kwargs: `layer_decay`, by which the rate falls from layer to layer
            towards the patches (see `layer_scales`); and as for
            `keras.optimizers.SGD`: `global_clipnorm`, `use_ema`,
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
        self.momentums = moments(self, variables, self.momentum_dtype)

    def update_step(self, gradient, variable, learning_rate):
        dtype = variable.dtype
        moment = self.momentums[self._get_variable_index(variable)]
        # In half precision the product is rounded too, as optax does.
        update = ops.cast(gradient, dtype) + ops.cast(
            self.momentum * moment, dtype
        )
        self.assign(moment, ops.cast(update, moment.dtype))
        rate = self._rate_of(variable, learning_rate)
        self.assign_sub(variable, self._decayed(rate * update, variable, rate))

    def get_config(self):
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "momentum_dtype": self.momentum_dtype,
        }


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(WholeBatch):
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
        **kwargs: `layer_decay` as in `SGD`; others as for
            `keras.optimizers.Adam`.
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
        super().__init__(learning_rate, weight_decay, peak_rate, **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.epsilon = epsilon
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = moments(self, variables, self.momentum_dtype)
        self.velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        rate = self._rate_of(variable, learning_rate)
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
        self.assign_sub(variable, self._decayed(update, variable, rate))

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "momentum_dtype": self.momentum_dtype,
        }


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
