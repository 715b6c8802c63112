"""Loading weights: exact, adapted to other sizes on request, strict."""

import itertools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.converters import Checkpoint
from keras_vit.layers.resampling import resample_embedding
from keras_vit.models.assigning import adapt_channels, load_weights, weights_by_path
from keras_vit.weights.weight_map import WeightMap
from tests import golden_data
from tests.harness import numpy
from tests.small import vit

pytestmark = pytest.mark.backends("torch")

TOKEN = golden_data.folder("vit_jax_token") / "weights.npz"
GAP = golden_data.folder("vit_jax_gap") / "weights.npz"
SIZES = {
    "patch_size": 8,
    "hidden_size": 48,
    "num_layers": 3,
    "num_heads": 3,
    "mlp_dim": 96,
}


def build(weights, **arguments):
    return keras_vit.VisionTransformer(weights=weights, **{**SIZES, **arguments})


def weights_of(model):
    return {w.path: numpy(w) for w in model.weights}


def assert_same_body(model, arrays, but=()):
    for name, key in (
        ("patch_embedding/kernel", "embedding/kernel"),
        ("class_token/tokens", "cls"),
        ("encoder_norm/gamma", "Transformer/encoder_norm/scale"),
        (
            "position_embedding/embedding",
            "Transformer/posembed_input/pos_embedding",
        ),
        (
            "block_2/mlp/dense_2/kernel",
            "Transformer/encoderblock_2/MlpBlock_3/Dense_1/kernel",
        ),
    ):
        if name not in but:
            np.testing.assert_array_equal(weights_of(model)[name], arrays[key])


@pytest.fixture
def arrays():
    return golden_data.arrays("vit_jax_token")


def edited(arrays, tmp_path, **changes):
    """A file with arrays changed, added, or (None) taken out."""
    arrays = {**arrays, **{k.replace("__", "/"): v for k, v in changes.items()}}
    path = tmp_path / "edited.npz"
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        *itertools.product(["gap", "token", None], ["a.keras", "a.safetensors"]),
        # transformers has only the class token
        *[("token", "folder"), (None, "folder")],
    ],
)
def test_classes_give_an_encoder_a_zero_head(pooling, name, tmp_path):
    """Encoders have no head; `classes` once had no effect on them."""
    encoder = vit(
        include_top=False,
        pooling=pooling,
        activation="gelu",
        class_token=pooling != "gap",
    )
    format = {"a.safetensors": "timm", "folder": "huggingface"}.get(name)
    keras_vit.converters.save(encoder, tmp_path / name, format=format)
    given = {"num_heads": 2, "activation": "gelu"}
    model = keras_vit.converters.load(tmp_path / name, **given, classes=5)
    head = model.get_layer("head")
    assert model.output.shape == (None, 5)
    assert not np.any(head.get_weights()[0])
    pooled = model.get_layer("pooling").mode
    assert pooled == (pooling or "token")
    same = keras_vit.converters.load(tmp_path / name, **given)
    assert same.get_layer("block_0").output.shape[-1] == 16
    assert "head" not in [layer.name for layer in same.layers]


@pytest.mark.parametrize("size", [(48, 48), (40, 64), (16, 24)])
def test_other_image_size_resamples_the_positions(arrays, size):
    model = build(TOKEN, input_shape=(*size, 3))
    embedding = "position_embedding/embedding"
    assert_same_body(model, arrays, but=[embedding])
    stored = arrays["Transformer/posembed_input/pos_embedding"]
    grid = (size[0] // 8, size[1] // 8)
    np.testing.assert_array_equal(
        weights_of(model)[embedding],
        resample_embedding(stored, (4, 4), grid, "bilinear_align_corners", 1),
    )
    # The same as resampling while the model runs.
    x = np.random.default_rng(0).uniform(-1, 1, (1, *size, 3))
    any_size = build(TOKEN, input_shape=(None, None, 3))
    np.testing.assert_allclose(
        model.predict(x, verbose=0), any_size.predict(x, verbose=0), atol=3e-5
    )


def test_gray_model_matches_the_color_model():
    gray = build(TOKEN, input_shape=(32, 32, 1))
    color = build(TOKEN)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 1))
    np.testing.assert_allclose(
        gray.predict(x, verbose=0),
        color.predict(np.repeat(x, 3, axis=-1), verbose=0),
        atol=3e-5,
    )


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 13])
def test_channel_adaptation_keeps_the_response_scale(channels):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(2, 2, 3, 4)).astype("float32")
    found = adapt_channels(kernel, channels)
    assert found.shape == (2, 2, channels, 4) and found.dtype == np.float32
    if channels % 3 == 0 or channels == 1:
        np.testing.assert_allclose(found.sum(2), kernel.sum(2), atol=1e-5)
    assert build(TOKEN, input_shape=(32, 32, channels)).count_params()


