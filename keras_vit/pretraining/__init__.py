from keras_vit.pretraining._autoencoder import (
    MaskedAutoencoder as MaskedAutoencoder,
)
from keras_vit.pretraining._files import load as load
from keras_vit.pretraining._image_modeling import (
    MaskedImageModeling as MaskedImageModeling,
)
from keras_vit.pretraining._masks import block_mask as block_mask
from keras_vit.pretraining._masks import random_mask as random_mask
from keras_vit.pretraining._patch_prediction import (
    MaskedPatchPrediction as MaskedPatchPrediction,
)
