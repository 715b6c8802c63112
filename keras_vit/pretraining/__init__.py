from keras_vit.pretraining.dino import DINO as DINO
from keras_vit.pretraining.heads import DINOHead as DINOHead
from keras_vit.pretraining.heads import MoCoHead as MoCoHead
from keras_vit.pretraining.mae import MaskedAutoencoder as MaskedAutoencoder
from keras_vit.pretraining.masks import block_mask as block_mask
from keras_vit.pretraining.masks import random_mask as random_mask
from keras_vit.pretraining.mocov3 import MoCoV3 as MoCoV3
from keras_vit.pretraining.patch_prediction import (
    MaskedPatchPrediction as MaskedPatchPrediction,
)
from keras_vit.pretraining.saved import load as load
from keras_vit.pretraining.simmim import (
    MaskedImageModeling as MaskedImageModeling,
)
