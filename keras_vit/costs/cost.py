"""`cost`: parameters, multiply-adds and memory of a model."""

import dataclasses
import itertools
import math

import keras

from keras_vit import _checks
from keras_vit.costs.graph import trace
from keras_vit.costs.plan import plan
from keras_vit.costs.plots import plot_cost

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
    model,
    image_size=None,
    batch=1,
    *,
    classes=None,
    channels=3,
    include_top=True,
    optimizer="adamw",
    clip=True,
    accumulate=1,
    precision=None,
    **architecture,
):
    """Computes what a model costs: parameters, multiply-adds and memory.

    Everything is computed from the sizes of the layers, without building the
    model or running anything. A Keras model may be given instead of a name; it
    is not run either.

    Multiply-adds are those of matrix products and convolutions, as PyTorch's
    `FlopCounterMode` and timm's lists count them; padding counts. Norms,
    softmax and activation functions do not count, nor does the resampling of
    position embeddings.

    Memory is that of weights and tensors when PyTorch computes a step of
    `model.fit` with an optimizer of `keras_vit.optimizers`, without what the
    libraries themselves need. JAX and TensorFlow also store the scores of
    attention for the gradients if an image has few tokens, and otherwise
    fuse operations and need less. With `remat`, PyTorch needs more than
    computed, until Python collects garbage. Layers that are not trained count
    as if they stored tensors for gradients: with a frozen encoder, a step needs
    less than computed. See docs/cost.md for measurements.

    Args:
        model: String, the name of a model such as "ViTB16",
            "VisionTransformer" or "BiT"; or a functional `keras.Model`.
        image_size: Integer or `(height, width)`. None means 224, or the size
            that the given model was built for.
        batch: Integer. Images of a step, for the memory.
        classes: Integer. Number of classes; None for 1000. For a name only, as
            are `channels`, `include_top` and `architecture`.
        channels: Integer. Channels of the images.
        include_top: Boolean. Whether the model has a head.
        optimizer: String. "adamw", "adam", "sgd" (with momentum), or None for
            one without variables.
        clip: Boolean. Whether gradients are clipped by their global norm, which
            stores them a second time.
        accumulate: Integer. Number of micro-batches in which a step's batch is
            computed.
        precision: String. "float32", "mixed_bfloat16", "mixed_float16",
            "bfloat16" or "float16". None for that of the given model, or
            "float32".
        **architecture: Arguments of the model function, such as
            `patch_size=8`, `num_registers=4`, `pooling="gap"` or `remat=True`.

    Returns:
        A `Cost`. Printing it prints a table.

    Raises:
        ValueError: if an argument is wrong, or the given model has a layer
            whose cost is not known.
        TypeError: if the model function has no such argument.

    Example:

    >>> found = keras_vit.cost("ViTB16", image_size=384, batch=8)
    >>> found.parameters, found.macs
    (86859496, 55484350464)
    >>> print(found)
    >>> keras_vit.cost("ViTL16").training(images=303e6, epochs=14)
    """
    batch = _checks.positive_int("batch", batch)
    accumulate = _checks.positive_int("accumulate", accumulate)
    if batch % accumulate:
        raise ValueError(
            "`accumulate` must divide the batch into micro-batches of the "
            f"same size. Received: accumulate={accumulate}, batch={batch}"
        )
    _checks.one_of("optimizer", optimizer, tuple(OPTIMIZERS))
    if precision is not None:
        _checks.one_of("precision", precision, tuple(PRECISIONS))
    if architecture.get("all_tokens") is True:
        del architecture["all_tokens"]  # earlier versions counted fewer
    if isinstance(model, str):
        channels = _checks.positive_int("channels", channels)
        rows = plan(
            model,
            image_size,
            channels,
            classes,
            include_top,
            dict(architecture),
        )
        name = model
    else:
        given = {
            "classes": classes is not None,
            "channels": channels != 3,
            "include_top": include_top is not True,
            **dict.fromkeys(architecture, True),
        }
        unused = [key for key, is_given in given.items() if is_given]
        if unused:
            raise ValueError(
                "A given model has its architecture already. Leave out "
                f"{', '.join(f'`{key}`' for key in unused)}, or give the name "
                "of a model instead of the model."
            )
        rows, name = trace(model, image_size), model.name
        precision = precision or _policy_of_layers(model)
        if precision not in PRECISIONS:
            raise ValueError(
                f"The memory of a model of precision {precision!r} is not "
                f"known. Give `precision`, one of {tuple(PRECISIONS)}."
            )
    return Cost(
        name,
        tuple(rows),
        batch,
        optimizer,
        clip,
        accumulate,
        precision or "float32",
    )


