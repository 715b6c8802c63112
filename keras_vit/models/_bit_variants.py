from keras_vit.models._bit import BiT
from keras_vit.weights import named

# https://arxiv.org/abs/1912.11370: units of each stage, and the width factor.
BIT_VARIANTS = {
    "BiT_R50x1": ((3, 4, 6, 3), 1),
    "BiT_R50x3": ((3, 4, 6, 3), 3),
    "BiT_R101x1": ((3, 4, 23, 3), 1),
    "BiT_R101x3": ((3, 4, 23, 3), 3),
    "BiT_R152x2": ((3, 8, 36, 3), 2),
    "BiT_R152x4": ((3, 8, 36, 3), 4),
}


def _variant(variant):
    layers, width = BIT_VARIANTS[variant]
    sizes = {"resnet_layers": layers, "width_factor": width}

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
        return BiT(
            include_top=include_top,
            weights=named(weights, variant, sizes),
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
            **{**sizes, **architecture},
        )

    model.__name__ = model.__qualname__ = variant
    model.__doc__ = f"""Builds {variant}, a BiT ResNet for images.

    Units of the stages {layers}, width factor {width}. From "Big Transfer
    (BiT): General Visual Representation Learning"
    (https://arxiv.org/abs/1912.11370).

    Args:
        include_top: Boolean. Whether to end in a classification head, which
            is zero at first.
        weights: None for random weights; the name of released ones, such as
            "imagenet21k" (`keras_vit.list_weights()` shows all), which are
            downloaded once; or a path or an address, see `BiT`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None is `(224, 224, 3)`.
        pooling: "gap" or None; see `BiT`.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        name: String. Name of the model.
        **architecture: Any other argument of `BiT`.

    Returns:
        A `keras.Model` that takes images in [-1, 1] (`preprocess_input`).

    Raises:
        ValueError: if an argument is wrong or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if the weights could not be downloaded.
    """
    return model


BiT_R50x1 = _variant("BiT_R50x1")
BiT_R50x3 = _variant("BiT_R50x3")
BiT_R101x1 = _variant("BiT_R101x1")
BiT_R101x3 = _variant("BiT_R101x3")
BiT_R152x2 = _variant("BiT_R152x2")
BiT_R152x4 = _variant("BiT_R152x4")
