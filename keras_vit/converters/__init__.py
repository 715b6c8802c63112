from keras_vit.converters._models import load as load
from keras_vit.converters._models import save as save
