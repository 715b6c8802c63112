"""Keras layers of Vision Transformers and of their ResNet stems."""

from keras_vit.layers._kernels import LayerNormalization
from keras_vit.layers.attention import AttentionPooling, MultiHeadAttention
from keras_vit.layers.blocks import LayerScale, TransformerBlock
from keras_vit.layers.maps import FeatureMap, SimpleFeaturePyramid, UpsampleMap
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.patches import MixedSizes, PatchEmbedding, Patches
from keras_vit.layers.positions import (
    AddPositionEmbs,
    RelativePositionEmbs,
    RotaryPositionEmbs,
)
from keras_vit.layers.preprocessing import ImagePreprocessing
from keras_vit.layers.resnet import GroupNorm, MaxPool2D, ResidualUnit, StdConv2D
from keras_vit.layers.tokens import ClassToken, MaskToken, Pooling

__all__ = [
    "AddPositionEmbs", "AttentionPooling", "ClassToken", "FeatureMap", "GroupNorm",
    "ImagePreprocessing", "LayerNormalization", "LayerScale", "MaskToken", "MaxPool2D",
    "MixedSizes", "MlpBlock", "MultiHeadAttention", "PatchEmbedding", "Patches",
    "Pooling", "RelativePositionEmbs", "ResidualUnit", "RotaryPositionEmbs",
    "SimpleFeaturePyramid", "StdConv2D", "TransformerBlock", "UpsampleMap",
]  # fmt: skip
