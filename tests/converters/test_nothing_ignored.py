"""No array of a checkpoint is ignored without an error."""

import dataclasses
import fnmatch

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import open_checkpoint
from keras_vit.models import load_weights
from keras_vit.weights.weight_map import from_checkpoint
from keras_vit.weights.weight_map import to_checkpoint
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

# What cannot change a result: a key's bias shifts all scores of a query
# alike, and softmax does not see it; no patch is masked.
_NO_EFFECT = {
    False: ("*attention/key/bias", "mask_token/tokens"),
    True: ("*attention/key_norm/beta", "mask_token/tokens"),  # with qk norm
}


QUICK = ("vit_jax_token", "timm_map", "facebook_dinov2_reg")


@pytest.mark.parametrize(
    "case",
    [
        case
        if case in QUICK
        else pytest.param(
            case, marks=pytest.mark.nightly if i % 3 else pytest.mark.slow
        )
        for i, case in enumerate(golden_data.LOADED)
    ],
)
def test_shuffling_any_array_changes_the_result(case):
    path = golden_data.load_path(case)
    checkpoint = open_checkpoint(path, num_heads=3)
    model = keras_vit.converters.load(path, **golden_data.load_arguments(case))
    grid = None
    if checkpoint.weights.get("position_embedding/embedding") is not None:
        grid = model.get_layer("position_embedding").built_grid
        if case in golden_data.RESIZED:
            grid = checkpoint.arguments()["grid_size"]
    no_effect = _NO_EFFECT[
        any("query_norm" in name for name in checkpoint.weights)
    ]
    image = golden_data.io(case)["image"][:1]
    before = model.predict_on_batch(image)

    for key, moved in shuffled(
        golden_data.normalized(case), checkpoint.weight_map
    ):
        if all(_is_in(name, no_effect) for name in moved):
            continue  # compared in `shuffled`
        weights = {**checkpoint.weights, **moved}
        load_weights(
            model, dataclasses.replace(checkpoint, weights=weights), grid
        )
        after = model.predict_on_batch(image)
        change = np.abs(after - before).max() / np.abs(before).max()
        assert change > 1e-6, f"{key}: {change}"


def shuffled(arrays, weight_map):
    """Yields each key and our weights that change when its values are
    permuted. The permuted weights, converted back, equal the permuted array,
    so that the unused values of an array are included."""
    random = np.random.default_rng(0)
    for key, array in arrays.items():
        other = random.permutation(array.reshape(-1)).reshape(array.shape)
        assert other.tobytes() != array.tobytes(), f"{key} is constant"
        moved = from_checkpoint({key: other}, weight_map, heads=3)
        back = to_checkpoint(moved, weight_map, heads=3)
        golden_data.assert_same(back, {key: other})
        yield key, moved


def _is_in(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
