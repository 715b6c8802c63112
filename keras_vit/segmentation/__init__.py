"""Semantic segmentation on Vision Transformers."""

from keras_vit.segmentation.eomt import AnnealMasks as AnnealMasks
from keras_vit.segmentation.eomt import EoMT as EoMT
from keras_vit.segmentation.eomt import semantic_scores as semantic_scores
from keras_vit.segmentation.linear import LinearSegmenter as LinearSegmenter
from keras_vit.segmentation.matching import mask_loss as mask_loss
from keras_vit.segmentation.mean_iou import MeanIoU as MeanIoU
from keras_vit.segmentation.windows import sliding_window as sliding_window
