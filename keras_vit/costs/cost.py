"""`cost`: parameters and multiply-adds of a model."""

import dataclasses
import itertools
from concurrent import futures
from typing import Any, Unpack

import keras

from keras_vit import models
from keras_vit.config import BIT_VARIANTS, VARIANTS, ModelArguments
from keras_vit.costs.trace import LayerCost, trace
from keras_vit.utils import checks
from keras_vit.utils.types import Config


def cost(
    model: str | keras.Model,
    image_size: int | tuple[int, int] | None = None,
    *,
    channels: int = 3,
    num_heads: int | None = None,
    **architecture: Unpack[ModelArguments],
) -> "Cost":
    """Computes the cost of a model: parameters and multiply-adds.

    If a name is given, the model is built without values of its variables, which takes
    about a second for the largest models. It is called on symbolic tensors, so nothing
    is computed.

    Multiply-adds are those of matrix products and convolutions, as counted by PyTorch's
    `FlopCounterMode` and in timm's lists; padding is included. Norms, softmax,
    activation functions and the resampling of position embeddings are not counted.

    The memory that a step needs depends on the backend, which can report it;
    docs/cost.md describes how.

    Args:
        model: String, the name of a model such as "ViTB16",
            "VisionTransformer" or "BiT"; or a functional `keras.Model`.
        image_size: Integer or `(height, width)`. None means 224, or the size
            that the given model was built for.
        channels: Integer. Channels of the images, if `model` is a name.
        num_heads: Integer. Number of attention heads, if `model` is a name.
        **architecture: Other arguments of the model function, such as `classes=10`,
            `patch_size=8` or `pooling="gap"`, if `model` is a name.

    Returns:
        A `Cost`. Printing it prints a table.

    Raises:
        ValueError: if an argument is wrong, or the model has a layer whose cost
            is not known.
        TypeError: if the model function has no such argument.

    Example:

    >>> found = keras_vit.cost("ViTB16", image_size=384)
    >>> found.parameters, found.macs
    (86859496, 55484350464)
    >>> print(found)
    >>> keras_vit.cost("ViTL16").training(images=303e6, epochs=14)
    """
    arguments = {**architecture}
    if num_heads is not None:
        arguments["num_heads"] = num_heads
    if isinstance(model, str):
        size = 224 if image_size is None else image_size
        size = checks.positive_pair("image_size", size)
        rows = _trace_named(model, (*size, channels), arguments)
        return Cost(model, tuple(rows))
    if arguments:
        raise ValueError(
            "A given model has its architecture already. Leave out "
            f"{', '.join(f'`{key}`' for key in arguments)}, or give the "
            "name of a model instead of the model."
        )
    return Cost(model.name, tuple(trace(model, image_size)))


def _trace_named(
    name: str, shape: tuple[int, ...], arguments: Config
) -> list[LayerCost]:
    """Returns the costs of a named model's layers, without its weights."""
    functions = ("VisionTransformer", "HybridVisionTransformer", "BiT")
    known = (*VARIANTS, *BIT_VARIANTS, *functions)
    function = getattr(models, checks.one_of("model", name, known))

    def build_and_trace() -> list[LayerCost]:
        with keras.StatelessScope(initialize_variables=False):
            model = function(weights=None, input_shape=shape, **arguments)
            return trace(model)

    # Keras would give the variables values when the next model is built: it
    # keeps those without values in a list, of which each thread has its own.
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(build_and_trace).result()


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a model, returned by `keras_vit.cost`.

    Attributes:
        model: String. Name of the model.
        layers: Tuple of `LayerCost`, in the order of computation, with the cost for one
            image.
    """

    model: str
    layers: tuple[LayerCost, ...]

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
        """Number of values that the matrix products output for one image, as in timm's
        lists."""
        return self._sum("activations")

    def training(
        self, images: float, epochs: float = 1, rate: float | None = None
    ) -> dict[str, float]:
        """Computes the cost of training.

        Gradients take two products for each product of the forward pass, and a
        multiply-add is two operations; this is how the numbers of the paper's Table 6
        were computed.

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
        images = checks.positive_float("images", images)
        epochs = checks.positive_float("epochs", epochs)
        operations = 6 * self.macs * images * epochs
        found = {"exaflops": operations / 1e18}
        if rate is not None:
            rate = checks.positive_float("rate", rate)
            found["core_days"] = operations / rate / 86400
        return found

    def groups(self) -> list[LayerCost]:
        """Returns the layers of the model, each with the sum over its sublayers.

        Returns:
            List of `LayerCost`. Equal consecutive layers are not merged.
        """
        summed = ("parameters", "macs", "activations")
        found = []
        for name, group in itertools.groupby(self.layers, lambda r: r.group):
            rows = list(group)
            values = {key: sum(getattr(r, key) for r in rows) for key in summed}
            found.append(dataclasses.replace(rows[-1], name=name, **values))
        return found

    def __str__(self) -> str:
        def line(name: str, output: str, row: "Cost | LayerCost") -> tuple[str, ...]:
            return name, output, f"{row.parameters:,}", f"{row.macs / 1e6:,.1f}"

        lines: list[tuple[str, ...]] = [("layer", "output", "parameters", "MMACs")]

        def equal_but_for_number(row: LayerCost) -> tuple[Any, ...]:
            name = row.name.rstrip("0123456789")
            return name, row.output_shape, row.parameters, row.macs

        rows = [r for r in self.groups() if r.parameters or r.macs]
        for _, group in itertools.groupby(rows, equal_but_for_number):
            equal = list(group)
            name = equal[0].name
            if len(equal) > 1:
                name = f"{name} to {equal[-1].name}, each"
            shape = " x ".join(map(str, equal[0].output_shape))
            lines.append(line(name, shape, equal[0]))
        lines.append(line("total", "", self))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = []
        for cells in lines:
            padded = [
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            table.append("  ".join(padded).rstrip())
        size = " x ".join(map(str, self.layers[0].output_shape))
        table = [
            f"{self.model}, images of {size}",
            *table,
            f"activations (outputs of matrix products): "
            f"{self.activations / 1e6:.2f} M values",
        ]
        return "\n".join(table)

    def _sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.layers)
