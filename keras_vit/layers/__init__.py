"""Keras layers of Vision Transformers and of their ResNet stems."""

from keras_vit.layers._kernels import LayerNormalization as LayerNormalization
from keras_vit.layers.attention import AttentionPooling as AttentionPooling
from keras_vit.layers.attention import MultiHeadAttention as MultiHeadAttention
from keras_vit.layers.blocks import LayerScale as LayerScale
from keras_vit.layers.blocks import TransformerBlock as TransformerBlock
from keras_vit.layers.maps import FeatureMap as FeatureMap
from keras_vit.layers.maps import SimpleFeaturePyramid as SimpleFeaturePyramid
from keras_vit.layers.maps import UpsampleMap as UpsampleMap
from keras_vit.layers.mlp import MlpBlock as MlpBlock
from keras_vit.layers.patches import MixedSizes as MixedSizes
from keras_vit.layers.patches import PatchEmbedding as PatchEmbedding
from keras_vit.layers.patches import Patches as Patches
from keras_vit.layers.positions import AddPositionEmbs as AddPositionEmbs
from keras_vit.layers.positions import (
    RelativePositionEmbs as RelativePositionEmbs,
)
from keras_vit.layers.positions import RotaryPositionEmbs as RotaryPositionEmbs
from keras_vit.layers.preprocessing import (
    ImagePreprocessing as ImagePreprocessing,
)
from keras_vit.layers.resnet import GroupNorm as GroupNorm
from keras_vit.layers.resnet import MaxPool2D as MaxPool2D
from keras_vit.layers.resnet import ResidualUnit as ResidualUnit
from keras_vit.layers.resnet import StdConv2D as StdConv2D
from keras_vit.layers.tokens import ClassToken as ClassToken
from keras_vit.layers.tokens import MaskToken as MaskToken
from keras_vit.layers.tokens import Pooling as Pooling
