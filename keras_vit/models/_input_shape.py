"""The arguments `input_shape` and `input_tensor` of models."""

import numbers

import keras


def shape_of(input_shape, input_tensor):
    """Returns the checked shape that a model is to have; None if nothing is
    said of it."""
    if input_tensor is not None:
        if not keras.utils.is_keras_tensor(input_tensor):
            raise ValueError(
                "`input_tensor` must be a Keras tensor, such as the output of "
                f"`keras.Input`. Received: {type(input_tensor).__name__}"
            )
        shape = _shape("input_tensor", input_tensor.shape[1:])
        if input_shape is not None and tuple(input_shape) != shape:
            raise ValueError(
                f"`input_shape={input_shape}` contradicts `input_tensor`, "
                f"whose shape is {shape}. Give one of them."
            )
        return shape
    return None if input_shape is None else _shape("input_shape", input_shape)


def _shape(name, shape):
    wrong = ValueError(
        f"`{name}` must have the shape (height, width, channels), where "
        "height and width may be None for any size; channels come last. "
        f"Received: {name}={shape!r}"
    )
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise wrong
    if shape[2] is None:
        raise wrong
    for size in shape:
        if size is not None and (
            not isinstance(size, numbers.Integral) or size <= 0
        ):
            raise wrong
    if shape[0] in (1, 3) and shape[2] > 4 and shape[1] != shape[0]:
        raise ValueError(
            f"`{name}={shape!r}` would be images of {shape[0]} rows with "
            f"{shape[2]} channels: give (height, width, channels), "
            f"{(*shape[1:], shape[0])}."
        )
    return tuple(size if size is None else int(size) for size in shape)
