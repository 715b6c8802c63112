"""big_vision's `pool_type="0"`: the head takes the first patch, which cannot
be inferred from the arrays of a file."""

import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import convert as _cli
from keras_vit.converters import load
from keras_vit.converters import save
from keras_vit.models import weights_by_path
from tests import reference

pytestmark = pytest.mark.backends("torch")

TOLERANCE = 3e-5


def build(**arguments):
    model = keras_vit.VisionTransformer(
        **{
            "patch_size": 4,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "mlp_dim": 32,
            "input_shape": (12, 12, 3),
            "classes": 5,
            "pooling": "first_patch",
            **arguments,
        }
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


def images():
    sample = np.random.default_rng(1).uniform
    return sample(-1, 1, (2, 12, 12, 3)).astype("float32")


def run(model):
    return keras.ops.convert_to_numpy(model(images(), training=False))


@pytest.mark.backends("jax", "tensorflow", "torch")
@pytest.mark.parametrize("options", [{}, {"class_token": True}])
def test_first_patch_pooling_matches_the_reference(options, record_error):
    model = build(**options)
    weights = {
        path: keras.ops.convert_to_numpy(variable)
        for path, variable in weights_by_path(model).items()
    }
    assert ("class_token/tokens" in weights) == bool(options)
    expected = reference.vision_transformer(images(), weights, "first_patch")
    error = np.abs(run(model) - expected).max()
    record_error("first patch", str(options), error, TOLERANCE)


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
def test_keras_files_store_first_patch_pooling(name, tmp_path):
    model = build()
    save(model, tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(tmp_path / name)
    assert again.get_layer("pooling").mode == "first_patch"
    np.testing.assert_array_equal(run(again), run(model))


def test_big_vision_file_loads_with_explicit_pooling(tmp_path):
    model, path = build(), tmp_path / "a.npz"
    with pytest.warns(UserWarning, match="does not store that its head takes"):
        save(model, path, "big_vision")
    for read in (
        load(path, pooling="first_patch"),
        keras_vit.VisionTransformer(weights=path, pooling="first_patch"),
    ):
        np.testing.assert_array_equal(run(read), run(model))
    # A head that was read for another number of classes is new all the same.
    fresh = load(path, pooling="first_patch", classes=3)
    assert not run(fresh).any()


def test_ambiguous_pooling_warns_when_loading(tmp_path, capsys):
    path = tmp_path / "a.npz"
    save(build(pooling="gap"), path, "big_vision")
    with pytest.warns(UserWarning, match='Give `pooling="gap"` if') as found:
        model = load(path)
    assert found[0].filename == __file__
    assert model.get_layer("pooling").mode == "gap"
    load(path, pooling="gap")  # without a warning
    assert _cli.main([str(path), "--inspect"]) == 0
    assert "pooling: 'gap', the mean" in capsys.readouterr().out
    options = ["--inspect", "--set", "pooling=first_patch"]
    assert _cli.main([str(path), *options]) == 0
    assert "ambiguous" not in capsys.readouterr().out


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "layout", ["vit_jax", "timm", "mae", "huggingface", "torchvision"]
)
def test_other_layouts_refuse_first_patch_pooling(layout, tmp_path):
    with pytest.raises(ValueError, match="pooling='first_patch'"):
        save(build(class_token=True), tmp_path / "a.safetensors", layout)


def test_weights_file_keeps_the_head(tmp_path, capsys):
    """Keras's `save_weights` does not store the pooling."""
    arguments = {
        "input_shape": (16, 16, 3),
        "patch_size": 8,
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "classes": 3,
        "pooling": "first_patch",
        "class_token": False,
    }
    model = keras_vit.VisionTransformer(**arguments)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.weights])
    path = tmp_path / "m.weights.h5"
    model.save_weights(path)
    constants = {
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-6,
        "resampling": "bilinear_align_corners",
    }
    again = keras_vit.VisionTransformer(
        **arguments, weights=str(path), **constants
    )
    for found, expected in zip(
        again.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    with pytest.warns(UserWarning, match='Give `pooling="gap"` if') as warned:
        guessed = load(path, **constants)
    assert warned[0].filename == __file__
    assert guessed.get_layer("pooling").mode == "gap"
    assert _cli.main([str(path), "--inspect"]) == 0
    assert "pooling: 'gap', the mean" in capsys.readouterr().out
    load(path, **constants, pooling="gap")  # without a warning