def _policy_of_layers(model):
    """Returns the dtype policy of the largest layer that is not a head.

    A functional model itself has the policy of the process that loads it.
    """
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
        batch: Integer. Images of a step.
        optimizer: String. As in `cost`.
        clip: Boolean. As in `cost`.
        accumulate: Integer. As in `cost`.
        precision: String. As in `cost`.
    """

    model: str
    layers: tuple
    batch: int = 1
    optimizer: str | None = "adamw"
    clip: bool = True
    accumulate: int = 1
    precision: str = "float32"

    @property
    def parameters(self):
        """Number of weights."""
        return self._sum("parameters")

    @property
    def macs(self):
        """Multiply-adds of the forward pass of one image."""
        return self._sum("macs")

    @property
    def padding_macs(self):
        """How many of `macs` multiply zeros of the padding of convolutions."""
        return self._sum("padding_macs")

    @property
    def activations(self):
        """Values that the matrix products of one image output, as counted in
        timm's lists."""
        return self._sum("activations")

    @property
    def inference_bytes(self):
        """Peak memory of a forward pass of the batch, in bytes."""
        weight, value = PRECISIONS[self.precision]
        last = {row.group: row for row in self.layers}
        # Values of outputs that exist until the end; the most at any time
        held = most = 0
        for row in self.layers:
            most = max(most, held + row.forward_workspace)
            if row is last[row.group] and row.forward_workspace:
                held += math.prod(row.output_shape)
        return self.parameters * weight + self.batch * value * most

    @property
    def step_bytes(self):
        """Peak memory of a training step of the batch, in bytes."""
        return max(self.step_parts().values())

    def step_parts(self):
        """Returns the memory at the moments of a training step that may be its
        peak.

        Returns:
            Dict of bytes: "forward", at the end of the forward pass;
            "backward", the most while gradients are computed; "update", while
            the optimizer changes the weights.
        """
        images = self.batch // self.accumulate
        weight, value = PRECISIONS[self.precision]
        half = value == 2
        trained = self.parameters - self._sum("non_trainable")
        gradients = trained * weight
        slots = OPTIMIZERS[self.optimizer] * trained * 4
        accumulated = gradients if self.accumulate > 1 else 0
        # The batch itself, once as given and once on the device
        pixels = math.prod(self.layers[0].output_shape)
        data = 4 * pixels * (self.batch + images)
        base = self.parameters * weight + slots + accumulated + data

        def stored(row):
            size = value * row.stored + 4 * row.stored_float32
            if half:
                size += 4 * row.stored_half
            size = images * size + 4 * row.stored_weights
            if half and weight == 4:
                size += 2 * row.cast_weights
            return size

        def outputs(rows):
            return images * value * math.prod(rows[-1].output_shape)

        groups = [
            list(rows)
            for _, rows in itertools.groupby(self.layers, lambda r: r.group)
        ]
        full = [sum(map(stored, rows)) for rows in groups]
        kept = [
            outputs(rows) if rows[0].remat else size
            for rows, size in zip(groups, full, strict=True)
        ]
        retained = sum(
            images * value * row.retained
            for rows in groups
            for row in rows
            if not rows[0].remat
        )
        workspace = [
            images * value * max(row.backward_workspace for row in rows)
            for rows in groups
        ]
        forward = sum(kept) + retained
        for rows, size in zip(groups, full, strict=True):
            if rows[0].remat:
                forward = max(forward, sum(kept) + size)
        backward = 0
        below, above = sum(kept), 0
        for rows, size, kept_size, extra in zip(
            reversed(groups),
            reversed(full),
            reversed(kept),
            reversed(workspace),
            strict=True,
        ):
            below -= kept_size
            backward = max(backward, below + size + extra + above)
            above += weight * sum(r.parameters - r.non_trainable for r in rows)
        largest = max(row.parameters for row in self.layers)
        update = gradients * (2 if self.clip or self.accumulate > 1 else 1)
        if self.clip and self.accumulate > 1:
            update += gradients
        # Temporary tensors of the update of one variable
        update += (4 if OPTIMIZERS[self.optimizer] == 2 else 2) * 4 * largest
        return {
            "forward": base + forward,
            "backward": base + backward,
            "update": base + update,
        }

    def training(self, images, epochs=1, rate=None):
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

    def groups(self):
        """Returns the layers of the model, each with its sublayers' sum.

        Returns:
            List of `LayerCost`. Equal consecutive layers are not merged.
        """
        summed = (
            "parameters",
            "non_trainable",
            "macs",
            "padding_macs",
            "activations",
            "stored",
        )
        found = []
        for name, rows in itertools.groupby(self.layers, lambda r: r.group):
            rows = list(rows)
            single = len(rows) == 1 and "/" not in rows[0].name
            kind = rows[0].kind if single else _composite(name)
            values = {key: sum(getattr(r, key) for r in rows) for key in summed}
            found.append(
                dataclasses.replace(rows[-1], name=name, kind=kind, **values)
            )
        return found

    def plot(self, path):
        """Plots the multiply-adds of each layer, and memory by batch size.

        Args:
            path: Path of the image file to write.

        Returns:
            The path.
        """
        return plot_cost(self, path)

    def __str__(self):
        lines = [("layer", "output", "parameters", "MMACs", "M values stored")]
        rows = [r for r in self.groups() if r.parameters or r.macs]
        same = itertools.groupby(rows, _key)
        for _, equal in same:
            equal = list(equal)
            first = equal[0]
            name = first.name
            if len(equal) > 1:
                name = f"{name} to {equal[-1].name}, each"
            lines.append(
                (
                    name,
                    " x ".join(map(str, first.output_shape)),
                    f"{first.parameters:,}",
                    f"{first.macs / 1e6:,.1f}",
                    f"{first.stored / 1e6:.2f}",
                )
            )
        lines.append(
            (
                "total",
                "",
                f"{self.parameters:,}",
                f"{self.macs / 1e6:,.1f}",
                f"{self._sum('stored') / 1e6:.2f}",
            )
        )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = []
        for line in lines:
            cells = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
            cells += [
                cell.rjust(width)
                for cell, width in zip(line[2:], widths[2:], strict=True)
            ]
            table.append("  ".join(cells).rstrip())
        size = self.layers[0].output_shape
        parts = ", ".join(
            f"{name} {megabytes(number)}"
            for name, number in self.step_parts().items()
        )
        split = f", {self.accumulate} micro-batches" * (self.accumulate > 1)
        table = [
            f"{self.model}, images of {' x '.join(map(str, size))}",
            *table,
            f"activations (outputs of products): "
            f"{self.activations / 1e6:.2f} M values",
            f"memory, batch of {self.batch}{split}, {self.precision}: "
            f"inference {megabytes(self.inference_bytes)}, training step with "
            f"{self.optimizer} {megabytes(self.step_bytes)} ({parts})",
        ]
        return "\n".join(table)

    def _sum(self, name):
        return sum(getattr(row, name) for row in self.layers)


def _composite(name):
    if name.startswith("block_"):
        return "TransformerBlock"
    if name.startswith("stage_"):
        return "ResidualUnit"
    return "AttentionPooling" if name == "pooling" else "layers"


def _key(row):
    return (
        row.name.rstrip("0123456789"),
        row.kind,
        row.output_shape,
        row.parameters,
        row.macs,
        row.stored,
    )


def megabytes(number):
    """Returns a number of bytes as text, in MB of 10**6 bytes."""
    return f"{number / 1e6:,.0f} MB"
