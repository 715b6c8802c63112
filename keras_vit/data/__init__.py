"""Datasets of labeled images, and the steps from a file to a batch, for every backend.

TensorFlow is imported when a pipeline is built, not with this package.
"""

from keras_vit.data.arrays import from_arrays
from keras_vit.data.boxes import load_detection
from keras_vit.data.csv_files import from_csv
from keras_vit.data.dataset import ImageDataset, balanced_class_weights
from keras_vit.data.folders import load_files
from keras_vit.data.huggingface import from_huggingface
from keras_vit.data.indexable import from_indexable
from keras_vit.data.masks import load_segmentation
from keras_vit.data.pipeline import find_data_error
from keras_vit.data.protocols import PROTOCOLS
from keras_vit.data.sources import load_dataset
from keras_vit.data.steps.erasing import RandomErasing
from keras_vit.data.steps.multi_crops import CROPS, MultiCrop
from keras_vit.data.steps.randaugment import AUGREG, rand_augment
from keras_vit.data.token_budget import TokenBudget, pack_images
from keras_vit.data.vtab import VTAB_GROUPS, VTAB_TASKS, load_vtab

__all__ = [
    "AUGREG", "balanced_class_weights", "CROPS", "find_data_error", "from_arrays",
    "from_csv", "from_huggingface", "from_indexable",
    "ImageDataset", "load_dataset", "load_detection", "load_files",
    "load_segmentation", "load_vtab", "MultiCrop", "pack_images",
    "PROTOCOLS", "rand_augment", "RandomErasing", "TokenBudget",
    "VTAB_GROUPS", "VTAB_TASKS",
]  # fmt: skip
