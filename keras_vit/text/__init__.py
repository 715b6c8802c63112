"""Text towers, tokenizers, and classifiers built from words."""

from keras_vit.text.dual_encoder import DualEncoder
from keras_vit.text.losses import contrastive_loss, sigmoid_loss
from keras_vit.text.templates import TEMPLATES
from keras_vit.text.tokenizer import Tokenizer
from keras_vit.text.tower import TextEncoder
from keras_vit.text.zero_shot import zero_shot

__all__ = [
    "contrastive_loss", "DualEncoder", "sigmoid_loss", "TEMPLATES", "TextEncoder",
    "Tokenizer", "zero_shot",
]  # fmt: skip
