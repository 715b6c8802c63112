"""Reading and writing `.keras` and `.weights.h5`."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, open_checkpoint, save
from keras_vit.models.assigning import weights_by_path
from keras_vit_programs import convert as _cli
from tests.small import OPTIONS, randomize

pytestmark = pytest.mark.backends("torch")

SIZES = {
    "patch_size": 8,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "input_shape": (16, 32, 3),
    "classes": 3,
}
MODELS = {
    **OPTIONS,
    "any size": {"input_shape": (None, None, 3), "grid_size": (2, 8)},
}


def build(name):
    # Positions of every layer need two.
    layers = 2 if "every" in str(MODELS[name]) else 1
    sizes = {**SIZES, "num_layers": layers}
    model = keras_vit.VisionTransformer(**{**sizes, **MODELS[name]})
    randomize(model, 0.3)
    return model


def assert_same(model, expected):
    weights, wanted = weights_by_path(model), weights_by_path(expected)
    assert weights.keys() == wanted.keys()
    images = np.random.default_rng(1).uniform(-1, 1, (2, 16, 32, 3))
    images = images.astype("float32")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(model(images)),
        keras.ops.convert_to_numpy(expected(images)),
    )
    assert model.input_shape == expected.input_shape


# Each has layers that the others have not.
ON_ALL = ("all options", "distilled", "two axes", "relative shared", "rotary")
EVERY_BACKEND = pytest.mark.backends("jax", "tensorflow", "torch")


@pytest.mark.slow
@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.parametrize(
    "name, ending",
    [
        *(pytest.param(x, ".keras", marks=EVERY_BACKEND) for x in ON_ALL),
        *((name, ".keras") for name in MODELS if name not in ON_ALL),
        pytest.param("all options", ".weights.h5", marks=EVERY_BACKEND),
        *((name, ".weights.h5") for name in MODELS if name != "all options"),
    ],
)
def test_save_and_load_round_trip(name, ending, tmp_path):
    model, path = build(name), tmp_path / f"model{ending}"
    save(model, path)
    assert_same(load(path), model)
    # The same, rebuilt without Keras's config.
    assert_same(load(path, name="another"), model)
    if ending == ".keras":
        return
    # Keras reads the file, and what Keras writes is read.
    other = build(name)
    for variable in other.weights:
        variable.assign(np.zeros(variable.shape))
    other.load_weights(path)
    assert_same(other, model)
    bare = tmp_path / "bare.weights.h5"
    model.save_weights(bare)
    found = open_checkpoint(bare).weights
    wanted = weights_by_path(model)
    assert found.keys() == wanted.keys()
    for key, variable in wanted.items():
        value = keras.ops.convert_to_numpy(variable)
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def test_trained_model_with_optimizer_is_read(tmp_path):
    model = build("distilled")
    model.compile("adam", "mse")
    model.fit(np.zeros((2, 16, 32, 3)), np.zeros((2, 3)), verbose=0)
    model.save(tmp_path / "model.keras")
    assert_same(load(tmp_path / "model.keras"), model)
    _cli.convert(tmp_path / "model.keras", tmp_path / "m.pth", to="timm")


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_bfloat16_is_preserved(tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    model = build("plain")
    for ending in (".keras", ".weights.h5"):
        path = tmp_path / f"model{ending}"
        save(model, path)
        found = open_checkpoint(path).weights["block_0/mlp/dense_1/kernel"]
        wanted = weights_by_path(model)["block_0/mlp/dense_1/kernel"]
        assert str(found.dtype) == "bfloat16"
        wanted = keras.ops.convert_to_numpy(wanted).astype("float32")
        np.testing.assert_array_equal(found.astype("float32"), wanted)


def test_bare_weights_need_a_format_or_constants(tmp_path):
    model = keras_vit.VisionTransformer(**SIZES)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    with pytest.raises(ValueError, match="does not store activation, norm_ep"):
        load(path)
    with pytest.raises(ValueError, match="does not store activation, norm_ep"):
        _cli.convert(path, tmp_path / "a.npz", to="vit_jax")
    assert_same(load(path, "vit_jax"), model)
    constants = {"activation": "gelu_tanh", "norm_epsilon": 1e-6}
    constants["resampling"] = "bilinear_align_corners"
    assert_same(load(path, **constants), model)
    block = load(path, "timm").get_layer("block_0")
    assert block.activation == "gelu"

    # The functions that build models ask, too.
    def build(**arguments):
        return keras_vit.VisionTransformer(
            weights=path, input_shape=(16, 32, 3), **arguments
        )

    with pytest.raises(ValueError, match="store norm_epsilon, resampling.*`format`"):
        build(activation="gelu_tanh", norm_epsilon=None)
    assert_same(build(**constants), model)
    # A variant has its own defaults, and its sizes are checked.
    with pytest.raises(ValueError, match="does not fit the model"):
        keras_vit.ViTTi16(weights=path, input_shape=(32, 32, 3), **constants)


def test_bare_resnet_weights_need_a_format_or_constants(tmp_path):
    path = tmp_path / "model.weights.h5"
    sizes = {"resnet_layers": (1,), "width_factor": 0.5, "classes": 3}
    keras_vit.BiT(**sizes, input_shape=(32, 32, 3)).save_weights(path)
    constants = "group_norm_epsilon, std_epsilon, std_epsilon_place, conv_pad"
    for function in (load, lambda path: keras_vit.BiT(weights=path)):
        with pytest.raises(ValueError, match=f"does not store {constants}"):
            function(path)
    keras_vit.BiT(weights=open_checkpoint(path, "bit"))
    sizes |= {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    hybrid = keras_vit.HybridVisionTransformer(
        **sizes, patch_size=1, input_shape=(32, 32, 3)
    )
    hybrid.save_weights(path)
    constants = f"activation, norm_epsilon, resampling, {constants}"
    with pytest.raises(ValueError, match=f"does not store {constants}"):
        keras_vit.HybridVisionTransformer(weights=path)
    keras_vit.HybridVisionTransformer(weights=open_checkpoint(path, "vit_jax"))


@pytest.mark.parametrize("positions", ["sincos2d", "none"])
def test_fixed_positions_must_be_given(positions, tmp_path):
    arguments = {**SIZES, "position_embedding": positions}
    model = keras_vit.VisionTransformer(**arguments)
    model.get_layer("head").kernel.assign(np.ones((16, 3)))
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    for function in (
        functools.partial(load, path, "vit_jax"),
        functools.partial(
            keras_vit.VisionTransformer,
            weights=open_checkpoint(path, "vit_jax"),
        ),
    ):
        with pytest.raises(ValueError, match="not store position_embedding"):
            function(input_shape=(16, 32, 3))
        again = function(input_shape=(16, 32, 3), position_embedding=positions)
        assert_same(again, model)
    save(model, path, overwrite=True)
    assert_same(load(path), model)


def test_overrides_apply_to_keras_files(tmp_path):
    path = tmp_path / "model.keras"
    save(build("all options"), path)
    model = load(path, classes=5, input_shape=(32, 32, 3))
    assert model.output_shape == (None, 5)
    assert model.get_layer("head").activation.__name__ == "softmax"
    target = tmp_path / "five.keras"
    _cli.convert(path, target, settings={"classes": 5})
    assert load(target).output_shape == (None, 5)
    with pytest.raises(ValueError, match="copy it, or give the arg"):
        _cli.convert(path, tmp_path / "b.keras")
    with pytest.raises(ValueError, match="leave out --to and --dtype"):
        _cli.convert(path, tmp_path / "b.weights.h5", dtype="float16")
    with pytest.raises(ValueError, match="Leave out format='timm'"):
        load(path, "timm")
    with pytest.raises(ValueError, match=".keras files have no format"):
        save(model, tmp_path / "c.keras", format="timm")
    with pytest.raises(ValueError, match="which has no format.*--to"):
        _cli.convert(path, tmp_path / "c.npz")


def test_ambiguous_grid_warns(tmp_path):
    model = build("any size")  # 2 x 8
    path = tmp_path / "model.npz"
    message = r"2 x 8; readers will take 4 x"
    with pytest.warns(UserWarning, match=message) as caught:
        save(model, path)
    assert __file__ in {warning.filename for warning in caught}
    assert load(path).input_shape == (None, 32, 32, 3)
    assert load(path, grid_size=(2, 8)).input_shape == (None, 16, 64, 3)
    save(model, tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=r"grid_size=\(2, 8\)"):
        _cli.convert(tmp_path / "model.keras", tmp_path / "a.pth", to="vit_jax")
    with pytest.raises(ValueError, match=r"grid_size=\(2, 8\)"):
        save(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_model_of_another_package_is_refused(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    for ending in (".keras", ".weights.h5"):
        with pytest.raises(ValueError, match="was not made by keras_vit"):
            save(model, tmp_path / f"a{ending}")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        with pytest.raises(ValueError, match="not made by keras_vit.*`save_to_preset`"):
            load(tmp_path / name)
