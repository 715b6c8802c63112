"""Files of weights: reading, writing, and the guards against hostile ones."""

from keras_vit.weights.files.arrays import ADAPTER_FILES as ADAPTER_FILES
from keras_vit.weights.files.arrays import PRESET_FILES as PRESET_FILES
from keras_vit.weights.files.arrays import check_arrays as check_arrays
from keras_vit.weights.files.arrays import read as read
from keras_vit.weights.files.arrays import read_all as read_all
from keras_vit.weights.files.arrays import weights_file as weights_file
from keras_vit.weights.files.arrays import write as write
from keras_vit.weights.files.configs import class_names_of as class_names_of
from keras_vit.weights.files.configs import read_config as read_config
from keras_vit.weights.files.configs import read_json as read_json
from keras_vit.weights.files.modes import INTERPOLATIONS as INTERPOLATIONS
from keras_vit.weights.files.modes import stored_mode as stored_mode
from keras_vit.weights.files.modes import stored_resizing as stored_resizing
from keras_vit.weights.files.paths import SUFFIXES as SUFFIXES
from keras_vit.weights.files.paths import atomic_write as atomic_write
from keras_vit.weights.files.paths import check_new as check_new
from keras_vit.weights.files.paths import check_new_files as check_new_files
from keras_vit.weights.files.paths import locate as locate
from keras_vit.weights.files.progress import track as track
from keras_vit.weights.files.torch import read_training as read_training
