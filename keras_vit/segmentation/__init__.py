"""Semantic segmentation on Vision Transformers."""

from keras_vit.segmentation.linear import LinearSegmenter as LinearSegmenter
from keras_vit.segmentation.windows import sliding_window as sliding_window
