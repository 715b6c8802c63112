from keras_vit.pretraining.dino import DINO
from keras_vit.pretraining.heads import DINOHead, MoCoHead
from keras_vit.pretraining.mae import MaskedAutoencoder
from keras_vit.pretraining.masks import block_mask, random_mask
from keras_vit.pretraining.mocov3 import MoCoV3
from keras_vit.pretraining.patch_prediction import MaskedPatchPrediction
from keras_vit.pretraining.saved import load
from keras_vit.pretraining.simmim import MaskedImageModeling

__all__ = [
    "block_mask", "DINO", "DINOHead", "load", "MaskedAutoencoder",
    "MaskedImageModeling", "MaskedPatchPrediction", "MoCoHead", "MoCoV3", "random_mask",
]  # fmt: skip
