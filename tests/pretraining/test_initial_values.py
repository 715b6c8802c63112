"""Initial values of each method, which are those of the original codes."""

import numpy as np
import pytest

from keras_vit import pretraining
from keras_vit.models.assigning import weights_by_path
from keras_vit_programs.label_free import initialize
from tests.harness import numpy
from tests.pretraining import small

pytestmark = pytest.mark.suite("torch")
WIDTH, MLP, DECODER, PATCH = 96, 192, 64, 48
# (largest value or None, standard deviation) of SimMIM's truncation; those of
# its block 1 are divided by sqrt(2 * 2).
CUT, SECOND = (0.02, 0.02 * 0.53956), (0.01, 0.01 * 0.53956)
NORMAL = (None, 0.02)
ZERO = (0, 0)


def uniform(bound):
    return bound, bound / 3**0.5


def glorot(inputs, outputs):
    return uniform((6 / (inputs + outputs)) ** 0.5)


# models_mae.py `initialize_weights`; models/simmim.py and
# vision_transformer.py `_init_weights` and `fix_init_weight`; PyTorch's default
# for convolutions in SimMIM's decoder and in DINO's patch embedding; vits.py of
# moco-v3.
EXPECTED = {
    "mae": {
        "patch_embedding/kernel": glorot(PATCH, WIDTH),
        "block_1/attention/query/kernel": glorot(WIDTH, 3 * WIDTH),
        "block_1/attention/value/kernel": glorot(WIDTH, 3 * WIDTH),
        "block_1/attention/attention_output/kernel": glorot(WIDTH, WIDTH),
        "block_1/mlp/dense_1/kernel": glorot(WIDTH, MLP),
        "decoder/block_0/mlp/dense_2/kernel": glorot(4 * DECODER, DECODER),
        "decoder/block_0/attention/key/kernel": glorot(DECODER, 3 * DECODER),
        "decoder/embedding/kernel": glorot(WIDTH, DECODER),
        "decoder/prediction/kernel": glorot(DECODER, PATCH),
        "class_token/tokens": NORMAL,
        "decoder/mask_token/tokens": NORMAL,
        "block_1/mlp/dense_1/bias": ZERO,
        "decoder/block_0/mlp/dense_2/bias": ZERO,
    },
    "simmim": {
        "patch_embedding/kernel": CUT,
        "block_1/attention/query/kernel": CUT,
        "block_1/mlp/dense_1/kernel": CUT,
        "block_1/attention/attention_output/kernel": SECOND,
        "block_1/mlp/dense_2/kernel": SECOND,
        "class_token/tokens": CUT,
        "mask_token/tokens": CUT,
        "block_1/mlp/dense_1/bias": ZERO,
        "decoder/pixels/kernel": uniform(WIDTH**-0.5),
        "decoder/pixels/bias": uniform(WIDTH**-0.5),
    },
    "dino": {
        "patch_embedding/kernel": uniform(PATCH**-0.5),
        "patch_embedding/bias": uniform(PATCH**-0.5),
        "block_1/attention/query/kernel": NORMAL,
        "block_1/mlp/dense_2/kernel": NORMAL,
        "class_token/tokens": NORMAL,
        "position_embedding/embedding": NORMAL,
        "block_1/mlp/dense_1/bias": ZERO,
    },
    "moco": {
        "patch_embedding/kernel": glorot(PATCH, WIDTH),
        "block_1/attention/key/kernel": glorot(WIDTH, WIDTH),
        "block_1/attention/attention_output/kernel": glorot(WIDTH, WIDTH),
        "block_1/mlp/dense_2/kernel": glorot(WIDTH, MLP),
        "class_token/tokens": (None, 1e-6),
        "block_1/mlp/dense_1/bias": ZERO,
    },
}


def initial_values(method, seed=0):
    encoder = small.encoder(hidden_size=WIDTH, mlp_dim=MLP)
    decoder = {**small.DECODER, "decoder_hidden_size": DECODER}
    if method == "mae":
        model = pretraining.MaskedAutoencoder(encoder, **decoder)
        variables = model.variables_by_path()
    elif method == "simmim":
        model = pretraining.MaskedImageModeling(encoder)
        variables = model.variables_by_path()
    else:
        variables = weights_by_path(encoder)
    initialize(variables, method, seed)
    return {path: numpy(variable) for path, variable in variables.items()}


@pytest.mark.parametrize("method", EXPECTED)
def test_initial_values_match_the_original(method):
    values = initial_values(method)
    for path, (largest, deviation) in EXPECTED[method].items():
        value = values[path]
        tolerance = 0.02 + 4 / (2 * value.size) ** 0.5
        assert value.std() == pytest.approx(deviation, rel=tolerance), path
        assert abs(value.mean()) <= 5 * deviation / value.size**0.5, path
        if largest is not None:
            assert 0.9 * largest <= np.abs(value).max() <= largest * 1.0001
        elif value.size > 1000:
            assert np.abs(value).max() > 3 * deviation  # not truncated at 2
    for path, value in values.items():
        kind = path.rpartition("/")[2]
        if kind == "gamma":
            np.testing.assert_array_equal(value, 1, path)
        elif kind in ("beta", "bias") and not path.startswith(
            ("patch_embedding/", "decoder/pixels/")
        ):
            np.testing.assert_array_equal(value, 0, path)
    # The seed determines them.
    path = "block_1/mlp/dense_1/kernel"
    again, other = (initial_values(method, seed)[path] for seed in (0, 2))
    np.testing.assert_array_equal(values[path], again)
    assert np.abs(values[path] - other).max() > 0.01
