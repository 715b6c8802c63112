from keras_vit.distribution._layout import MODEL as MODEL
from keras_vit.distribution._layout import RULES as RULES
from keras_vit.distribution._layout import ModelParallel as ModelParallel
from keras_vit.distribution._layout import layout_map as layout_map
from keras_vit.distribution._memory import bytes_per_device as bytes_per_device
