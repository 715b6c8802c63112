"""Object detection with Vision Transformers."""

from keras_vit.detection.decoding import decode
from keras_vit.detection.fcos import FCOS
from keras_vit.detection.loss import fcos_loss, set_loss, set_loss_terms
from keras_vit.detection.yolos import YOLOS

__all__ = ["decode", "FCOS", "fcos_loss", "set_loss", "set_loss_terms", "YOLOS"]
