"""Gradient checkpointing of a layer whose dropout has a random state."""

import keras


def call(layer, function, *inputs):
    """Calls a function so that its values are computed again for gradients.

    `keras.remat` alone would draw other random numbers the second time (on
    TensorFlow and PyTorch), or leave a traced state behind (on JAX). So the
    state goes in as an argument and comes out as a result.

    Args:
        layer: The layer whose sub-layers the function calls.
        function: Function of `inputs` that returns a tensor.
        *inputs: Tensors.
    """
    count = len(inputs)
    weights = {id(weight) for weight in layer.weights}
    states = [v for v in layer.variables if id(v) not in weights]
    fixed = []
    if keras.backend.backend() == "jax":
        # A scope within a scope does not see the outer one's values.
        fixed = [(weight, weight.value) for weight in layer.weights]

    def functional(*values):
        inputs, values = values[:count], values[count:]
        mapping = [*fixed, *zip(states, values, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            outputs = function(*inputs)
            after = [scope.get_current_value(state) for state in states]
        return outputs, *after

    # A copy: the variables themselves are assigned to below.
    before = [state.value * 1 for state in states]
    outputs, *after = keras.remat(functional)(*inputs, *before)
    for state, value in zip(states, after, strict=True):
        state.assign(value)
    return outputs
