"""Object detection on Vision Transformers."""

from keras_vit.detection.files import load as load
from keras_vit.detection.files import save as save
from keras_vit.detection.loss import set_loss as set_loss
from keras_vit.detection.loss import set_loss_terms as set_loss_terms
from keras_vit.detection.yolos import YOLOS as YOLOS
from keras_vit.detection.yolos import decode as decode
