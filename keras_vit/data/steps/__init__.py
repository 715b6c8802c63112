"""Steps of the path from a file to a batch, as `ImageDataset.train` takes them.

A step is a function `step(example, seed)` of an example, a dict, that returns it
changed. The functions here make steps, of their other arguments.
"""

from keras_vit.data.steps.base import Step as Step
from keras_vit.data.steps.base import step as step
from keras_vit.data.steps.crops import bicubic_center_crop as bicubic_center_crop
from keras_vit.data.steps.crops import inception_crop as inception_crop
from keras_vit.data.steps.crops import random_resized_crop as random_resized_crop
from keras_vit.data.steps.crops import random_translation as random_translation
from keras_vit.data.steps.crops import resize as resize
from keras_vit.data.steps.crops import resize_and_crop as resize_and_crop
from keras_vit.data.steps.general import augment as augment
from keras_vit.data.steps.general import decode as decode
from keras_vit.data.steps.general import erase as erase
from keras_vit.data.steps.general import flip as flip
from keras_vit.data.steps.general import layer as layer
from keras_vit.data.steps.general import normalize as normalize
from keras_vit.data.steps.general import one_hot as one_hot
from keras_vit.data.steps.general import weigh as weigh
from keras_vit.data.steps.mixing import mix as mix
from keras_vit.data.steps.multi_crops import multi_crop as multi_crop
from keras_vit.data.steps.places import scale_crop as scale_crop
from keras_vit.data.steps.places import scale_whole as scale_whole
