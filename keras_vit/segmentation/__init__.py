"""Semantic segmentation with Vision Transformers."""

from keras_vit.segmentation.eomt import AnnealMasks, EoMT, semantic_scores
from keras_vit.segmentation.linear import LinearSegmenter
from keras_vit.segmentation.matching import mask_loss
from keras_vit.segmentation.windows import sliding_window

__all__ = [
    "AnnealMasks", "EoMT", "LinearSegmenter", "mask_loss", "semantic_scores",
    "sliding_window",
]  # fmt: skip
