from keras_vit.models.description import config_of
from keras_vit.models.features import (
    dense_features,
    feature_extractor,
    inference_model,
    preprocessing_of,
    with_any_size,
    without_preprocessing,
)
from keras_vit.models.mixed_sizes import mixed_sizes, one_size
from keras_vit.models.model import Model
from keras_vit.models.resnet import BiT
from keras_vit.models.variants import (
    BiT_R50x1,
    BiT_R50x3,
    BiT_R101x1,
    BiT_R101x3,
    BiT_R152x2,
    BiT_R152x4,
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTL32,
    R_ViTTi16,
    ViTB8,
    ViTB14,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL14,
    ViTL16,
    ViTL32,
    ViTS14,
    ViTS16,
    ViTS32,
    ViTTi16,
    list_models,
)
from keras_vit.models.vit import HybridVisionTransformer, VisionTransformer

__all__ = [
    "BiT", "BiT_R101x1", "BiT_R101x3", "BiT_R152x2", "BiT_R152x4", "BiT_R50x1",
    "BiT_R50x3", "config_of", "dense_features", "feature_extractor",
    "HybridVisionTransformer", "inference_model", "list_models", "mixed_sizes",
    "Model", "one_size", "preprocessing_of", "R26ViTB32", "R26ViTS32",
    "R50ViTB16", "R50ViTL32", "R_ViTTi16", "VisionTransformer", "ViTB14", "ViTB16",
    "ViTB32", "ViTB8", "ViTG14", "ViTg14", "ViTH14", "ViTL14", "ViTL16", "ViTL32",
    "ViTS14", "ViTS16", "ViTS32", "ViTTi16", "with_any_size",
    "without_preprocessing",
]  # fmt: skip
