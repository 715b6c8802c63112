"""Checkpoints of ViT code bases as NumPy arrays under keras_vit's names."""

from keras_vit.weights.checkpoint import Checkpoint as Checkpoint
from keras_vit.weights.checkpoint import open_checkpoint as open_checkpoint
from keras_vit.weights.released import list_weights as list_weights
from keras_vit.weights.released import resolve_weights as resolve_weights