def test_head_is_dropped_with_its_pre_logits(tmp_path):
    """The paper's ImageNet-21k files have pre_logits as wide as the model:
    the head would fit by shape and read what it was not trained on."""
    arrays = golden_data.arrays("vit_jax_token")
    path = edited(
        arrays,
        tmp_path,
        pre_logits__kernel=np.eye(48, dtype="float32"),
        pre_logits__bias=np.zeros(48, "float32"),
    )
    dropped = build(path)
    assert "pre_logits/kernel" not in weights_of(dropped)
    assert not weights_of(dropped)["head/kernel"].any()
    kept = build(path, representation_size=48)
    assert weights_of(kept)["head/kernel"].any()


def test_pooling_follows_the_class_token():
    model = build(GAP, input_shape=(32, 48, 3))
    assert "class_token/tokens" not in weights_of(model)
    assert model.get_layer("pooling").mode == "gap"
    # The mean of the patches is there for a file with a class token too.
    model = build(TOKEN, pooling="gap")
    assert "class_token/tokens" in weights_of(model)
    assert model.get_layer("pooling").num_prefix_tokens == 1


def test_non_square_grid_must_be_given():
    with pytest.raises(ValueError, match="24 positions, .* = 24 .*`converters.load`"):
        build(GAP)
    model = build(GAP, grid_size=(4, 6), input_shape=(None, None, 3))
    assert model.get_layer("position_embedding").built_grid == (4, 6)
    assert model.input_shape == (None, None, None, 3)
    with pytest.raises(ValueError, match="24 positions.*grid_size"):
        build(GAP, input_shape=(32, 32, 3))
    model = build(GAP, input_shape=(32, 32, 3), grid_size=(4, 6))
    assert model.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape == (1, 7)


@pytest.fixture
def square(tmp_path):
    """A file of 4 x 4 positions, which 2 x 8 patches would fit by number."""
    path = tmp_path / "square.npz"
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(32, 32, 3))
    keras_vit.converters.save(model, path)
    return path


def test_ambiguous_grid_shape_raises(square):
    with pytest.raises(ValueError, match=r"4 x 4.*2 x 8.*grid_size=\(4, 4\)"):
        build(square, input_shape=(16, 64, 3))
    model = build(square, input_shape=(16, 64, 3), grid_size=(4, 4))
    assert model.get_layer("position_embedding").built_grid == (4, 4)
    model = build(square, input_shape=(16, 64, 3), grid_size=(2, 8))
    assert model.get_layer("position_embedding").built_grid == (2, 8)
    assert build(square, input_shape=(16, 80, 3)).count_params()


def test_a_position_of_the_class_token_is_found_in_files_of_big_vision(tmp_path):
    path = tmp_path / "big_vision.npz"
    model = keras_vit.load(golden_data.weights_path("vit_jax_token"))
    keras_vit.save(model, path, "big_vision")
    again = keras_vit.load(path)
    assert keras_vit.config_of(again).position_prefix == "all"
    for name, array in weights_of(model).items():
        np.testing.assert_array_equal(weights_of(again)[name], array)


def test_other_pooling_gives_a_zero_head():
    """The head was trained on the class token."""
    model = build(TOKEN, pooling="gap")
    assert not weights_of(model)["head/kernel"].any()
    assert weights_of(build(TOKEN, pooling="token"))["head/kernel"].any()


@pytest.mark.parametrize(
    "case, changes",
    [
        ("vit_jax_token", {"head__kernel": None}),
        ("vit_jax_token", {"head__bias": np.zeros(9, "float32")}),
        ("vit_jax_token", {"head__kernel": np.zeros((7, 48), "float32")}),
        ("vit_jax_token", {"head__kernel": np.zeros((24, 7), "float32")}),
        ("vit_jax_token_prelogits", {"pre_logits__kernel": None}),
        ("vit_jax_token_prelogits", {"pre_logits__bias": None}),
    ],
)
def test_incomplete_head_raises(case, changes, tmp_path):
    path = edited(golden_data.arrays(case), tmp_path, **changes)
    patch = {"patch_size": 16} if "prelogits" in case else {}
    for classes in (7, 5):
        with pytest.raises(ValueError, match="(head|pre_logits)/(ker|bias)"):
            build(path, classes=classes, **patch)


def test_layers_before_input_tensor_are_not_loaded(arrays):
    inputs = keras.Input((32, 32, 5))
    x = keras.layers.Conv2D(3, 1)(inputs)
    model = build(TOKEN, input_tensor=x)
    assert model.input_shape == (None, 32, 32, 5)
    np.testing.assert_array_equal(
        numpy(model.get_layer("head").kernel), arrays["head/kernel"]
    )


