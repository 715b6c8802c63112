import math
import re


def bytes_per_device(model, distribution=None):
    """Returns the bytes of a model's variables on each device.

    Shapes and layouts suffice: the model may have been built under
    `keras.StatelessScope(initialize_variables=False)`, which allocates
    nothing. An optimizer's moments are laid out as what they belong to, so
    that their share is the same.

    Args:
        model: A Keras model.
        distribution: A `keras.distribution.Distribution` such as
            `ModelParallel`; None for one device.

    Returns:
        Integer.
    """
    total = 0
    for variable in model.variables:
        size = math.prod(variable.shape)
        if distribution is not None:
            mesh = distribution.device_mesh
            sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
            axes = distribution.get_variable_layout(variable).axes
            size //= math.prod(sizes[axis] for axis in axes if axis)
        total += size * _bytes(variable.dtype)
    return total


def _bytes(dtype):
    """Of names such as "bfloat16", which NumPy does not know."""
    if dtype == "bool":
        return 1
    return int(re.search(r"\d+", dtype)[0]) // 8
