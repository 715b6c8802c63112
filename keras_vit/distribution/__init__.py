"""Training on several devices: strategies, and layouts for model parallelism."""

from keras_vit.distribution.layout import (
    MODEL,
    RULES,
    ModelParallel,
    bytes_per_device,
    layout_map,
)
from keras_vit.distribution.strategy import Strategy, get_strategy

__all__ = [
    "bytes_per_device", "get_strategy", "layout_map", "MODEL", "ModelParallel",
    "RULES", "Strategy",
]  # fmt: skip
