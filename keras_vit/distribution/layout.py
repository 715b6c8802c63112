"""Model parallelism: layouts that split a model's variables over devices."""

import math
from typing import Any

import keras
import numpy as np

MODEL = "model"  # the mesh axis over which weights are split

# Variable path suffix -> mesh axis per dimension; None is replicated. Each
# path matches exactly one rule. As in Megatron-LM, Section 3
# (https://arxiv.org/abs/1909.08053), the first of two consecutive matrices is
# split by columns and the second by rows, so that devices exchange only the
# sum of their products. Small variables are replicated.
RULES = {
    # (hidden_size, num_heads, head_size)
    r"attention/(query|key|value)/kernel": (None, MODEL, None),
    r"attention/(query|key|value)/bias": (MODEL, None),
    # (num_heads, head_size, hidden_size)
    r"attention/attention_output/kernel": (MODEL, None, None),
    r"attention/attention_output/bias": (None,),
    r"mlp/dense_1/kernel": (None, MODEL),
    r"mlp/dense_1/bias": (MODEL,),
    r"mlp/dense_2/kernel": (MODEL, None),
    r"mlp/dense_2/bias": (None,),
    r"(pre_logits|head|distillation_head)/kernel": (None, MODEL),
    r"(pre_logits|head|distillation_head)/bias": (MODEL,),
    r"patch_embedding/kernel": (None, None, None, None),
    r"patch_embedding/bias": (None,),
    r"(class_token|distillation_token|register_tokens|mask_token)/tokens": (
        None,
        None,
        None,
    ),
    # Replicated, as a ResNet is small compared with the encoder.
    r"(root_conv|conv_\d|conv_proj)/kernel": (None,) * 4,
    r"position_embedding(_\d+|_shared)?/(embedding|prefix)": (None,) * 3,
    r"position_embedding(_\d+|_shared)?/(columns|rows|offsets)": (None,) * 2,
    r"position_embedding(_\d+|_shared)?/periods": (None,),
    r"pooling/probe": (None, None, None),
    # All norms, including those of queries and keys, and `LayerScale`.
    r"(\w*norm(_\w+)?|scale_\d)/(gamma|beta)": (None,),
    # State of the random generators of dropout.
    r"seed_generator(_\d+)?/seed_generator_state": (None,),
}


def layout_map(
    device_mesh: keras.distribution.DeviceMesh,
) -> keras.distribution.LayoutMap:
    """Returns a Keras `LayoutMap` for the models of this package.

    Attention is split by attention heads, MLPs by hidden units and
    classification heads by classes; the rest is replicated. The size of the
    mesh axis "model" must divide these numbers; `ModelParallel` has no such
    restriction.

    Args:
        device_mesh: A `keras.distribution.DeviceMesh` with an axis "model".

    Returns:
        A `keras.distribution.LayoutMap` with a key for every variable of every
        `VisionTransformer`.

    Raises:
        ValueError: if the mesh has no axis "model".
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in RULES.items():
        # In a nested model, paths have a prefix.
        layouts[rf"(?:.*/)?{path}"] = axes
    return layouts


class ModelParallel(keras.distribution.ModelParallel):
    """Splits a Vision Transformer over devices; only for JAX, as in Keras.

    This is `keras.distribution.ModelParallel` with `layout_map`, except that a
    variable is replicated if the number of devices does not divide the axis to
    split, such as 3 heads on 4 devices or 10 classes on 8.

    Args:
        device_mesh: A `keras.distribution.DeviceMesh` with the axes "batch" and
            "model".
        **kwargs: Arguments of `keras.distribution.ModelParallel`.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    >>> with keras_vit.distribution.ModelParallel(mesh).scope():
    ...     model = keras_vit.ViTH14(classes=1000)
    """

    def __init__(
        self, device_mesh: keras.distribution.DeviceMesh, **kwargs: Any
    ) -> None:
        super().__init__(layout_map=layout_map(device_mesh), **kwargs)

    def get_variable_layout(self, variable: keras.Variable) -> Any:
        layout = super().get_variable_layout(variable)
        axes = getattr(layout, "axes", None)
        if axes is None:  # a sharding object of the backend
            return layout
        sizes = _axis_sizes(self.device_mesh)
        for axis, length in zip(axes, variable.shape, strict=True):
            if axis is not None and length % sizes[axis]:
                replicated = [None] * len(variable.shape)
                return keras.distribution.TensorLayout(replicated, self.device_mesh)
        return layout


def bytes_per_device(
    model: keras.Model,
    distribution: keras.distribution.DataParallel
    | keras.distribution.ModelParallel
    | None = None,
) -> int:
    """Computes the size in bytes of a model's variables on each device.

    Only shapes and layouts are used, so the model may be built in
    `keras.StatelessScope(initialize_variables=False)`, which allocates no
    memory. Optimizer variables are not counted; moments are split like the
    variables that they belong to.

    Args:
        model: A Keras model.
        distribution: A `keras.distribution.Distribution` such as
            `ModelParallel`; None for one device.

    Returns:
        Integer. Number of bytes per device.
    """
    total = 0
    for variable in model.variables:
        size = math.prod(variable.shape)
        if distribution is not None:
            sizes = _axis_sizes(distribution.device_mesh)
            axes = distribution.get_variable_layout(variable).axes
            size //= math.prod(sizes[axis] for axis in axes if axis)
        total += size * np.dtype(variable.dtype).itemsize
    return total


def _axis_sizes(mesh: keras.distribution.DeviceMesh) -> dict[str, int]:
    return dict(zip(mesh.axis_names, mesh.shape, strict=True))
