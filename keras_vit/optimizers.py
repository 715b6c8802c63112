"""Optimizers of the published training code, as Keras optimizers."""

# PyTorch has no public names for its functions of many tensors, which Keras's
# optimizers use as well.
# pyright: reportPrivateImportUsage=false

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeAlias

import keras
from keras import ops

from keras_vit.utils import checks, replicas
from keras_vit.utils.types import Config, Tensor

__all__ = ["averaged", "layer_decay_multipliers", "PublishedAdamW", "PublishedSGD"]

# Position embeddings of a block learn at its rate.
_BLOCK = re.compile(r"(?:block|position_embedding)_(\d+)")
# Layers before the first block, such as the ResNet of a hybrid. Relative
# positions that all blocks share (offsets) are none, as in BEiT.
_FIRST = re.compile(
    r"(patch_embedding|class_token|distillation_token|register_tokens"
    r"|mask_token|position_embedding(_shared)?|pre_norm|root_.*|stage_.*)"
)


def layer_decay_multipliers(paths: Sequence[str], decay: float) -> list[float]:
    """Returns the factor of the learning rate of each variable.

    This is the layer-wise learning rate decay with which "Masked Autoencoders
    Are Scalable Vision Learners" (https://arxiv.org/abs/2111.06377, Appendix
    A.1) and BEiT fine-tune. The factor is `decay` to the power of the number of
    layers above: 1 for the head and the last norm, `decay` for the last block,
    and the lowest value for the layers before the first block.

    Args:
        paths: List of strings, the paths of the variables of a model.
        decay: Float in (0, 1].

    Returns:
        List of floats, one for each path.

    Raises:
        ValueError: if `decay` is out of range, or is not 1 and no path belongs to a
            block.
    """
    checks.require(0 < decay <= 1, "layer_decay", decay, "above 0 and at most 1")
    depths = [_depth(path) for path in paths]
    if not any(depths) and decay != 1:
        raise ValueError(
            "`layer_decay` counts the blocks of a Vision Transformer, and "
            "this model trains none. Give 1.0, or leave it out. Received: "
            f"layer_decay={decay}"
        )
    top = max(depth or 0 for depth in depths) + 1
    return [decay ** (top - (top if n is None else n)) for n in depths]


def _depth(path: str) -> int | None:
    """Returns 1 for variables of the first block and 0 for those before it;
    None for those after all blocks."""
    parts = path.split("/")
    for part in parts:
        if match := _BLOCK.fullmatch(part):
            return int(match[1]) + 1
    first = any(_FIRST.fullmatch(part) for part in parts)
    return 0 if first and parts[-1] != "offsets" else None


# What PyTorch's functions of many tensors take.
_Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]
# Variables are updated in groups of this size, because an update takes up to
# twice the memory of its group.
MAX_GROUP_BYTES = 2**26


