"""What all three pre-training models keep."""

import re
from typing import get_type_hints

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from keras_vit.pretraining.saved import PretrainingArguments
from tests.pretraining import small

# Compiling takes seconds under JAX and TensorFlow.
ON_TORCH = pytest.mark.backends("torch")


def numpy(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


def set_masks(model):
    """Makes the next masks the same each time."""
    state = ops.convert_to_tensor([1, 0], dtype="uint32")
    model.seed_generator.state.assign(state)


@pytest.mark.slow
@pytest.mark.suite("jax", "torch")
@pytest.mark.parametrize(
    "kind",
    [
        "mae",
        "mpp",
        pytest.param("mim", marks=ON_TORCH),
        pytest.param("mim-block", marks=ON_TORCH),
        pytest.param("mpp-downsized", marks=ON_TORCH),
        pytest.param("mpp-pixels", marks=ON_TORCH),
    ],
)
def test_model_trains_on_images_and_is_saved(kind, tmp_path):
    if kind == "mae":  # one of them in half precision
        keras.config.set_dtype_policy("mixed_bfloat16")
    encoder = small.encoder(num_layers=1)
    model = small.MODELS[kind](encoder)
    before = [numpy(v) for v in model.trainable_variables]
    model.compile(keras.optimizers.Adam(3e-3))
    images = small.images()
    losses = model.fit(images, batch_size=4, epochs=4, verbose=0).history
    assert losses["loss"][-1] < losses["loss"][0]
    # The mask token is trained like all other weights.
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert np.abs(numpy(variable) - old).max() > 0, variable.path
    assert model.encoder is encoder

    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.get_config().keys() == model.get_config().keys()
    # Keras saves no generator's state.
    again.seed_generator.state.assign(model.seed_generator.state)
    found, expected = again(images), model(images)
    for name in expected:
        np.testing.assert_array_equal(numpy(found[name]), numpy(expected[name]), name)
    for ours, theirs in zip(
        again.optimizer.variables, model.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    if kind == "mim":
        # A file may contain metrics that could be given before.
        config = model.get_compile_config()
        config |= {"metrics": ["mae"], "loss": "mse"}
        again.compile_from_config(config)
        again.fit(images, verbose=0)


@pytest.mark.usefixtures("eager")
def test_loss_does_not_depend_on_the_input_format():
    """Pass a tf.data dataset of images, and of images with labels and
    weights."""
    tf = pytest.importorskip("tensorflow")
    images = small.images(6)
    model = small.MODELS["mae"](small.encoder(num_layers=1))
    model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices(images).batch(3)
    assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()

    outputs = model(images)
    whole = model.compute_loss(x=images, y_pred=outputs)
    half = {name: value[:3] for name, value in outputs.items()}
    expected = model.compute_loss(x=images[:3], y_pred=half)
    weighted = model.compute_loss(
        x=images,
        y=np.zeros(6),
        y_pred=outputs,
        sample_weight=np.array([2.0] * 3 + [0] * 3),
    )
    np.testing.assert_allclose(numpy(weighted), numpy(expected), rtol=1e-5)
    assert abs(numpy(whole) - numpy(expected)) > 1e-5


@ON_TORCH
@pytest.mark.parametrize("kind", ["mae", "mim"])
def test_regularization_losses_are_part_of_the_loss(kind):
    """Losses of weights and of activities, in the encoder and outside it."""
    images = small.images(4)
    model = small.MODELS[kind](small.encoder())

    def evaluate():
        model.compile("sgd")
        set_masks(model)
        return model.evaluate(images, verbose=0)

    own = model.decoder if kind == "mae" else model.mask_token
    weight = own.trainable_variables[-1]
    weight.assign(np.ones(weight.shape, "float32"))
    plain = evaluate()
    kernel = model.encoder.get_layer("block_0").mlp.dense_1.kernel
    kernel.regularizer = keras.regularizers.L2(0.5)
    weight.regularizer = keras.regularizers.L2(2.0)
    penalty = 0.5 * (numpy(kernel) ** 2).sum() + 2 * numpy(weight).size
    found = evaluate()
    np.testing.assert_allclose(found, plain + penalty, rtol=1e-5)
    assert penalty > plain

    norm = model.encoder.get_layer("encoder_norm")
    norm.activity_regularizer = keras.regularizers.L2(0.01)
    with_activity = evaluate()
    # Squares of normalized tokens, of an image: of all, or of those kept.
    num_tokens = 1 + (4 if kind == "mae" else 16)
    activity = 0.01 * num_tokens * 16
    np.testing.assert_allclose(with_activity - found, activity, rtol=1e-2)
    set_masks(model)
    fitted = model.fit(images, shuffle=False, verbose=0).history["loss"][0]
    np.testing.assert_allclose(fitted, with_activity, rtol=1e-5)


@ON_TORCH
def test_encoder_is_a_vision_transformer(tmp_path):
    """Without masks, the encoder alone gives the same outputs as in the
    model."""
    encoder = small.encoder(drop_path=0.1)
    model = pretraining.MaskedImageModeling(encoder)
    images = small.images(2)
    inside = model.stages.encode(model.stages.embed(images))
    np.testing.assert_allclose(numpy(inside), numpy(encoder(images)), atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        "mae",
        *(pytest.param(x, marks=ON_TORCH) for x in ("mim", "mpp-downsized")),
    ],
)
def test_reconstruction_keeps_visible_patches(kind):
    model = small.MODELS[kind](small.encoder())
    images = small.images(2)
    masked = np.tile([1.0, 0, 0, 1], (2, 4))
    given = {"masked": masked}
    if kind == "mae":
        masked = np.tile([1.0, 0, 1, 1], (2, 4))
        given = {"noise": masked}
    seen, filled = map(numpy, model.reconstruct(images, **given))
    hidden = np.kron(masked.reshape(2, 4, 4), np.ones((1, 4, 4)))[..., None]
    np.testing.assert_array_equal(seen, images * (1 - hidden))
    np.testing.assert_array_equal(filled * (1 - hidden), seen)
    assert np.abs(filled * hidden).max() > 0


@ON_TORCH
@pytest.mark.parametrize(
    "make,arguments",
    [
        (
            pretraining.MaskedPatchPrediction,
            {"value_range": (0.0, 255.0), "target": "downsized"},
        ),
        (
            pretraining.MaskedImageModeling,
            {"mask_patch_size": 8, "mask_ratio": 0.25},
        ),
        (
            pretraining.MaskedAutoencoder,
            {"positions": "learned", "norm_pixels": False, **small.DECODER},
        ),
    ],
)
def test_overrides_keep_the_other_arguments_of_a_file(make, arguments, tmp_path):
    path = tmp_path / "model.keras"
    model = make(small.encoder(), seed=3, **arguments)
    model.save(path)
    again = pretraining.load(path, drop_path=0.1)
    assert again.encoder.get_layer("block_1").drop_path == 0.1
    found, expected = again.get_config(), model.get_config()
    for name in expected.keys() - {"encoder", "name", "dtype"}:
        np.testing.assert_array_equal(found[name], expected[name], name)
    for ours, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


@ON_TORCH
def test_overrides_that_are_listed_are_arguments_of_the_classes():
    listed, found = get_type_hints(PretrainingArguments), {}
    for name in ("MaskedAutoencoder", "MaskedImageModeling", "DINO", "MoCoV3"):
        found |= get_type_hints(getattr(pretraining, name).__init__)
    found |= get_type_hints(pretraining.MaskedPatchPrediction.__init__)
    # The arrays of a file determine the other arguments.
    for name in found.keys() - {"encoder", "positions", "return", "kwargs"}:
        if not re.match("(decoder|output|hidden|bottleneck)_", name):
            assert listed[name] == found[name], name


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dropout", [0.0, pytest.param(0.5, marks=ON_TORCH)])
def test_loss_of_steps_evaluations_and_micro_batches(dropout):
    """It is their mean, and that of training alone depends on dropout; the
    learning rate is 0, so that every step has the same weights."""
    images = small.images(8)
    model = small.MODELS["mae"](small.encoder(num_layers=1, dropout=dropout))
    losses = []
    set_masks(model)
    for i in range(0, 8, 2):
        batch = images[i : i + 2]
        losses.append(float(model.compute_loss(x=batch, y_pred=model(batch))))
    optimizer = keras.optimizers.SGD(0.0, gradient_accumulation_steps=2)
    model.compile(optimizer)
    options = {"batch_size": 2, "verbose": 0}
    set_masks(model)
    tested = model.evaluate(images, **options)
    np.testing.assert_allclose(tested, np.mean(losses), rtol=1e-5)
    set_masks(model)
    history = model.fit(images, shuffle=False, **options).history
    assert history.keys() == {"loss"}
    different = abs(history["loss"][0] - tested)
    assert different > 1e-5 if dropout else different < 1e-5 * tested
