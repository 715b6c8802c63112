"""Files that earlier versions wrote load with the same paths and outputs."""

import warnings
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
import keras_vit.training  # registers the optimizers of the compiled models
from tests.saved import make

# Written under PyTorch: its own outputs are reproduced to 1e-6. The products
# of other backends are summed in another order.
TOLERANCE = {"torch": 1e-6, "jax": 1e-5, "tensorflow": 1e-5}
# Outputs of up to 5, which differed by 2.3e-6 with another number of free threads.
EOMT = 5e-6
COMPILED = ("compiled_sgd", "compiled_adamw")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with zipfile.ZipFile(make.ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    with np.load(folder / "expected.npz") as arrays:
        return dict(arrays)


def check(model, name, expected, tolerance=0):
    tolerance = max(tolerance, TOLERANCE[keras.config.backend()])
    tolerance = max(tolerance, EOMT) if name == "eomt" else tolerance
    assert [w.path for w in model.weights] == list(expected[f"{name}/paths"])
    np.testing.assert_allclose(
        make.outputs(model),
        expected[f"{name}/output"],
        rtol=0,
        atol=tolerance,
    )


@pytest.mark.parametrize("name", [*make.MODELS, *make.PRETRAINING, *COMPILED])
def test_keras_files_load(name, folder, expected):
    model = keras.saving.load_model(folder / f"{name}.keras")
    check(model, name, expected)
    built = {**make.MODELS, **make.PRETRAINING}.get(name, make.vit)()
    configs = [getattr(x, "encoder", x).config for x in (model, built)]
    assert configs[0] == configs[1]
    if name in COMPILED:
        # One step was taken; `iterations`, the learning rate and the moments.
        assert int(model.optimizer.iterations) == 1
        moments = [v for v in model.optimizer.variables if v.ndim > 0]
        assert all(np.any(keras.ops.convert_to_numpy(v)) for v in moments[:2])


@pytest.mark.parametrize("name", [*sorted(make.MODELS.keys() - {"text"}), *COMPILED])
def test_models_for_images_load_without_the_state_of_an_optimizer(
    name, folder, expected
):
    checkpoint = keras_vit.converters.open_checkpoint(folder / f"{name}.keras")
    model = keras_vit.converters.load_for_images(checkpoint)
    check(model, name, expected)
    if name in COMPILED:
        assert int(model.optimizer.iterations) == 0


def test_int8_file_loads(folder, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = keras.saving.load_model(folder / "int8.keras")
    # One step of an int8 activation is a hundredth of its range.
    check(model, "int8", expected, 1e-3)


@pytest.mark.parametrize("name", [*make.MODELS, *make.PRETRAINING])
def test_weights_files_load(name, folder, expected):
    model = {**make.MODELS, **make.PRETRAINING}[name]()
    model.load_weights(folder / f"{name}.weights.h5")
    check(model, name, expected)


@pytest.mark.parametrize("name", make.NPZ)
def test_npz_files_load(name, folder, expected):
    shape = make.MODELS[name]().input_shape[1:]
    model = keras_vit.converters.load(
        folder / f"{name}.npz", input_shape=shape, num_heads=2
    )
    check(model, name, expected)


def test_features_of_older_files(folder):
    model = keras.saving.load_model(folder / "vit.keras")
    x = make.images(model.input_shape[1:])
    tokens = keras_vit.feature_extractor(model, "encoder_norm")(x)
    assert tuple(tokens.shape) == (2, 7, 16)
    maps = keras_vit.dense_features(model)(x)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(maps).reshape(2, 6, 16),
        keras.ops.convert_to_numpy(tokens)[:, 1:],
        atol=1e-5,
    )
    fast = keras_vit.models.inference_model(model)
    np.testing.assert_allclose(make.outputs(fast), make.outputs(model), 0, 1e-6)
    encoder = keras.saving.load_model(folder / "vit_no_top.keras")
    model = keras_vit.pretraining.MaskedImageModeling(encoder, seed=1)
    assert model.encoder is encoder
