"""Models whose blocks are of another class: `block`."""

import doctest
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import convert as command
from keras_vit.converters import load
from keras_vit.converters import open_checkpoint
from keras_vit.converters import save
from tests.harness import numpy
from tests.models.test_resnets import hybrid
from tests.models.test_vit import images
from tests.models.test_vit import randomize
from tests.models.test_vit import tiny

pytestmark = pytest.mark.usefixtures("eager")


@keras.saving.register_keras_serializable("test_block")
class RMSNormBlock(keras_vit.layers.TransformerBlock):
    """A block with other weights: its norms have a scale and no offset."""

    def make_norm(self, name):
        return keras.layers.RMSNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )


class ScaledBlock(keras_vit.layers.TransformerBlock):
    """An unregistered block with the weights of `TransformerBlock` and an
    additional argument."""

    def __init__(self, *args, scale=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def call(
        self, inputs, relative=None, num_queries=None, training=False, mask=None
    ):
        x = inputs * self.scale
        return super().call(x, relative, num_queries, training, mask)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


def half(*args, **kwargs):
    return ScaledBlock(*args, scale=0.5, **kwargs)


def image_of(model):
    return images(2, *model.input_shape[1:])


@pytest.mark.slow
@pytest.mark.suite("torch")
@pytest.mark.parametrize(
    "build, pooling",
    [
        (tiny, "token"),
        (hybrid, "map"),
        pytest.param(tiny, "map", marks=pytest.mark.backends("torch")),
        pytest.param(hybrid, "token", marks=pytest.mark.backends("torch")),
    ],
)
def test_model_with_custom_blocks_saves_clones_and_trains(
    build, pooling, tmp_path
):
    model = build(block=RMSNormBlock, pooling=pooling, norm_epsilon=1e-3)
    randomize(model)
    x = image_of(model)
    before = model.predict(x, verbose=0)
    block = model.get_layer("block_0")
    assert type(block) is RMSNormBlock and block.norm_epsilon == 1e-3
    assert [w.path for w in block.norm_1.weights] == ["block_0/norm_1/scale"]

    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    copies = {
        "load_model": keras.models.load_model(tmp_path / "model.keras"),
        "converters.load": load(tmp_path / "model.keras"),
        "clone_model": keras.models.clone_model(model),
        "from_config": keras_vit.models.Model.from_config(model.get_config()),
    }
    for name, copy in copies.items():
        assert type(copy.get_layer("block_0")) is RMSNormBlock
        if "load" not in name:
            copy.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(
            copy.predict(x, verbose=0), before, err_msg=name
        )

    model.compile("sgd", "mse")
    model.fit(x, before + 1, verbose=0)
    after = numpy(model.get_layer("block_0").norm_1.scale)
    kept = numpy(copies["clone_model"].get_layer("block_0").norm_1.scale)
    assert np.abs(after - kept).max() > 1e-6


def test_unregistered_block_loads_as_custom_object(tmp_path):
    model = tiny(block=half)
    weights = randomize(model)
    x = images()
    before = model.predict(x, verbose=0)
    other = tiny()
    other.set_weights(list(weights.values()))
    assert np.abs(other.predict(x, verbose=0) - before).max() > 1e-3
    path = tmp_path / "model.keras"
    model.save(path)
    with pytest.raises(ValueError, match="'ScaledBlock' .*not registered"):
        load(path)
    custom_objects = {"ScaledBlock": ScaledBlock}
    loaded = [keras.models.load_model(path, custom_objects=custom_objects)]
    with keras.saving.custom_object_scope(custom_objects):
        loaded.append(load(path))
    for copy in loaded:
        assert copy.get_layer("block_1").scale == 0.5
        np.testing.assert_array_equal(copy.predict(x, verbose=0), before)


def test_features_of_a_loaded_model(tmp_path):
    model = tiny(block=RMSNormBlock)
    randomize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found, expected = (
        keras_vit.feature_extractor(m, "block_1")(images())
        for m in (loaded, model)
    )
    assert expected.shape == (2, 7, 24)
    np.testing.assert_array_equal(numpy(found), numpy(expected))


@keras.saving.register_keras_serializable("test_block")
class Gates(keras.layers.Layer):
    """A norm with many weights of equal shape, so that their order matters."""

    def build(self, input_shape):
        self.gates = [
            self.add_weight(shape=input_shape[-1:], name=f"gate_{i}")
            for i in range(12)
        ]

    def call(self, inputs):
        for i, gate in enumerate(self.gates):
            inputs = inputs + gate * keras.ops.sin(inputs * i)
        return inputs


@keras.saving.register_keras_serializable("test_block")
class GatedBlock(keras_vit.layers.TransformerBlock):
    def make_norm(self, name):
        return Gates(dtype=self.dtype_policy, name=name)


@pytest.mark.parametrize("block", [RMSNormBlock, GatedBlock])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_custom_block_file_loads_with_another_head(block, suffix, tmp_path):
    model = tiny(block=block, num_layers=1)
    randomize(model)
    path = tmp_path / f"model{suffix}"
    save(model, path)
    for other in (
        load(path, classes=3, block=block),
        tiny(weights=path, classes=3, block=block, num_layers=None),
    ):
        found, expected = (
            keras_vit.feature_extractor(m, "encoder_norm")(images())
            for m in (other, model)
        )
        np.testing.assert_array_equal(numpy(found), numpy(expected))
        assert other.output_shape == (None, 3)


def test_file_stores_the_class_of_the_block(tmp_path):
    """The class must be passed again unless Keras loads the model."""
    model = tiny(block=half)
    randomize(model)
    expected = model.predict(images(), verbose=0)
    for name in ("model.keras", "model.weights.h5"):
        path = tmp_path / name
        save(model, path)
        assert open_checkpoint(path).stored["block"] == "ScaledBlock"
        with pytest.raises(ValueError, match="class 'ScaledBlock'.*`block`"):
            load(path, name="rebuilt")
        again = load(path, name="rebuilt", block=half)
        np.testing.assert_array_equal(
            again.predict(images(), verbose=0), expected
        )
    for target in (tmp_path / "a.npz", tmp_path / "folder"):
        with pytest.raises(ValueError, match="block='ScaledBl"):
            save(model, target)
    with pytest.raises(ValueError, match="block='ScaledBlock'"):
        command.convert(path, tmp_path / "a.npz", to="timm")
    assert "block" not in open_checkpoint(save_plain(tmp_path)).stored


def save_plain(folder):
    save(tiny(block=None), folder / "plain.keras")
    return folder / "plain.keras"


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


@pytest.mark.parametrize(
    "block",
    [
        "TransformerBlock",
        3,
        keras.layers.Dense,
        keras_vit.layers.TransformerBlock(2, 8),
        lambda *args, **kwargs: keras.layers.Identity(name=kwargs["name"]),
        lambda *args, name, **kwargs: RMSNormBlock(*args, **kwargs),
    ],
)
def test_wrong_block_is_refused(block):
    with pytest.raises(ValueError, match="`block`"):
        tiny(block=block)


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
