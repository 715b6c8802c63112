"""What a format has no place for is left out with a warning, or refused."""

import json
import warnings

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, save
from keras_vit.weights.files import read
from keras_vit.weights.formats import FORMATS
from keras_vit_programs import convert as _cli
from tests import golden_data
from tests.small import randomize, vit

pytestmark = pytest.mark.backends("torch")

DINOV2 = {
    "layer_scale": 0.3,
    "position_prefix": "class",
    "activation": "gelu",
    "norm_epsilon": 1e-6,
    "include_top": False,
    "classes": None,
    "mask_token": True,
}


def build(**arguments):
    model = vit(hidden_size=64, num_heads=1, **arguments)
    randomize(model, 0.2)
    return model


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("options", [{}, DINOV2])
def test_mask_token_never_hinders_writing(format, options, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:  # formats that have no such model
            without = {**options, "mask_token": False}
            save(build(**without), tmp_path / "a.npz", format)
        except ValueError:
            return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with_mask = {**options, "mask_token": True}
        save(build(**with_mask), tmp_path / "b.npz", format)
    said = any("no mask token" in str(w.message) for w in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, found = read(tmp_path / "a.npz"), read(tmp_path / "b.npz")
    assert (found.keys() == plain.keys()) == said


def test_dinov2_to_timm_and_back_keeps_all_but_the_mask_token(tmp_path):
    source = tmp_path / "source"
    save(build(**DINOV2), source)
    middle, back = tmp_path / "timm.safetensors", tmp_path / "back"
    with pytest.warns(UserWarning, match="'timm' has no mask token"):
        _cli.convert(source, middle, to="timm")
    _cli.convert(middle, back, to="huggingface")
    expected = read(source)
    assert expected.pop("embeddings.mask_token").any()
    golden_data.assert_same(read(back), expected)


@pytest.mark.slow
def test_dinov2_with_a_head_on_its_token_is_written_for_transformers(tmp_path):
    """Its classifier also reads the mean of the patches, with zeros as weights."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    options = {**DINOV2, "include_top": True, "classes": 5, "mask_token": False}
    model = build(**options, pooling="token", resampling="bicubic")
    model.save(tmp_path / "model.keras")
    command = [tmp_path / "model.keras", tmp_path / "hf", "--to", "huggingface"]
    assert _cli.main([*map(str, command), "--verify"]) == 0
    shape = (2, *model.input_shape[1:])
    images = np.random.default_rng(0).normal(size=shape).astype("float32")
    expected = model.predict(images, verbose=0)
    np.testing.assert_array_equal(
        load(tmp_path / "hf").predict(images, verbose=0), expected
    )
    original = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "hf"
    )
    with torch.no_grad():
        pixels = torch.tensor(images.transpose(0, 3, 1, 2))
        found = original(pixels).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize(
    "name, format",
    [
        ("a.npz", None),
        ("a.pth", "timm"),
        ("a.safetensors", "torchvision"),
        ("folder", None),
    ],
)
def test_activation_that_is_not_stored_is_named(name, format, activation, tmp_path):
    model = build(classifier_activation=activation)
    with pytest.warns(UserWarning, match=f"The {activation} of the head is"):
        save(model, tmp_path / name, format)
    options = {"num_heads": 1, "classifier_activation": activation}
    image = np.random.default_rng(1).uniform(-1, 1, (1, 8, 8, 3))
    # As the warning says.
    options["activation"], options["norm_epsilon"] = "gelu_tanh", 1e-6
    found = load(tmp_path / name, **options).predict(image, verbose=0)
    np.testing.assert_allclose(
        found, model.predict(image, verbose=0), rtol=0, atol=1e-6
    )
    if not format and name == "folder":
        config = json.loads((tmp_path / "folder" / "config.json").read_text())
        several = {"sigmoid": "multi_label_classification", "softmax": None}
        assert config.get("problem_type") == several[activation]


def test_folders_keep_that_a_model_is_multi_label(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    build().save(run / "model.keras")
    config = {
        "config": {"loss": "sigmoid", "mode": "tf"},
        "data": {"class_names": ["cat", "dog", "owl"], "multi_label": True},
    }
    (run / "config.json").write_text(json.dumps(config))
    _cli.convert(run, tmp_path / "first", to="huggingface")
    _cli.convert(tmp_path / "first", tmp_path / "second", to="huggingface")
    keras_vit.hub.save(run, tmp_path / "hub")
    for name in ("second", "hub"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["problem_type"] == "multi_label_classification"
    found = keras_vit.evaluation.load_classifier(str(tmp_path / "hub"))
    assert (found.loss, found.multi_label) == ("sigmoid", True)
