import difflib
import inspect

from keras_vit.checkpoints import resolve_weights

# What timm, keras-hub and vit-keras call it.
_ELSEWHERE = {
    "num_classes": "classes",
    "num_labels": "classes",
    "pretrained_top": "classes",
    "dynamic_img_size": "input_shape",
    "image_size": "input_shape",
    "img_size": "input_shape",
    "image_shape": "input_shape",
    "in_chans": "input_shape",
    "in_channels": "input_shape",
    "preset": "weights",
    "pretrained": "weights",
    "embed_dim": "hidden_size",
    "depth": "num_layers",
    "drop_rate": "dropout",
    "dropout_rate": "dropout",
    "drop_path_rate": "drop_path",
    "global_pool": "pooling",
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
}

_DOC = """Builds {name}, {what}

    Args:
        include_top: Boolean. Whether to end in a classification head, which
            is zero at first.
        weights: None for random weights; the name of released ones, such as
            "imagenet21k" (`keras_vit.list_weights()` shows all), which are
            downloaded once; or a path or an address, see `{function}`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None takes what the weights were made for,
            else `(224, 224, 3)`.
        pooling: One of `{function}`'s, or None for its own choice.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        name: String. Name of the model.
        **architecture: Any other argument of `{function}`.

    Returns:
        A `keras.Model` that takes images in [-1, 1] (`preprocess_input`).

    Raises:
        ValueError: if an argument is wrong or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if the weights could not be downloaded.
        TypeError: if there is no such argument.

    Example:

    >>> model = keras_vit.{name}(classes=10)
    """


def named_model(variant, build, sizes, what):
    """Returns the function `variant`, which is `build` with some arguments.

    Args:
        variant: String. Its name, also the default of the model's.
        build: Function that returns a model.
        sizes: Dict of arguments of `build`.
        what: String. What it builds and where that is from: the docstring
            goes on with it after the name.
    """
    known = inspect.signature(build).parameters

    def model(
        include_top=True,
        weights=None,
        input_tensor=None,
        input_shape=None,
        pooling=None,
        classes=None,
        classifier_activation=None,
        name=variant,
        **architecture,
    ):
        _raise_if_strange(variant, architecture, known)
        return build(
            include_top=include_top,
            weights=resolve_weights(weights, variant, sizes),
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
            **{**sizes, **architecture},
        )

    model.__name__ = model.__qualname__ = variant
    model.__module__ = "keras_vit.models"  # where pickle finds it
    model.__doc__ = _DOC.format(
        name=variant, what=what, function=build.__name__
    )
    return model


def _raise_if_strange(variant, arguments, known):
    for name in arguments:
        if name not in known:
            meant = difflib.get_close_matches(name, known, 1)
            meant = _ELSEWHERE.get(name) or (meant[0] if meant else None)
            hint = f" Did you mean {meant!r}?" if meant else ""
            raise TypeError(f"{variant}() has no argument {name!r}.{hint}")
