from keras_vit.layers._attention import MultiHeadAttention as MultiHeadAttention
from keras_vit.layers._attention_pooling import (
    AttentionPooling as AttentionPooling,
)
from keras_vit.layers._class_token import ClassToken as ClassToken
from keras_vit.layers._fast import LayerNormalization as LayerNormalization
from keras_vit.layers._group_norm import GroupNorm as GroupNorm
from keras_vit.layers._layer_scale import LayerScale as LayerScale
from keras_vit.layers._mask_token import MaskToken as MaskToken
from keras_vit.layers._max_pool import MaxPool2D as MaxPool2D
from keras_vit.layers._mlp import MlpBlock as MlpBlock
from keras_vit.layers._patch_embedding import PatchEmbedding as PatchEmbedding
from keras_vit.layers._patches import Patches as Patches
from keras_vit.layers._pooling import Pooling as Pooling
from keras_vit.layers._position_embedding import (
    AddPositionEmbs as AddPositionEmbs,
)
from keras_vit.layers._relative_position import (
    RelativePositionEmbs as RelativePositionEmbs,
)
from keras_vit.layers._residual_unit import ResidualUnit as ResidualUnit
from keras_vit.layers._std_conv import StdConv2D as StdConv2D
from keras_vit.layers._transformer_block import (
    TransformerBlock as TransformerBlock,
)
