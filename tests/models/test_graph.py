"""Names and outputs of layers, for models that are parts of other models."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import detection, distillation, exporting, inspection, segmentation
from keras_vit.models.graph import output_activation
from tests import small
from tests.harness import copies
from tests.markers import on_all
from tests.small import bit, images

ON_TORCH = pytest.mark.backends("torch")
SIZE = (16, 24, 3)
IMAGES = images(2, *SIZE)
tiny = functools.partial(small.tiny, input_shape=SIZE, patch_size=8)
SMALL = {"include_top": False, "pooling": "token"}


def predict(model):
    return keras.ops.convert_to_numpy(model(IMAGES, training=False))


@ON_TORCH
def test_unnamed_layers_fit_on_a_backbone(tmp_path):
    keras.utils.clear_session()
    # Some of them exist before the backbone.
    dropout, pooling = keras.layers.Dropout(0.2), keras_vit.layers.Pooling()
    base = tiny(include_top=False)
    x = keras_vit.layers.ClassToken()(base.output)
    x = keras_vit.layers.MaskToken()(x)
    x = dropout(pooling(x))
    model = keras.Model(base.input, keras.layers.Dense(5)(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded), predict(model), atol=1e-6)
    images = keras.Input((16, 16, 3))
    maps = keras_vit.layers.PatchEmbedding(24, 4)(images)
    assert keras.Model(images, maps).output_shape[1:] == (4, 4, 24)


@pytest.mark.parametrize(
    "build",
    [
        lambda: tiny(**SMALL),
        lambda: bit(include_top=False, pooling="gap"),
        lambda: keras_vit.feature_extractor(tiny(), "pooling"),
        lambda: keras_vit.dense_features(tiny()),
        lambda: segmentation.LinearSegmenter(tiny(), 3),
    ],
)
@ON_TORCH
def test_two_models_are_called_in_one(build, tmp_path):
    keras.utils.clear_session()
    pair = build(), build()
    assert not pair[0].name.endswith("_1")
    images = keras.Input(SIZE)
    outputs = keras.layers.Concatenate()([model(images) for model in pair])
    both = keras.Model(images, outputs)
    both.save(tmp_path / "both.keras")
    loaded = keras.models.load_model(tmp_path / "both.keras")
    expected = np.concatenate([predict(model) for model in pair], -1)
    np.testing.assert_allclose(predict(loaded), expected, atol=1e-6)
    given = tiny(name="vision_transformer")
    assert given.name == "vision_transformer"


def gradient(model, name):
    """Returns the gradient of a logit by a layer's output, as in keras.io's
    Grad-CAM."""
    backend = keras.config.backend()
    output = model.get_layer(name).output
    if backend == "jax":
        import jax

        rest = keras.Model(output, model.output)
        x = keras.Model(model.inputs, output)(IMAGES)
        return jax.grad(lambda x: rest(x)[:, 0].sum())(x)
    both = keras.Model(model.inputs, [output, model.output])
    if backend == "torch":
        import torch

        x, logits = both(torch.tensor(IMAGES))
        return torch.autograd.grad(logits[:, 0].sum(), x, allow_unused=True)[0]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        x, logits = both(tf.constant(IMAGES))
        logit = logits[:, 0]
    return tape.gradient(logit, x)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", on_all(["block_1", "encoder_norm"], ["block_1"]))
def test_outputs_of_layers_are_those_of_the_model(name, tmp_path):
    model = tiny(distillation=name == "block_1")
    small.randomize(model)
    extracted = predict(keras_vit.feature_extractor(model, name))
    found = copies(model, tmp_path)
    for other in (model, found["load_model"], found["clone_model"]):
        part = keras.Model(other.input, other.get_layer(name).output)
        np.testing.assert_allclose(predict(part), extracted, atol=1e-6)
        slope = gradient(other, name)
        assert tuple(slope.shape) == extracted.shape
        assert np.abs(keras.ops.convert_to_numpy(slope)).max() > 0


def encoder():
    return tiny(include_top=False, pooling=None, classes=None)


DETECTORS = {
    "yolos": lambda: detection.YOLOS(encoder(), 2, queries=3),
    "fcos": lambda: detection.FCOS(encoder(), 2, filters=8, depth=1),
}
SHARING = {
    "several sizes": lambda: keras_vit.mixed_sizes(tiny()),
    "inference": lambda: keras_vit.models.inference_model(tiny()),
    "eomt": lambda: segmentation.EoMT(encoder(), 2, 3, 2, masked=False),
    "segmenter": lambda: segmentation.LinearSegmenter(encoder(), 2),
    **DETECTORS,
}


@ON_TORCH
@pytest.mark.parametrize("name", SHARING)
def test_models_that_share_layers_are_looked_into(name, tmp_path):
    """A layer was first called in the model that another was made of."""
    model = SHARING[name]()
    small.randomize(model)
    model.save(tmp_path / "model.keras")
    loaded, found = keras.models.load_model(tmp_path / "model.keras"), {}
    x = IMAGES if name != "several sizes" else keras_vit.data.pack_images(IMAGES, 8)
    for key, one in (("new", model), ("loaded", loaded)):
        parts = [keras_vit.feature_extractor(one, ["block_0"])]
        if name != "several sizes":
            parts.append(keras_vit.dense_features(one, 0, norm=False))
        values = [part.predict(x, verbose=0) for part in parts]
        if name != "several sizes":
            for function in (inspection.attention_maps, inspection.token_norms):
                values.append(function(one, x))
        if name == "inference":
            values += [inspection.relevance(one, x, 1)]
        found[key] = keras.tree.flatten(values)
    for new, other in zip(found["new"], found["loaded"], strict=True):
        assert np.ptp(new) > 0
        np.testing.assert_allclose(new, other, atol=1e-5)


@ON_TORCH
@pytest.mark.parametrize("name", DETECTORS)
def test_what_has_no_such_maps_is_refused(name):
    with pytest.raises(ValueError, match="to one output.*boxes"):
        inspection.relevance(DETECTORS[name](), IMAGES)
    masked = segmentation.EoMT(encoder(), 2, 3, 2)
    with pytest.raises(ValueError, match="without masks.*'block_0', which"):
        inspection.attention_maps(masked, IMAGES)


def softmax_after(model, layer):
    return keras.Model(model.input, layer(model.output))


def nested(**options):
    x = keras.Input(SIZE)
    return keras.Model(x, tiny(**options)(x))


SOFTMAX, SIGMOID = ({"classifier_activation": x} for x in ("softmax", "sigmoid"))
DISTILLED = {"distillation": True}
ENDS = {
    "linear": {
        "plain": tiny,
        "distilled": lambda: tiny(**DISTILLED),
        "several sizes": lambda: keras_vit.mixed_sizes(tiny(**DISTILLED)),
        "features": lambda: keras_vit.feature_extractor(tiny(**SOFTMAX), "pooling"),
        "tokens": encoder,
        "identity": lambda: softmax_after(tiny(), keras.layers.Activation("linear")),
        "nested": nested,
    },
    "softmax": {
        "plain": lambda: tiny(**SOFTMAX),
        "distilled": lambda: tiny(**SOFTMAX, **DISTILLED),
        "several sizes": lambda: keras_vit.mixed_sizes(tiny(**SOFTMAX, **DISTILLED)),
        "inference": lambda: keras_vit.models.inference_model(
            tiny(**SOFTMAX, **DISTILLED)
        ),
        "layer": lambda: softmax_after(tiny(**DISTILLED), keras.layers.Softmax()),
        "activation": lambda: softmax_after(tiny(), keras.layers.Activation("softmax")),
        "operation": lambda: softmax_after(tiny(), keras.ops.softmax),
        "nested": lambda: nested(**SOFTMAX, **DISTILLED),
    },
    "sigmoid": {
        "distilled": lambda: tiny(**SIGMOID, **DISTILLED),
        "bit": lambda: bit(input_shape=SIZE, classes=5, **SIGMOID),
    },
    "log_softmax": {"plain": lambda: tiny(classifier_activation="log_softmax")},
}


@ON_TORCH
@pytest.mark.parametrize("end, name", [(x, y) for x in ENDS for y in ENDS[x]])
def test_what_a_model_ends_in_is_asked_of_all_heads(end, name):
    """The model of probabilities is refused, or left as it is, where logits are
    needed."""
    model = ENDS[end][name]()
    assert output_activation(model) == end
    if len(model.inputs) > 1 or model.output.shape[1:] != (5,):
        return
    scores = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]], "float32")
    softmax = keras_vit.evaluation.softmax(scores)
    if end == "log_softmax":
        with pytest.raises(ValueError, match="It ends in 'log_softmax'"):
            keras_vit.evaluation.probabilities(model, scores)
    else:
        kind = "sigmoid" if end == "sigmoid" else "softmax"
        found = keras_vit.evaluation.probabilities(model, scores, kind)
        np.testing.assert_allclose(found, softmax if end == "linear" else scores)
    if "head" in {layer.name for layer in model.layers}:
        ((_, _, best),) = keras_vit.decode_predictions(scores, 1, [*"abcde"], model)[0]
        assert best == pytest.approx(softmax.max() if end == "linear" else 0.3)
    if end == "linear":
        distillation.Distillation(tiny(), model)
        assert output_activation(exporting._with_softmax(model)) == "softmax"
        return
    for pair in ((tiny(), model), (model, tiny())):
        with pytest.raises(ValueError, match=f"ends in '{end}'; build it with"):
            distillation.Distillation(*pair)
    with pytest.raises(ValueError, match=f"with the activation '{end}'"):
        keras_vit.export(model, "never.pt2", softmax=True)