class ScheduledOptimizer(keras.optimizers.Optimizer):
    """Base class of the optimizers; see `PublishedSGD` for its arguments.

    A batch can be split into micro-batches, which are computed sequentially
    (`gradient_accumulation_steps`) or on several devices (`tf.distribute`). Gradients
    are clipped by the global norm of the whole batch, and schedules and moving averages
    count whole batches.

    Subclasses compute an update in `update_step` and subtract it with
    `_update`, which adds the weight decay. For PyTorch, they may also compute
    the updates of many variables at once; see `_update_all`.
    """

    def __init__(
        self,
        learning_rate: float | Callable,
        weight_decay: float | Callable | None = None,
        *,
        decay_kernels_only: bool = False,
        layer_decay: float | None = None,
        momentum_dtype: str | None = None,
        average_from: int | None = None,
        **kwargs: Any,
    ) -> None:
        if average_from is not None:
            average_from = checks.non_negative_int("average_from", average_from)
            kwargs["use_ema"] = True
        if kwargs.get("ema_overwrite_frequency") is not None:
            raise ValueError(
                "`ema_overwrite_frequency` must be None. Received: "
                f"ema_overwrite_frequency={kwargs['ema_overwrite_frequency']}"
            )
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, **kwargs
        )
        self.average_from = average_from
        self.decay_kernels_only = decay_kernels_only
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        if self.layer_decay is not None:
            paths = [variable.path for variable in variables]
            self._scales = layer_decay_multipliers(paths, self.layer_decay)

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> keras.Variable:
        """Adds a variable as Keras does, but in the dtype of moments or updates."""
        variable = reference_variable
        dtype = name == "momentum" and self.momentum_dtype
        wanted = dtype or compute_dtype(variable)
        if wanted == keras.backend.standardize_dtype(variable.dtype):
            return super().add_variable_from_reference(
                variable, name=name, initializer=initializer
            )
        return self.add_variable(
            shape=variable.shape,
            initializer=initializer,
            dtype=wanted,
            name=f"{variable.path.replace('/', '_')}_{name}",
            layout=getattr(variable, "_layout", None),
        )

    def _rate_of(self, variable: Any, learning_rate: Tensor) -> Tensor:
        """Returns the learning rate of a variable."""
        rate = ops.cast(learning_rate, compute_dtype(variable))
        if self.layer_decay is None:
            return rate
        return rate * self._scales[self._get_variable_index(variable)]

    def _update(self, variable: Any, update: Tensor, rate: Tensor) -> None:
        """Subtracts an update and the weight decay from a variable."""
        if self.weight_decay and self._decays(variable):
            value = ops.cast(variable, update.dtype)
            decay = ops.cast(self._now(self.weight_decay), update.dtype)
            update = update + decay * rate * value
        self.assign_sub(variable, ops.cast(update, variable.dtype))

    def _backend_update_step(
        self,
        grads: _Tensors,
        trainable_variables: Sequence[keras.Variable],
        learning_rate: Tensor,
    ) -> None:
        # Keras provides this method for implementations that update all
        # variables at once.
        if self._can_update_all(grads, trainable_variables):
            for part in _groups(trainable_variables, MAX_GROUP_BYTES):
                self._update_all(grads[part], trainable_variables[part], learning_rate)
        else:
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _can_update_all(
        self, grads: _Tensors, variables: Sequence[keras.Variable]
    ) -> bool:
        """Returns whether `_update_all` can replace `update_step`: under
        PyTorch, for dense gradients, with one dtype, and not in subclasses that
        users define, which may change any method."""
        if keras.config.backend() != "torch" or "_all_updates" not in vars(type(self)):
            return False
        import torch

        values = [x for x in self._moments() if x is not None]
        values += [*variables, *grads]
        dtypes = {keras.backend.standardize_dtype(x.dtype) for x in values}
        return dtypes in ({"float32"}, {"float64"}) and all(
            isinstance(x, torch.Tensor) and x.layout == torch.strided for x in grads
        )

    def _update_all(
        self,
        grads: _Tensors,
        variables: Sequence[keras.Variable],
        learning_rate: Tensor,
    ) -> None:
        """Computes `update_step` for several variables, on lists of tensors:
        `_all_updates` updates the moments and returns what is subtracted."""
        import torch

        with torch.no_grad():
            rate = ops.cast(learning_rate, variables[0].dtype)
            indices = [self._get_variable_index(x) for x in variables]
            updates = list(self._all_updates(grads, indices, rate))
            values = [x.value for x in variables]
            if self.weight_decay and (
                decayed := [i for i, x in enumerate(variables) if self._decays(x)]
            ):
                decay = self._now(self.weight_decay)
                terms = [values[i] for i in decayed]
                terms = torch._foreach_mul(terms, rate * decay)
                self._scale_layers(terms, [indices[i] for i in decayed])
                # Subtracted on its own, a small decay would be rounded to
                # nothing at every step.
                torch._foreach_add_(terms, [updates[i] for i in decayed])
                for i, term in zip(decayed, terms, strict=True):
                    updates[i] = term
            torch._foreach_sub_(values, updates)

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Tensor],
        grads: _Tensors,
        trainable_variables: Sequence[Tensor],
    ) -> Any:
        if keras.config.backend() == "torch":
            # `_update_all` changes tensors in place, and these are the
            # caller's, often those of the model.
            optimizer_variables = [ops.copy(x) for x in optimizer_variables]
            trainable_variables = [ops.copy(x) for x in trainable_variables]
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _scale_layers(self, tensors: _Tensors, indices: Sequence[int]) -> None:
        """Multiplies tensors by the factors of `layer_decay`, in place."""
        import torch

        if self.layer_decay is not None:
            torch._foreach_mul_(tensors, [self._scales[i] for i in indices])

    def _decays(self, variable: Any) -> bool:
        # Under TensorFlow, `variable` is a tf.Variable, which has no path.
        variable = self._trainable_variables[self._get_variable_index(variable)]
        is_kernel = variable.path.rpartition("/")[2] == "kernel"
        if self.decay_kernels_only and not is_kernel:
            return False
        return self._use_weight_decay(variable)

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        """Does nothing: `_update` applies weight decay, with the learning rate
        of each layer."""

    def get_config(self) -> Config:
        decay = self.weight_decay
        if callable(decay):
            decay = keras.saving.serialize_keras_object(decay)
        return {
            **super().get_config(),
            "weight_decay": decay,
            "decay_kernels_only": self.decay_kernels_only,
            "layer_decay": self.layer_decay,
            "momentum_dtype": self.momentum_dtype,
            "average_from": self.average_from,
        }

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: dict[str, Any] | None = None
    ) -> Self:
        config = dict(config)
        if "peak_rate" in config:  # by which older files multiply the decay
            peak = config.pop("peak_rate") or 1.0
            config["weight_decay"] = (config["weight_decay"] or 0.0) / peak
            config["decay_kernels_only"] = True
        if isinstance(config.get("weight_decay"), dict):
            config["weight_decay"] = keras.saving.deserialize_keras_object(
                config["weight_decay"], custom_objects
            )
        return super().from_config(config, custom_objects)

    def _now(self, value: Any) -> Any:
        """Returns the value of a schedule at this step, or a constant."""
        # Keras passes the number of micro-batches, not that of updates.
        return value(self.iterations) if callable(value) else value

    def _get_current_learning_rate(self) -> Tensor:
        schedule = self._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return self._now(schedule)
        return super()._get_current_learning_rate()

    def _is_update(self) -> bool | Tensor:
        """Returns whether averages are updated after this micro-batch.

        Keras updates them after each: with 8 micro-batches, a decay of 0.9999
        would be one of 0.9992 per update.
        """
        steps = self.gradient_accumulation_steps or 1
        return ops.equal((self._iterations + 1) % steps, 0)

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[keras.Variable]
    ) -> None:
        if self.average_from is None:
            is_first = ops.equal(self.iterations, 0)
            share = ops.where(is_first, 1.0, 1.0 - self.ema_momentum)
        else:
            # The number of averaged updates, with the current one. Before the
            # first of them, the "average" is the variable itself.
            count = self.iterations + 1 - self.average_from
            share = 1.0 / ops.cast(ops.maximum(count, 1), "float32")
        share = ops.where(self._is_update(), share, 0.0)
        for variable, average in zip(
            trainable_variables,
            self._model_variables_moving_average,
            strict=True,
        ):
            if average is not None:
                mean = ops.convert_to_tensor(average)
                value = ops.convert_to_tensor(variable)
                value = ops.cast(value, mean.dtype)
                moved = mean + ops.cast(share, mean.dtype) * (value - mean)
                average.assign(ops.where(ops.equal(share, 1.0), value, moved))

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        if self.use_ema:
            for variable, average in zip(
                self._trainable_variables,
                self._model_variables_moving_average,
                strict=True,
            ):
                if average is not None:
                    value = ops.convert_to_tensor(average)
                    variable.assign(ops.cast(value, variable.dtype))

    def _backend_apply_gradients(
        self,
        grads: _Tensors,
        trainable_variables: Sequence[keras.Variable],
    ) -> None:
        if self.gradient_accumulation_steps and replicas.is_replicated():
            # Keras would fail with TensorFlow's message about `merge_call`.
            raise ValueError(
                "Keras does not accumulate gradients in a strategy of TensorFlow. "
                "Leave out `gradient_accumulation_steps`, or use "
                "KERAS_BACKEND=jax. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}"
            )
        if self.gradient_accumulation_steps:
            # The accumulated gradients may be more precise.
            grads = [
                ops.cast(grad, compute_dtype(x))
                for grad, x in zip(grads, trainable_variables, strict=True)
            ]
        super()._backend_apply_gradients(grads, trainable_variables)
        if keras.config.backend() == "torch":
            # Keras would keep the gradients in memory during the next forward
            # pass.
            for variable in trainable_variables:
                variable.value.grad = None

    def _clip_gradients(self, grads: _Tensors) -> _Tensors:
        is_clipped = self.clipnorm or self.clipvalue or self.global_clipnorm
        if not is_clipped or replicas.count() == 1:
            return super()._clip_gradients(grads)
        # Keras would clip the gradients of each device on their own. The
        # gradients are summed over devices here, and once more by Keras in the
        # update, so that they are divided by the number of devices.
        whole = super()._clip_gradients(replicas.sum_of_all(list(grads)))
        return [grad / replicas.count() for grad in whole]


