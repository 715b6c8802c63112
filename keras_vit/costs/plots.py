"""A picture of what a model costs."""

import dataclasses
import pathlib
from typing import Any

from keras_vit._program import require
from keras_vit._types import StrPath

_PARTS = {
    "attention": ("MultiHeadAttention", "#1f5fa8"),
    "MLP": ("MlpBlock", "#7fb2e5"),
    "convolutions": ("StdConv2D", "#c62828"),
    "patches": ("PatchEmbedding", "#e0a030"),
}
_OTHER = "#9aa5b1"


def plot_cost(cost: Any, path: StrPath) -> pathlib.Path:
    """Plots a `Cost`: multiply-adds by layer, and memory by batch size."""
    figure = require("matplotlib.figure").Figure(
        figsize=(10, 3.8), dpi=120, layout="constrained"
    )
    left, right = figure.subplots(1, 2)
    groups = list(dict.fromkeys(r.group for r in cost.layers if r.macs))
    bottom = [0.0] * len(groups)
    kinds = {kind: name for name, (kind, _) in _PARTS.items()}
    names = [*_PARTS, "other"]
    for name in names:
        color = _PARTS[name][1] if name in _PARTS else _OTHER
        heights = [
            sum(
                row.macs / 1e6
                for row in cost.layers
                if row.group == group and kinds.get(row.kind, "other") == name
            )
            for group in groups
        ]
        if any(heights):
            left.bar(groups, heights, bottom=bottom, color=color, label=name)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    left.tick_params("x", rotation=90, labelsize=7)
    left.set_ylabel("million multiply-adds per image")
    left.set_title(f"{cost.model}: {cost.macs / 1e9:.2f} G multiply-adds")
    left.set_ylim(0, 1.15 * max(bottom, default=1))
    left.legend(frameon=False, fontsize=8, ncol=5, loc="upper center")

    batches = [2**i for i in range(9)]
    at = [dataclasses.replace(cost, batch=n * cost.accumulate) for n in batches]
    micro = "micro-batch" if cost.accumulate > 1 else "batch"
    weights = cost.parameters * 4 / 1e9
    right.plot(
        batches,
        [c.step_bytes / 1e9 for c in at],
        "o-",
        color="#1f5fa8",
        label=f"training step, {cost.optimizer}, {cost.precision}",
    )
    right.plot(
        batches,
        [c.inference_bytes / 1e9 for c in at],
        "o-",
        color=_OTHER,
        label="inference",
    )
    right.axhline(
        weights,
        color="#c62828",
        linewidth=1,
        linestyle=":",
        label="weights in float32",
    )
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xlabel(f"images in a {micro}")
    right.set_ylabel("GB of memory at most")
    size = " x ".join(map(str, cost.layers[0].output_shape[:2]))
    right.set_title(f"images of {size} pixels")
    right.legend(frameon=False, fontsize=8)
    path = pathlib.Path(path)
    figure.savefig(path)
    return path