def test_save_refuses_wrong_targets(tmp_path):
    model = build(TOKEN)
    path = tmp_path / "model.npz"
    keras_vit.converters.save(model, path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        keras_vit.converters.save(model, path)
    keras_vit.converters.save(build(TOKEN, classes=2), path, overwrite=True)
    assert path.read_bytes() != before
    with pytest.raises(ValueError, match="must end in .npz"):
        keras_vit.converters.save(model, tmp_path / "model.h5")
    with pytest.raises(ValueError, match="`format` must be one of 'vit_jax'"):
        keras_vit.converters.save(model, tmp_path / "b.npz", format="onnx")
    registers = keras_vit.VisionTransformer(num_registers=2, **SIZES)
    with pytest.raises(ValueError, match="no place for:\n  register_tokens"):
        keras_vit.converters.save(registers, tmp_path / "c.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]


class TestStrict:
    def test_error_lists_every_mismatch(self, arrays, tmp_path):
        path = edited(
            arrays,
            tmp_path,
            Transformer__encoder_norm__scale=None,
            Transformer__encoder_norm__bias=np.zeros(47, "float32"),
            embedding__bias=np.zeros((48, 1), "float32"),
        )
        with pytest.raises(ValueError) as error:
            build(path)
        message = str(error.value)
        assert "edited.npz" in message
        assert "missing from the file:\n  Transformer/encoder_norm/scale\n" in (message)
        assert "encoder_norm/bias: (47,) in the file, (48,) in the" in message
        assert "embedding/bias: (48, 1) in the file, (48,) in the" in message

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"num_layers": 2}, "no place for:\n  Transf"),
            ({"num_layers": 4}, "missing from the file"),
            ({"hidden_size": 192}, r"\(48,\) in the file, \(192,\)"),
        ],
    )
    def test_arguments_of_another_model_raise(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            build(**{"weights": TOKEN, **arguments})

    @pytest.mark.parametrize("format", [None, "timm"])
    def test_position_embeddings_of_another_kind_raise(self, format, tmp_path):
        """The keys of timm's rotary models are those of DeiT III without its
        position embeddings."""
        arrays = golden_data.arrays("timm_base")
        del arrays["pos_embed"]
        arrays["blocks.0.gamma_1"] = np.ones(48, "float32")
        path = edited(arrays, tmp_path)
        with pytest.raises(ValueError, match="timm:deit3.*\n.*missing:\n  pos_e"):
            keras_vit.converters.load(path, format, num_heads=3)

    def test_attention_pooling_of_another_width_raises(self, tmp_path):
        arrays = golden_data.arrays("timm_map")
        for key in [key for key in arrays if "attn_pool.mlp.fc" in key]:
            axis = int(key.endswith("fc2.weight"))
            if not key.endswith("fc2.bias"):
                arrays[key] = arrays[key].take(range(8), axis)
        path = edited(arrays, tmp_path)
        with pytest.raises(ValueError, match=r"fc1.bias: \(8,\) in the file, \(96,\)"):
            keras_vit.converters.load(path, num_heads=3, activation="gelu")
        model = keras_vit.converters.load(
            path, num_heads=3, activation="gelu", include_top=False, pooling=None
        )
        assert model.output_shape == (None, 16, 48)

    def test_weights_of_another_model_raise(self, tmp_path):
        path = tmp_path / "other.npz"
        np.savez(path, **{"head/bias": np.zeros(7, "float32")})
        with pytest.raises(ValueError, match="not the weights of a Vision"):
            build(path)

    def test_missing_head_without_classes_raises(self, arrays, tmp_path):
        path = edited(arrays, tmp_path, head__kernel=None, head__bias=None)
        with pytest.raises(ValueError, match="no classification head"):
            build(path)
        assert build(path, classes=4).output_shape == (None, 4)
        body = keras_vit.converters.load(path)
        assert body.output_shape == (None, 17, 48)


def test_half_precision_file_loads(arrays, tmp_path):
    path = tmp_path / "half.npz"
    np.savez(path, **{k: v.astype("float16") for k, v in arrays.items()})
    model = build(path)
    assert {w.dtype for w in model.weights} == {"float32"}


@pytest.mark.backends("jax", "tensorflow", "torch")
def test_loading_under_mixed_precision(arrays):
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert_same_body(build(TOKEN), arrays)


@pytest.mark.backends("torch")
def test_positions_that_cannot_be_resampled_raise():
    """A class token and 3 x 5 patches have the shape of 4 x 4 patches."""
    model = keras_vit.VisionTransformer(**SIZES, classes=5, input_shape=(24, 40, 3))
    weights = {
        path: numpy(variable) for path, variable in weights_by_path(model).items()
    }
    checkpoint = Checkpoint("a.npz", "keras", WeightMap("", {}, ()), weights, {})
    other = keras_vit.VisionTransformer(
        **SIZES, classes=5, input_shape=(32, 32, 3), position_prefix="none"
    )
    before = numpy(other.get_layer("position_embedding").embedding)
    assert before.shape == weights["position_embedding/embedding"].shape
    with pytest.raises(ValueError, match="cannot be fitted.*\n.*size 768"):
        load_weights(other, checkpoint, grid=(3, 5))
    after = numpy(other.get_layer("position_embedding").embedding)
    np.testing.assert_array_equal(after, before)
