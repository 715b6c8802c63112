"""Other names of what `keras_vit.weights` has."""

from keras_vit.weights import Checkpoint as Checkpoint
from keras_vit.weights import list_weights as list_weights
from keras_vit.weights import open_checkpoint as open_checkpoint
from keras_vit.weights import resolve_weights as resolve_weights
