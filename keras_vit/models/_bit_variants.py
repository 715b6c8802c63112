from keras_vit.models._bit import BiT
from keras_vit.models._named_model import named_model

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
    return named_model(
        variant,
        BiT,
        sizes,
        f"""a BiT ResNet for images.

    Units of the stages {layers}, width factor {width}. From "Big Transfer
    (BiT): General Visual Representation Learning"
    (https://arxiv.org/abs/1912.11370).""",
    )


BiT_R50x1 = _variant("BiT_R50x1")
BiT_R50x3 = _variant("BiT_R50x3")
BiT_R101x1 = _variant("BiT_R101x1")
BiT_R101x3 = _variant("BiT_R101x3")
BiT_R152x2 = _variant("BiT_R152x2")
BiT_R152x4 = _variant("BiT_R152x4")
