from keras_vit.converters._checkpoint import Checkpoint as Checkpoint
from keras_vit.converters._checkpoint import open_checkpoint as open_checkpoint
from keras_vit.converters._models import load as load
from keras_vit.converters._models import save as save
