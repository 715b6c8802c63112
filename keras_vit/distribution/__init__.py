"""Train on several devices: strategies, and layouts of model parallelism."""

from keras_vit.distribution.layout import MODEL as MODEL
from keras_vit.distribution.layout import RULES as RULES
from keras_vit.distribution.layout import ModelParallel as ModelParallel
from keras_vit.distribution.layout import bytes_per_device as bytes_per_device
from keras_vit.distribution.layout import layout_map as layout_map
from keras_vit.distribution.strategy import Strategy as Strategy
from keras_vit.distribution.strategy import get_strategy as get_strategy