def _groups(variables: Sequence[keras.Variable], max_bytes: int) -> Iterator[slice]:
    """Yields slices of a list of variables, each of at most `max_bytes` or of
    one variable."""
    start, total = 0, 0
    for index, variable in enumerate(variables):
        size = variable.value.nbytes
        if total + size > max_bytes and index > start:
            yield slice(start, index)
            start, total = index, 0
        total += size
    yield slice(start, len(variables))


def compute_dtype(variable: Any) -> str:
    """Returns the dtype in which the update of a variable is computed.

    It is float32 for float16 and bfloat16, in which 0.999 is rounded to 1, so
    that the bias corrections of Adam would be 0.
    """
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


@keras.saving.register_keras_serializable("keras_vit", "SGD")
class PublishedSGD(ScheduledOptimizer):
    """Stochastic gradient descent with momentum, as in the published code.

    It follows optax and PyTorch, which define an update differently from
    `keras.optimizers.SGD`:

    - The momentum accumulates gradients, `m = momentum * m + gradient`, and
      the update is `-learning_rate * m`. Keras accumulates
      `learning_rate * gradient`. The two are equal at a constant learning
      rate, but not with warm-up and decay.
    - With `gradient_accumulation_steps`, schedules and moving averages count
      updates of the weights. Those of Keras count micro-batches.

    Each step subtracts `weight_decay * learning_rate` times a variable from the
    variable. Weight decay is not added to the momentum.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        momentum: Float in [0, 1].
        nesterov: Boolean. Whether to apply Nesterov momentum.
        weight_decay: Float, or a schedule, which counts the same steps as that of
            `learning_rate`. The meaning is as for `keras.optimizers.SGD`. The "wd" of
            big_vision is already multiplied by the peak learning rate: divide it by
            this rate.
        decay_kernels_only: Boolean. Whether weight decay applies only to
            variables named "kernel", as in big_vision, and not to biases,
            norms, tokens and position embeddings.
        layer_decay: Float in (0, 1]. Factor by which the learning rate
            decreases from each layer to the one below; see
            `layer_decay_multipliers`.
        momentum_dtype: String. Dtype of the momentum, such as "bfloat16", which the
            paper's code uses to halve its memory. Defaults to the dtype of each
            variable.
        average_from: Integer. The variables are averaged with equal weights
            after every update except the first `average_from` ones, as in "Averaging
            Weights Leads to Wider Optima and Better Generalization"
            (https://arxiv.org/abs/1803.05407). Until then, the averages equal the
            variables. This replaces the exponential moving average of `use_ema`, and is
            used in the same way: `model.fit` assigns the averages to the model when it
            ends, `averaged` assigns them temporarily, and they are saved with the
            optimizer.
        **kwargs: As for `keras.optimizers.SGD`: `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.
    """

    def __init__(
        self,
        learning_rate: float | Callable = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        weight_decay: float | Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = []
        if self.momentum:
            self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: Tensor, variable: Any, learning_rate: Tensor
    ) -> None:
        dtype = compute_dtype(variable)
        gradient = ops.cast(gradient, dtype)
        rate = self._rate_of(variable, learning_rate)
        update = gradient
        if self.momentum:
            moment = self.momentums[self._get_variable_index(variable)]
            # If the momentum is in half precision, so is the product, as in
            # optax.
            update = ops.cast(self.momentum * moment, dtype) + gradient
            self.assign(moment, ops.cast(update, moment.dtype))
            if self.nesterov:
                update = self.momentum * update + gradient
        self._update(variable, rate * update, rate)

    def _moments(self) -> list[keras.Variable]:
        return self.momentums

    def _all_updates(
        self, grads: _Tensors, indices: Sequence[int], rate: Tensor
    ) -> _Tensors:
        import torch

        updates = grads
        if self.momentum:
            updates = [self.momentums[i].value for i in indices]
            torch._foreach_mul_(updates, self.momentum)
            torch._foreach_add_(updates, grads)
            if self.nesterov:
                updates = torch._foreach_mul(updates, self.momentum)
                torch._foreach_add_(updates, grads)
        updates = torch._foreach_mul(updates, rate)
        self._scale_layers(updates, indices)
        return updates

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }


