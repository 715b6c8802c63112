"""`cost`: parameters, multiply-adds and memory of a model."""

import dataclasses
import itertools
import math
from concurrent import futures
from typing import Any, Unpack

import keras

from keras_vit import _checks, models
from keras_vit._types import Config
from keras_vit.config import ModelArguments
from keras_vit.costs.trace import LayerCost, trace

# Variables of an optimizer for each weight.
OPTIMIZERS = {"sgd": 1, "adam": 2, "adamw": 2, None: 0}
# Bytes of a weight, and of a value of the computation.
PRECISIONS = {
    "float32": (4, 4),
    "bfloat16": (2, 2),
    "float16": (2, 2),
    "mixed_bfloat16": (4, 2),
    "mixed_float16": (4, 2),
}


def cost(
    model: str | keras.Model,
    image_size: int | tuple[int, int] | None = None,
    batch: int = 1,
    *,
    channels: int = 3,
    optimizer: str | None = "adamw",
    accumulate: int = 1,
    precision: str | None = None,
    num_heads: int | None = None,
    **architecture: Unpack[ModelArguments],
) -> "Cost":
    """Computes what a model costs: parameters, multiply-adds and memory.

    A model of a given name is built without its variables' values, which takes
    about a second for the largest ones, and called on symbolic tensors, which
    computes nothing.

    Multiply-adds are those of matrix products and convolutions, as PyTorch's
    `FlopCounterMode` and timm's lists count them; padding counts. Norms,
    softmax and activation functions do not count, nor does the resampling of
    position embeddings.

    Memory is an estimate for a step of `model.fit` under PyTorch with clipped
    gradients: the weights, the gradients, the optimizer's variables and the
    tensors that are stored for the gradients, without dropout and what the
    libraries themselves need. Other backends fuse operations and need less,
    and so does a frozen encoder. See docs/cost.md for measurements, and for
    what the backends report themselves.

    Args:
        model: String, the name of a model such as "ViTB16",
            "VisionTransformer" or "BiT"; or a functional `keras.Model`.
        image_size: Integer or `(height, width)`. None means 224, or the size
            that the given model was built for.
        batch: Integer. Images per step, for the memory.
        channels: Integer. Channels of the images, for a name only.
        optimizer: String. "adamw", "adam", "sgd" (with momentum), or None for
            one without variables.
        accumulate: Integer. Number of micro-batches in which a step's batch is
            computed.
        precision: String. "float32", "mixed_bfloat16", "mixed_float16",
            "bfloat16" or "float16". None for that of the given model, or
            "float32".
        num_heads: Integer. Number of attention heads, for a name only.
        **architecture: Other arguments of the model function, such as
            `classes=10`, `patch_size=8`, `pooling="gap"` or `remat=True`, for
            a name only.

    Returns:
        A `Cost`. Printing it prints a table.

    Raises:
        ValueError: if an argument is wrong, or the model has a layer whose cost
            is not known.
        TypeError: if the model function has no such argument.

    Example:

    >>> found = keras_vit.cost("ViTB16", image_size=384, batch=8)
    >>> found.parameters, found.macs
    (86859496, 55484350464)
    >>> print(found)
    >>> keras_vit.cost("ViTL16").training(images=303e6, epochs=14)
    """
    arguments = {**architecture}
    if num_heads is not None:
        arguments["num_heads"] = num_heads
    batch = _checks.positive_int("batch", batch)
    accumulate = _checks.positive_int("accumulate", accumulate)
    if batch % accumulate:
        raise ValueError(
            "`accumulate` must divide the batch into micro-batches of the "
            f"same size. Received: accumulate={accumulate}, batch={batch}"
        )
    _checks.one_of("optimizer", optimizer, tuple(OPTIMIZERS))
    if isinstance(model, str):
        size = 224 if image_size is None else image_size
        size = _checks.positive_pair("image_size", size)
        rows = _trace_named(model, (*size, channels), arguments)
        name, precision = model, precision or "float32"
    else:
        if arguments:
            raise ValueError(
                "A given model has its architecture already. Leave out "
                f"{', '.join(f'`{key}`' for key in arguments)}, or give the "
                "name of a model instead of the model."
            )
        rows, name = trace(model, image_size), model.name
        precision = precision or _policy_of_layers(model)
    _checks.one_of("precision", precision, tuple(PRECISIONS))
    return Cost(name, tuple(rows), batch, optimizer, accumulate, precision)


