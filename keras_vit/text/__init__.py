"""Text towers, tokenizers, and classifiers of words."""

from keras_vit.text.dual_encoder import DualEncoder as DualEncoder
from keras_vit.text.losses import contrastive_loss as contrastive_loss
from keras_vit.text.losses import sigmoid_loss as sigmoid_loss
from keras_vit.text.templates import TEMPLATES as TEMPLATES
from keras_vit.text.tokenizer import Tokenizer as Tokenizer
from keras_vit.text.tower import TextEncoder as TextEncoder
from keras_vit.text.zero_shot import zero_shot as zero_shot
