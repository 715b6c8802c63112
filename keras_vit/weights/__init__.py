"""Checkpoints of ViT code bases as NumPy arrays under keras_vit's names."""

from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.released import list_weights, resolve_weights

__all__ = ["Checkpoint", "list_weights", "open_checkpoint", "resolve_weights"]
