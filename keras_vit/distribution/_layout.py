"""Which axis of which variable is split over devices."""

import keras

MODEL = "model"

# Ends of variable paths -> which axis is split, of how many; None for none.
# Each path has one rule. As in Megatron-LM, Section 3
# (https://arxiv.org/abs/1909.08053): the first product of a pair by columns,
# the second by rows, so that only its sum goes between devices. What is small
# is held by each of them.
RULES = {
    # (hidden, heads, size of a head) and its bias
    r"attention/(query|key|value)/kernel": (None, MODEL, None),
    r"attention/(query|key|value)/bias": (MODEL, None),
    # (heads, size of a head, hidden)
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
    # A ResNet before it, or alone, is small beside the encoder.
    r"(root_conv|conv_\d|conv_proj)/kernel": (None,) * 4,
    r"position_embedding(_\d+|_shared)?/(embedding|prefix)": (None,) * 3,
    r"position_embedding(_\d+|_shared)?/(columns|rows|offsets)": (None,) * 2,
    r"pooling/probe": (None, None, None),
    # All norms, of queries and keys too, and `LayerScale`.
    r"(\w*norm(_\w+)?|scale_\d)/(gamma|beta)": (None,),
    # The state of dropout.
    r"seed_generator(_\d+)?/seed_generator_state": (None,),
}


def layout_map(device_mesh):
    """Returns Keras's map of paths to layouts, for the package's models.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with an axis "model".

    Returns:
        A `keras.distribution.LayoutMap` with one key for every variable of
        every `VisionTransformer`: attention by heads, MLPs by their hidden
        units, heads by classes; the rest is whole on each device. It asks
        that the axis divides these numbers; `ModelParallel` does not.

    Raises:
        ValueError: if the mesh has no axis "model".
    """
    if MODEL not in device_mesh.axis_names:
        raise ValueError(
            f"`device_mesh` must have an axis {MODEL!r}, over which weights "
            f"are split. Received: axis_names={list(device_mesh.axis_names)}"
        )
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in RULES.items():
        # A model inside another has longer paths.
        layouts[rf"(?:.*/)?{path}"] = axes
    return layouts


class ModelParallel(keras.distribution.ModelParallel):
    """Splits a Vision Transformer over devices; JAX only, as Keras's.

    As `keras.distribution.ModelParallel` with `layout_map`, except that a
    variable is whole on each device where the number of devices does not
    divide it: 3 heads on 4 devices, or 10 classes on 8.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with the axes "batch" and
            "model".
        **kwargs: As for `keras.distribution.ModelParallel`.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    >>> with keras_vit.distribution.ModelParallel(mesh).scope():
    ...     model = keras_vit.ViTH14(classes=1000)
    """

    def __init__(self, device_mesh, **kwargs):
        super().__init__(layout_map=layout_map(device_mesh), **kwargs)

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        axes = getattr(layout, "axes", None)
        if axes is None:  # a backend's own layout
            return layout
        mesh = self.device_mesh
        sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        for axis, length in zip(axes, variable.shape, strict=True):
            if axis is not None and length % sizes[axis]:
                whole = [None] * len(variable.shape)
                return keras.distribution.TensorLayout(whole, mesh)
        return layout
