from keras_vit.weights._checkpoint import Checkpoint as Checkpoint
from keras_vit.weights._checkpoint import open_checkpoint as open_checkpoint
from keras_vit.weights._load import load_into as load_into
