"""Hugging Face's YOLOS (`YolosForObjectDetection`).

https://github.com/huggingface/transformers. It is no layout of
`converters.load`, which reads classifiers and encoders: see
`keras_vit.load`.
"""

import numpy as np

from keras_vit.utils.types import Array
from keras_vit.weights.formats.huggingface import HuggingFace
from keras_vit.weights.weight_map import TORCH, WeightMap

_POSITIONS = "vit.embeddings.position_embeddings"
MID_POSITIONS = "vit.encoder.mid_position_embeddings"
YOLOS = WeightMap(
    "",
    TORCH,
    (
        *HuggingFace.maps[0].layers,
        (
            "detection_tokens/tokens",
            "vit.embeddings.detection_tokens",
            "array",
        ),
        # These are parts of arrays, which `split` and `join` cut and glue.
        ("detection_tokens/positions", f"{_POSITIONS}.detection", "array"),
        (
            "mid_position_embedding_{i}/embedding",
            f"{MID_POSITIONS}.{{i}}",
            "array",
        ),
        *(
            (f"{ours}_{i}/*", f"{theirs}.layers.{i - 1}.*", "linear")
            for ours, theirs in (
                ("class", "class_labels_classifier"),
                ("box", "bbox_predictor"),
            )
            for i in (1, 2, 3)
        ),
    ),
)


def split(arrays: dict[str, Array], queries: int) -> dict[str, Array]:
    """Returns the arrays of a file with one for the position embeddings of each
    layer of a model, in which detection tokens are first and not last."""
    arrays = dict(arrays)
    positions = arrays.pop(_POSITIONS, None)
    if positions is not None:
        arrays[_POSITIONS] = positions[:, :-queries]
        arrays[f"{_POSITIONS}.detection"] = positions[:, -queries:]
    for i, array in enumerate(arrays.pop(MID_POSITIONS, ())):
        arrays[f"{MID_POSITIONS}.{i}"] = np.roll(array, queries, axis=1)
    return arrays


def join(arrays: dict[str, Array], queries: int) -> dict[str, Array]:
    """Returns the arrays of a file, given those that `split` returns."""
    arrays = dict(arrays)
    detection = arrays.pop(f"{_POSITIONS}.detection")
    arrays[_POSITIONS] = np.concatenate([arrays[_POSITIONS], detection], axis=1)
    mid = [key for key in arrays if key.startswith(f"{MID_POSITIONS}.")]
    if mid:
        keys = [f"{MID_POSITIONS}.{i}" for i in range(len(mid))]
        array = np.stack([arrays.pop(key) for key in keys])
        arrays[MID_POSITIONS] = np.roll(array, -queries, axis=2)
    return arrays