@keras.saving.register_keras_serializable("keras_vit", "AdamW")
class PublishedAdamW(ScheduledOptimizer):
    """Adam with decoupled weight decay, as in the published code.

    It follows optax and PyTorch, which define an update differently from
    `keras.optimizers.AdamW`:

    - Epsilon is added to the square root of the bias-corrected second moment,
      as in Algorithm 1 of "Adam: A Method for Stochastic Optimization", and
      defaults to 1e-8. Keras adds it before the correction ("epsilon hat"),
      with a default of 1e-7.
    - With `gradient_accumulation_steps`, schedules and moving averages count
      updates of the weights. Those of Keras count micro-batches.

    Each step subtracts `weight_decay * learning_rate` times a variable from the
    variable. The paper's "weight decay 0.1" is `weight_decay=0.1`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        weight_decay: Float, or a schedule. The meaning is as for
            `keras.optimizers.AdamW`. The "wd" of big_vision is already multiplied by
            the peak learning rate: divide it by this rate.
        beta_1: Float in [0, 1).
        beta_2: Float in [0, 1).
        epsilon: Float.
        decay_kernels_only: Boolean. As for `PublishedSGD`.
        layer_decay: Float. As for `PublishedSGD`.
        momentum_dtype: String. The dtype of the first moment; AugReg uses
            "bfloat16". As for `PublishedSGD`.
        average_from: Integer. As for `PublishedSGD`.
        **kwargs: As for `PublishedSGD`.
    """

    def __init__(
        self,
        learning_rate: float | Callable = 0.001,
        weight_decay: float | Callable = 0.004,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.epsilon = epsilon

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        add = self.add_optimizer_variables
        self.momentums = add(variables, "momentum")
        self.velocities = add(variables, "velocity")

    def update_step(
        self, gradient: Tensor, variable: Any, learning_rate: Tensor
    ) -> None:
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
        # The bias corrections, as the initial values of the moments are zero.
        mean_sum = 1 - ops.power(ops.cast(self.beta_1, dtype), step)
        square_sum = 1 - ops.power(ops.cast(self.beta_2, dtype), step)
        square = square / square_sum
        update = rate * (mean / mean_sum) / (ops.sqrt(square) + self.epsilon)
        self._update(variable, update, rate)

    def _moments(self) -> list[keras.Variable]:
        return [*self.momentums, *self.velocities]

    def _all_updates(
        self, grads: _Tensors, indices: Sequence[int], rate: Tensor
    ) -> _Tensors:
        import torch

        means = [self.momentums[i].value for i in indices]
        squares = [self.velocities[i].value for i in indices]
        torch._foreach_mul_(means, self.beta_1)
        torch._foreach_add_(means, grads, alpha=1 - self.beta_1)
        torch._foreach_mul_(squares, self.beta_2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - self.beta_2)

        step = ops.cast(self.iterations + 1, rate.dtype)
        mean_sum = 1 - torch.pow(self.beta_1, step)
        square_sum = 1 - torch.pow(self.beta_2, step)
        updates = torch._foreach_div(squares, square_sum)
        torch._foreach_sqrt_(updates)
        torch._foreach_add_(updates, self.epsilon)
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_mul_(updates, rate / mean_sum)
        self._scale_layers(updates, indices)
        return updates

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[keras.Model]:
    """Temporarily assigns the moving averages of its weights to a model.

    Within the context, the weights are the averages that an optimizer with
    `use_ema=True` or `average_from` computes; afterwards they are restored.
    Without averages, the model does not change. This is for evaluations during
    training; when `model.fit` ends, it assigns the averages to the model itself.

    Args:
        model: Compiled Keras model.

    Yields:
        The model.

    Raises:
        ValueError: if averaged weights precede a batch norm, whose moving statistics
            belong to weights that are not averaged.
    """
    checks.averages_fit_norms(model)
    optimizer = inner_optimizer(model)
    averages = getattr(optimizer, "_model_variables_moving_average", None)
    if not getattr(optimizer, "use_ema", False) or not averages:
        yield model
        return
    pairs = [
        (variable, average)
        for variable, average in zip(model.trainable_variables, averages, strict=True)
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


def assign_averages(model: keras.Model) -> None:
    """Assigns the moving averages of its weights, if there are any, to a model.

    `model.fit` does the same when it ends.

    Args:
        model: Compiled Keras model.

    Raises:
        ValueError: as in `averaged`.
    """
    checks.averages_fit_norms(model)
    optimizer = inner_optimizer(model)
    if getattr(optimizer, "use_ema", False) and optimizer.built:
        optimizer.finalize_variable_values(model.trainable_variables)


def inner_optimizer(model: keras.Model) -> Any:
    """Returns the optimizer of a compiled model, without a
    `LossScaleOptimizer`."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
