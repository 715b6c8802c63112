"""Object detection on Vision Transformers."""

from keras_vit.detection.decoding import decode as decode
from keras_vit.detection.fcos import FCOS as FCOS
from keras_vit.detection.loss import fcos_loss as fcos_loss
from keras_vit.detection.loss import set_loss as set_loss
from keras_vit.detection.loss import set_loss_terms as set_loss_terms
from keras_vit.detection.yolos import YOLOS as YOLOS
