"""Images and their labels, and the steps from a file to a batch, on every backend.

TensorFlow is imported when a pipeline is built, not with this package.
"""

from keras_vit.data.arrays import from_arrays as from_arrays
from keras_vit.data.boxes import load_detection as load_detection
from keras_vit.data.canvases import single_digits as single_digits
from keras_vit.data.csv_files import from_csv as from_csv
from keras_vit.data.dataset import ImageDataset as ImageDataset
from keras_vit.data.dataset import (
    balanced_class_weights as balanced_class_weights,
)
from keras_vit.data.folders import load_files as load_files
from keras_vit.data.folders import load_thumbnail as load_thumbnail
from keras_vit.data.huggingface import from_huggingface as from_huggingface
from keras_vit.data.indexable import from_indexable as from_indexable
from keras_vit.data.masks import load_segmentation as load_segmentation
from keras_vit.data.pipeline import find_data_error as find_data_error
from keras_vit.data.protocols import PROTOCOLS as PROTOCOLS
from keras_vit.data.protocols import height_and_width as height_and_width
from keras_vit.data.sources import load_dataset as load_dataset
from keras_vit.data.steps.erasing import RandomErasing as RandomErasing
from keras_vit.data.steps.multi_crops import CROPS as CROPS
from keras_vit.data.steps.multi_crops import MultiCrop as MultiCrop
from keras_vit.data.steps.randaugment import AUGREG as AUGREG
from keras_vit.data.steps.randaugment import rand_augment as rand_augment
from keras_vit.data.token_budget import TokenBudget as TokenBudget
from keras_vit.data.token_budget import pack_images as pack_images
from keras_vit.data.vtab import VTAB_GROUPS as VTAB_GROUPS
from keras_vit.data.vtab import VTAB_TASKS as VTAB_TASKS
from keras_vit.data.vtab import load_vtab as load_vtab
