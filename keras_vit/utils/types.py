"""Names of types that annotations use."""

import os
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "Array",
    "ArrayLike",
    "Config",
    "Dataset",
    "Shape",
    "StrPath",
    "Tensor",
]

# NumPy's arrays, of any type of number.
Array: TypeAlias = np.ndarray
# A tensor of whichever backend Keras runs, or a `keras.KerasTensor`: these
# classes have no common base.
Tensor: TypeAlias = Any
# A `tf.data.Dataset`. TensorFlow, which it would be imported from, is optional.
Dataset: TypeAlias = Any
# Arguments of a layer or a model, as in `get_config()` and JSON files.
Config: TypeAlias = dict[str, Any]
# A shape in a call: each size is an integer, None if it is not known, or a
# scalar tensor where TensorFlow knows it only when the graph runs.
Shape: TypeAlias = tuple[Any, ...]
# A path of a file or folder.
StrPath: TypeAlias = str | os.PathLike[str]
