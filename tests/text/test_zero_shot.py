"""A classifier of words has the logits of its dual encoder, wherever it goes."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import TextConfig
from keras_vit.text import TEMPLATES
from tests.harness import numpy
from tests.small import randomize, tiny

NAMES = ("cat", "dog", "owl")
SCALE = 20.0
PROMPTS = [f"a photo of a {name}." for name in NAMES]


def words(texts):
    """A tokenizer of letters, whose last id is the highest."""
    texts = [texts] if isinstance(texts, str) else texts
    ids = np.zeros((len(texts), 40), "int32")
    for row, text in zip(ids, texts, strict=True):
        codes = [ord(x) % 50 for x in text]
        row[: len(codes) + 1] = [*codes, 50]
    return ids


def dual(kind):
    clip = kind == "clip"
    tower = {"classes": 10, "pooling": "token", "pre_norm": True}
    if not clip:
        tower = {"include_top": False, "pooling": "map"}
    text = TextConfig(
        vocabulary_size=51,
        context_length=40,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        projection_size=10 if clip else 24,
        projection_bias=not clip,
        causal=clip,
    )
    model = keras_vit.DualEncoder(
        tiny(**tower),
        keras_vit.text.TextEncoder(text),
        logit_scale=np.log(SCALE),
        logit_bias=None if clip else -10.0,
    )
    randomize(model.encoder)
    randomize(model.text_encoder)
    model.encoder.preprocess_mode = "clip" if clip else "tf"
    model.tokenizer = words
    return model


def photos(size=(8, 12)):
    return np.random.default_rng(1).uniform(-1, 1, (4, *size, 3)).astype("float32")


def assert_close(found, expected):
    """Cosines, which are times a scale, to 1e-6, the precision of float32."""
    np.testing.assert_allclose(found / SCALE, expected / SCALE, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_logits_are_those_of_the_dual_encoder(kind, tmp_path):
    model = dual(kind)
    expected = numpy(model({"images": photos(), "texts": words(PROMPTS)}))
    assert np.ptp(expected) > 1
    classifier = keras_vit.zero_shot(model, NAMES)
    assert classifier.class_names == NAMES
    assert_close(classifier.predict(photos(), verbose=0), expected)
    for name in ("model.keras", "model.weights.h5"):
        keras_vit.save(classifier, tmp_path / name)
        again = keras_vit.load(tmp_path / name)
        assert_close(again.predict(photos(), verbose=0), expected)
    again = keras_vit.load(tmp_path / "model.keras")
    assert again.class_names == NAMES
    assert again.preprocess_mode == model.encoder.preprocess_mode
    other = keras_vit.load(tmp_path / "model.keras", input_shape=(16, 16, 3))
    lengths = numpy(other.get_layer("unit_norm")(np.ones((1, 10), "float32")))
    assert other.predict(photos((16, 16)), verbose=0).shape == (4, 3)
    np.testing.assert_allclose(np.linalg.norm(lengths), 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_evaluate_relevance_and_training(kind):
    model = keras_vit.zero_shot(dual(kind), NAMES)
    labels = model.predict(photos(), verbose=0).argmax(-1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    assert model.evaluate(photos(), labels, verbose=0)[1] == 1
    maps = keras_vit.inspection.relevance(model, photos()[:1].repeat(2, 0), [0, 1])
    assert np.ptp(numpy(maps)[0] - numpy(maps)[1]) > 0
    before = numpy(model.get_layer("head").kernel).copy()
    model.fit(photos(), labels, verbose=0)
    assert np.any(numpy(model.get_layer("head").kernel) != before)


@pytest.mark.backends("torch")
def test_export_has_the_same_logits(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = dual("clip")
    expected = numpy(model({"images": photos(), "texts": words(PROMPTS)}))
    path = keras_vit.export(keras_vit.zero_shot(model, NAMES), tmp_path / "z.onnx")
    session = runtime.InferenceSession(str(path))
    found = session.run(None, {session.get_inputs()[0].name: photos()})[0]
    assert_close(found, expected)


@pytest.mark.backends("torch", "tensorflow")
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_each_tower_is_exported(kind, tmp_path):
    """Each export compares the outputs of what it writes."""
    model = dual(kind)
    path = keras_vit.export(model.text_encoder, tmp_path / "text.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    assert [x.name for x in session.get_inputs()] == ["ids"]
    found = session.run(None, {"ids": words(PROMPTS)})[0]
    expected = numpy(model.encode_texts(PROMPTS, normalize=False))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    keras_vit.export(model.encoder, tmp_path / "images.onnx")
    model.tokenizer = None  # a function, which has no config
    with pytest.raises(ValueError, match="`DualEncoder`, export its `encoder`"):
        keras_vit.export(model, tmp_path / "both.onnx")


@pytest.mark.backends("torch")
def test_mean_of_templates():
    model = dual("siglip")
    templates = ["a {}", "the {} here"]
    head = keras_vit.zero_shot(model, NAMES, templates).get_layer("head")
    texts = [x.format(name) for name in NAMES for x in templates]
    vectors = numpy(model.encode_texts(texts)).reshape(3, 2, 24).mean(axis=1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    np.testing.assert_allclose(numpy(head.kernel), 20 * vectors.T, atol=2e-5)
    assert numpy(head.bias).tolist() == [-10] * 3
    assert {name: len(x) for name, x in TEMPLATES.items()} == {
        "photo": 1,
        "imagenet-7": 7,
        "imagenet-80": 80,
    }
    assert {*TEMPLATES["imagenet-7"]} < {*TEMPLATES["imagenet-80"]}
    assert all(x.count("{}") == 1 for x in TEMPLATES["imagenet-80"])


@pytest.mark.backends("torch")
def test_what_is_refused(tmp_path):
    model = dual("clip")
    with pytest.raises(ValueError, match="`templates` must be one of 'photo'"):
        keras_vit.zero_shot(model, NAMES, "photos")
    classifier = keras_vit.zero_shot(model, NAMES)
    with pytest.raises(ValueError, match="unit_norm=True"):
        keras_vit.save(classifier, tmp_path / "a.safetensors", format="timm")
    model.tokenizer = None
    with pytest.raises(ValueError, match="has no tokenizer"):
        keras_vit.zero_shot(model, NAMES)