def _trace_named(
    name: str, shape: tuple[int, ...], arguments: Config
) -> list[LayerCost]:
    """Returns the costs of a named model's layers, without its weights."""
    functions = ("VisionTransformer", "HybridVisionTransformer", "BiT")
    known = (*models.VARIANTS, *models.BIT_VARIANTS, *functions)
    function = getattr(models, _checks.one_of("model", name, known))

    def build_and_trace() -> list[LayerCost]:
        with keras.StatelessScope(initialize_variables=False):
            model = function(weights=None, input_shape=shape, **arguments)
            return trace(model)

    # Keras would give the variables values when the next model is built: it
    # keeps those without values in a list, of which each thread has its own.
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(build_and_trace).result()


def _policy_of_layers(model: keras.Model) -> str:
    """Returns the dtype policy of the largest layer that is not a head, or of
    a layer that is quantized.

    A functional model itself has the policy of the process that loads it.
    """
    for layer in model._flatten_layers():
        if layer.quantization_mode:
            return layer.dtype_policy.name
    dense = keras.layers.Dense
    layers = [x for x in model.layers if not isinstance(x, dense) and x.weights]
    layers = layers or [model]
    return max(layers, key=lambda x: x.count_params()).dtype_policy.name


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a model, returned by `keras_vit.cost`.

    Attributes:
        model: String. Name of the model.
        layers: Tuple of `LayerCost`, in the order of computation. Their numbers
            are those of one image.
        batch: Integer. Images per step.
        optimizer: String. As in `cost`.
        accumulate: Integer. As in `cost`.
        precision: String. As in `cost`.
    """

    model: str
    layers: tuple[LayerCost, ...]
    batch: int = 1
    optimizer: str | None = "adamw"
    accumulate: int = 1
    precision: str = "float32"

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self._sum("parameters")

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of one image."""
        return self._sum("macs")

    @property
    def activations(self) -> int:
        """Values that the matrix products of one image output, as counted in
        timm's lists."""
        return self._sum("activations")

    @property
    def inference_bytes(self) -> int:
        """Peak memory of a forward pass of the batch, in bytes: the weights,
        and the layer that computes the most values."""
        weight, value = PRECISIONS[self.precision]
        most = max(row.stored + math.prod(row.output_shape) for row in self.layers)
        return self.parameters * weight + self.batch * value * most

    @property
    def step_bytes(self) -> int:
        """Peak memory of a training step of the batch, in bytes."""
        return max(self.step_parts().values())

    def step_parts(self) -> dict[str, int]:
        """Returns the memory at the two moments that may be a step's peak.

        Returns:
            Dict of bytes: "gradients", when the forward pass has stored all
            tensors that the gradients need; "update", when the optimizer
            changes the weights.
        """
        weight, value = PRECISIONS[self.precision]
        trained = self.parameters - self._sum("non_trainable")
        gradients = trained * weight
        accumulates = self.accumulate > 1
        images = 4 * self.batch * math.prod(self.layers[0].output_shape)
        base = self.parameters * weight + images + accumulates * gradients
        base += OPTIMIZERS[self.optimizer] * trained * 4
        stored = self._stored() * value * self.batch // self.accumulate
        stored += 4 * self._sum("stored_weights")
        if weight != value:  # the weights in the precision of the computation
            stored += self.parameters * value
        # The gradients, and the clipped ones.
        update = base + (2 + accumulates) * gradients
        return {"gradients": base + stored, "update": update}

    def _stored(self) -> int:
        """Returns the values per image that are stored for the gradients: of
        blocks that are computed again, their outputs and the largest one. The
        layer whose gradients are computed needs as much as it stores again.
        """
        kept = recomputed = 0
        for _, group in itertools.groupby(self.layers, lambda r: r.group):
            rows = list(group)
            size = sum(row.stored for row in rows)
            if rows[0].remat:
                recomputed = max(recomputed, size)
                size = math.prod(rows[-1].output_shape)
            kept += size
        return kept + recomputed + max(row.stored for row in self.layers)

    def training(
        self, images: float, epochs: float = 1, rate: float | None = None
    ) -> dict[str, float]:
        """Computes what training costs.

        A gradient takes two products for each one of the forward pass, and a
        multiply-add is two operations; this is how the numbers of the paper's
        Table 6 were computed.

        Args:
            images: Number of images of an epoch.
            epochs: Number of epochs.
            rate: Float. Operations per second of a core: 19.7e12 for the
                paper's H/14 on a TPUv3 core.

        Returns:
            Dict of floats: "exaflops", and with `rate` "core_days".

        Example:

        >>> found = keras_vit.cost("ViTH14")
        >>> round(found.training(303e6, 14)["exaflops"])
        4258
        """
        images = _checks.positive_float("images", images)
        epochs = _checks.positive_float("epochs", epochs)
        operations = 6 * self.macs * images * epochs
        found = {"exaflops": operations / 1e18}
        if rate is not None:
            rate = _checks.positive_float("rate", rate)
            found["core_days"] = operations / rate / 86400
        return found

    def groups(self) -> list[LayerCost]:
        """Returns the layers of the model, each with its sublayers' sum.

        Returns:
            List of `LayerCost`. Equal consecutive layers are not merged.
        """
        summed = ("parameters", "non_trainable", "macs", "activations")
        summed = (*summed, "stored", "stored_weights")
        found = []
        for name, group in itertools.groupby(self.layers, lambda r: r.group):
            rows = list(group)
            values = {key: sum(getattr(r, key) for r in rows) for key in summed}
            found.append(dataclasses.replace(rows[-1], name=name, **values))
        return found

    def __str__(self) -> str:
        def line(name: str, output: str, row: Any) -> tuple[str, ...]:
            values = f"{row.macs / 1e6:,.1f}", f"{row.stored / 1e6:.2f}"
            return (name, output, f"{row.parameters:,}", *values)

        lines: list[tuple[str, ...]] = [
            ("layer", "output", "parameters", "MMACs", "M values stored")
        ]

        def equal_but_for_number(row: LayerCost) -> tuple[Any, ...]:
            name = row.name.rstrip("0123456789")
            return name, row.output_shape, row.parameters, row.macs, row.stored

        rows = [r for r in self.groups() if r.parameters or r.macs]
        for _, group in itertools.groupby(rows, equal_but_for_number):
            equal = list(group)
            name = equal[0].name
            if len(equal) > 1:
                name = f"{name} to {equal[-1].name}, each"
            shape = " x ".join(map(str, equal[0].output_shape))
            lines.append(line(name, shape, equal[0]))
        total = LayerCost(
            "total",
            "",
            (),
            parameters=self.parameters,
            macs=self.macs,
            stored=self._sum("stored"),
        )
        lines.append(line("total", "", total))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = []
        for cells in lines:
            padded = [
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            table.append("  ".join(padded).rstrip())
        size = " x ".join(map(str, self.layers[0].output_shape))
        parts = ", ".join(
            f"{name} {megabytes(number)}" for name, number in self.step_parts().items()
        )
        split = f", {self.accumulate} micro-batches" * (self.accumulate > 1)
        table = [
            f"{self.model}, images of {size}",
            *table,
            f"activations (outputs of matrix products): "
            f"{self.activations / 1e6:.2f} M values",
            f"memory, batch of {self.batch}{split}, {self.precision}: "
            f"inference {megabytes(self.inference_bytes)}, training step with "
            f"{self.optimizer} {megabytes(self.step_bytes)} ({parts})",
        ]
        return "\n".join(table)

    def _sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.layers)


def megabytes(number: float) -> str:
    """Returns a number of bytes as text, in MB of 10**6 bytes."""
    return f"{number / 1e6:,.0f} MB"
