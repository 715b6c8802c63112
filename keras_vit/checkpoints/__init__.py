"""Checkpoints of ViT code bases as NumPy arrays under keras_vit's names."""

from keras_vit.checkpoints._checkpoint import Checkpoint as Checkpoint
from keras_vit.checkpoints._checkpoint import open_checkpoint as open_checkpoint
from keras_vit.checkpoints._list import list_weights as list_weights
from keras_vit.checkpoints._named import named as named
