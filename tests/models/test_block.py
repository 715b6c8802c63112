"""Models whose blocks are of another class: `block`."""

import doctest
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, open_checkpoint, save
from keras_vit_programs import convert as command
from tests.harness import copies, numpy
from tests.small import hybrid, images, last_differs, randomize, tiny

pytestmark = pytest.mark.usefixtures("eager")


@keras.saving.register_keras_serializable("test_block")
class RMSNormBlock(keras_vit.layers.TransformerBlock):
    """A block with other weights: its norms have a scale and no offset."""

    def make_norm(self, name):
        return keras.layers.RMSNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )


@keras.saving.register_keras_serializable("test_block")
class GroupedBlock(RMSNormBlock):
    """The example in `TransformerBlock`'s docstring."""

    def make_attention(self, name):
        return keras.layers.GroupQueryAttention(
            head_dim=4,
            num_query_heads=self.num_heads,
            num_key_value_heads=self.num_heads // 3,
            dtype=self.dtype_policy,
            name=name,
        )


class ScaledBlock(keras_vit.layers.TransformerBlock):
    """An unregistered block with the weights of `TransformerBlock` and an
    additional argument."""

    def __init__(self, *args, scale=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def call(self, inputs, relative=None, num_queries=None, training=False, mask=None):
        x = inputs * self.scale
        return super().call(x, relative, num_queries, training, mask)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


def half(*args, **kwargs):
    return ScaledBlock(*args, scale=0.5, **kwargs)


@pytest.mark.slow
@pytest.mark.suite("torch")
@pytest.mark.parametrize(
    "build, cls, options",
    [
        (tiny, GroupedBlock, {"remat": True}),
        (hybrid, RMSNormBlock, {"pooling": "map"}),
    ],
)
def test_model_with_custom_blocks_is_copied_and_trained(build, cls, options, tmp_path):
    model = build(block=cls, norm_epsilon=1e-3, **options)
    randomize(model)
    x = images(2, *model.input_shape[1:])
    before = model.predict(x, verbose=0)
    block = model.get_layer("block_0")
    assert type(block) is cls and block.norm_epsilon == 1e-3
    for norm in (block.norm_1, block.norm_2):
        assert [w.name for w in norm.weights] == ["scale"]
    is_grouped = type(block.attention) is keras.layers.GroupQueryAttention
    assert is_grouped == (cls is GroupedBlock)
    names = {w.path.split("/")[1] for w in block.weights}
    assert names == {"norm_1", "attention", "norm_2", "mlp"}
    tokens = numpy(keras_vit.feature_extractor(model, "encoder_norm")(x))
    assert tokens.ndim == 3

    found = copies(model, tmp_path)
    if cls is RMSNormBlock:  # it does not read other kernels of attention
        found["converters.load"] = load(tmp_path / "model.keras")
    for name, copy in found.items():
        assert type(copy.get_layer("block_0")) is cls
        np.testing.assert_array_equal(copy.predict(x, verbose=0), before, err_msg=name)
        features = keras_vit.feature_extractor(copy, "encoder_norm")(x)
        np.testing.assert_array_equal(numpy(features), tokens)

    model.compile("sgd", "mse")
    model.fit(x, before + 1, verbose=0)
    after = numpy(model.get_layer("block_0").norm_1.scale)
    kept = numpy(copy.get_layer("block_0").norm_1.scale)
    assert np.abs(after - kept).max() > 1e-6


@pytest.mark.backends("torch")
def test_file_stores_the_class_of_the_block(tmp_path):
    """An unregistered class must be passed again, or be a custom object."""
    model = tiny(block=half)
    weights = randomize(model)
    expected = model.predict(images(), verbose=0)
    other = tiny()
    other.set_weights(list(weights.values()))
    assert np.abs(other.predict(images(), verbose=0) - expected).max() > 1e-3
    loaded = []
    for name in ("model.weights.h5", "model.keras"):
        path = tmp_path / name
        save(model, path)
        assert open_checkpoint(path).stored["block"] == "ScaledBlock"
        with pytest.raises(ValueError, match="'ScaledBlock', which.*`block`"):
            load(path, name="rebuilt")
        loaded.append(load(path, name="rebuilt", block=half))
    with pytest.raises(ValueError, match="'ScaledBlock' .*not registered"):
        load(path)
    custom_objects = {"ScaledBlock": ScaledBlock}
    loaded += [keras.models.load_model(path, custom_objects=custom_objects)]
    with keras.saving.custom_object_scope(custom_objects):
        loaded.append(load(path))
    for copy in loaded:
        assert copy.get_layer("block_1").scale == 0.5
        np.testing.assert_array_equal(copy.predict(images(), verbose=0), expected)
    for target in (tmp_path / "a.npz", tmp_path / "folder"):
        with pytest.raises(ValueError, match="block='ScaledBl"):
            save(model, target)
    with pytest.raises(ValueError, match="block='ScaledBlock'"):
        command.convert(path, tmp_path / "a.npz", to="timm")
    save(tiny(block=None), tmp_path / "plain.keras")
    assert "block" not in open_checkpoint(tmp_path / "plain.keras").stored


@pytest.mark.backends("torch")
def test_blocks_that_differ_have_no_config(tmp_path):
    """Keras copies such a model; what would take all blocks for the first is
    refused, but for a difference in training alone."""
    model = tiny(block=last_differs, num_layers=3)
    randomize(model)
    message = "block_2 differs from the config in activation, norm_epsilon"
    assert keras_vit.config_of(model).block is last_differs
    expected = model.predict(images(), verbose=0)
    for name in ("model.keras", "model.weights.h5"):
        save(model, tmp_path / name)
        with pytest.raises(ValueError, match=message + ".*`block`"):
            load(tmp_path / name, name="rebuilt")
        again = load(tmp_path / name, name="rebuilt", block=last_differs)
        np.testing.assert_array_equal(again.predict(images(), verbose=0), expected)
    np.testing.assert_array_equal(
        load(tmp_path / "model.keras").predict(images(), verbose=0), expected
    )
    model = tiny(num_layers=3, drop_path=0.2)
    assert keras_vit.config_of(model).drop_path == 0.2
    save(model, tmp_path / "a.safetensors", "timm")


@keras.saving.register_keras_serializable("test_block")
class Gates(keras.layers.Layer):
    """A norm with many weights of equal shape, so that their order matters."""

    def build(self, input_shape):
        self.gates = [
            self.add_weight(shape=input_shape[-1:], name=f"gate_{i}") for i in range(12)
        ]

    def call(self, inputs):
        for i, gate in enumerate(self.gates):
            inputs = inputs + gate * keras.ops.sin(inputs * i)
        return inputs


@keras.saving.register_keras_serializable("test_block")
class GatedBlock(keras_vit.layers.TransformerBlock):
    def make_norm(self, name):
        return Gates(dtype=self.dtype_policy, name=name)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_custom_block_file_loads_with_another_head(suffix, tmp_path):
    model = tiny(block=GatedBlock, num_layers=1)
    randomize(model)
    path = tmp_path / f"model{suffix}"
    save(model, path)
    options = {"classes": 3, "block": GatedBlock}
    for other in (
        load(path, **options),
        tiny(weights=path, num_layers=None, **options),
    ):
        found, expected = (
            keras_vit.feature_extractor(m, "encoder_norm")(images())
            for m in (other, model)
        )
        np.testing.assert_array_equal(numpy(found), numpy(expected))
        assert other.output_shape == (None, 3)


@pytest.mark.backends("torch")
def test_weights_must_match_the_block_class(tmp_path):
    plain = tiny()
    randomize(plain)
    path = tmp_path / "model.npz"
    save(plain, path)
    message = (
        r"(?s)missing.*block_0/norm_1/scale"
        r".*no place for.*Transformer/encoderblock_0/LayerNorm_0/bias"
    )
    with pytest.raises(ValueError, match=message):
        tiny(weights=path, block=RMSNormBlock)
    # Blocks with the same weights take them.
    regularized = functools.partial(
        keras_vit.layers.TransformerBlock, kernel_regularizer="l2"
    )
    model = tiny(weights=path, block=regularized)
    np.testing.assert_array_equal(
        model.predict(images(), verbose=0), plain.predict(images(), verbose=0)
    )
    assert len(model.losses) == 2 * 6


@pytest.mark.backends("torch")
@pytest.mark.slow
def test_docstring_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"keras": keras, "keras_vit": keras_vit}
    text = keras_vit.VisionTransformer.__doc__
    for example in doctest.DocTestParser().get_examples(text):
        exec(example.source, names)
    block = names["model"].get_layer("block_0")
    assert type(block) is names["RMSNormBlock"]
    assert type(block.norm_1) is keras.layers.RMSNormalization
