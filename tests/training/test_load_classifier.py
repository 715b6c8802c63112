"""Loading classifiers, and their outputs on whole datasets."""

import json
import types
import warnings

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data.pipeline import ImageSource
from keras_vit.evaluation import classifiers
from keras_vit_programs import defaults, flags, sizes
from keras_vit_programs.classifiers import describe_classifier, load_trained
from tests.small import bit, randomize, tiny, vit
from tests.small import images as small_images

pytestmark = pytest.mark.backends("torch")
ON_ALL = pytest.mark.backends("jax", "tensorflow", "torch")
load = keras_vit.evaluation.load_classifier
match = keras_vit.evaluation.match_class_names


def write(folder, model, **metadata):
    folder.mkdir(exist_ok=True)
    model.save(folder / "model.keras")
    if metadata:
        (folder / "config.json").write_text(json.dumps(metadata))
    return str(folder)


def test_options_come_from_config_json_unless_given(tmp_path):
    config = {"mode": "torch", "protocol": "vit_jax", "image_size": 8}
    run = write(
        tmp_path / "run",
        vit(),
        config={**config, "dataset": "photos"},
        data={"class_names": ["a", "b", "c"]},
    )
    found = load(run)
    assert (found.mode, found.protocol) == ("torch", "vit_jax")
    assert (found.image_size, found.channels) == (8, 3)
    assert found.class_names == ("a", "b", "c") and found.dataset == "photos"
    path = str(tmp_path / "run" / "config.json")
    assert {setting.source for setting in found.settings} == {path}
    assert f"protocol  vit_jax from\n          {path}" in describe_classifier(found)
    found = load(run, None, 16, "tf", "simple")
    assert (found.mode, found.protocol) == ("tf", "simple")
    assert {setting.source for setting in found.settings} == {"an argument"}
    assert found.model.input_shape == (None, 16, 16, 3)


def test_another_checkpoint_beside_a_run_has_nothing_of_it(tmp_path):
    """Neither its size, scaling and protocol nor its classes: of the files in
    its folder, config.json is about those that a run writes."""
    config = {"mode": "torch", "protocol": "vit_jax", "image_size": 16}
    config |= {"loss": "sigmoid", "dataset": "photos", "max_tokens": None}
    data = {"class_names": ["a", "b", "c"], "multi_label": True}
    folder = tmp_path / "run"
    write(folder, vit(), config=config, data=data)
    for name, of_run in (("model.npz", True), ("other.npz", False)):
        keras_vit.converters.save(vit(), folder / name)
        found = load(str(folder / name))
        assert found.image_size == (16 if of_run else 8)
        # Google's files, which these are, are scaled so by themselves.
        assert found.mode == ("torch" if of_run else "tf")
        assert found.protocol == ("vit_jax" if of_run else None)
        assert found.class_names == (("a", "b", "c") if of_run else None)
        assert (found.loss, found.dataset, found.multi_label) == (
            ("sigmoid", "photos", True) if of_run else (None, None, False)
        )
        source = keras_vit.weights.open_checkpoint(folder / name)
        assert source.class_names(3) == (["a", "b", "c"] if of_run else None)
        model = keras_vit.converters.load(folder / name)
        assert model.class_names == found.class_names


def test_class_names_of_a_file_come_before_those_next_to_it(tmp_path):
    model = vit()
    model.class_names = ["x", "y", "z"]
    run = write(tmp_path / "run", model, label_names=["a", "b", "c"])
    for image_size in (None, 16):
        assert load(run, None, image_size).class_names == ("x", "y", "z")


def test_folder_for_the_hub_has_class_names_and_preprocessing(tmp_path):
    for names, expected in (("abc", tuple("abc")), (None, None)):
        names = names or [f"LABEL_{i}" for i in range(3)]
        labels = {str(i): name for i, name in enumerate(names)}
        run = write(tmp_path / "run", vit(), id2label=labels)
        preprocessing = {
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        }
        (tmp_path / "run" / "preprocessor_config.json").write_text(
            json.dumps(preprocessing)
        )
        found = load(run)
        assert (found.class_names, found.mode) == (expected, "torch")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"representation_size": 5}, marks=ON_ALL),
        {},
        {"classifier_activation": "softmax"},
        {"distillation": True},
        {"pooling": "gap", "class_token": False},
        {"include_top": False, "pooling": "token"},
        {"include_top": False, "pooling": None},
    ],
)
def test_features_are_the_inputs_of_the_head(options, tmp_path):
    model = vit(**options)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    keras_vit.converters.save(model, tmp_path / "model.keras")
    found = load(str(tmp_path / "model.keras"))
    features = keras_vit.evaluation.feature_model(found.model)
    images = rng.uniform(-1, 1, (2, 8, 8, 3)).astype("float32")
    x = keras.ops.convert_to_numpy(features(images))
    assert x.shape == (2, options.get("representation_size", 16))
    if not options.get("include_top", True):
        with pytest.raises(ValueError, match="no classif.*few_shot"):
            keras_vit.evaluation.num_classes_of(found)
        return
    if options.get("distillation"):
        return
    kernel, bias = model.get_layer("head").get_weights()
    outputs = keras.ops.convert_to_numpy(model(images))
    probabilities = keras_vit.evaluation.probabilities(found.model, outputs)
    np.testing.assert_allclose(
        probabilities,
        keras_vit.evaluation.softmax(x @ kernel + bias),
        atol=1e-5,
    )


@pytest.mark.parametrize("multi_label", [False, True])
def test_loss_of_a_run_is_loaded(multi_label, tmp_path):
    data = {"class_names": ["a"] * 3, "multi_label": multi_label}
    run = write(tmp_path / "run", vit(), config={"loss": "sigmoid"}, data=data)
    found = load(run)
    assert (found.loss, found.multi_label) == ("sigmoid", multi_label)
    logits = np.array([[-800.0, 0, 2]])
    np.testing.assert_allclose(
        keras_vit.evaluation.probabilities(found.model, logits, found.loss),
        [[0, 0.5, 1 / (1 + np.exp(-2))]],
    )
    other = vit(classifier_activation="sigmoid")
    with pytest.raises(ValueError, match="It ends in 'sigmoid'"):
        keras_vit.evaluation.probabilities(other, logits)


EIGHT = classifiers.image_settings({"": {"image_size": 8, "mode": "tf"}})


def found_for(classes, names=None):
    return classifiers.LoadedClassifier(vit(classes=classes), EIGHT, 3, names)


def load_run_data(names):
    return keras_vit.data.ImageDataset("set", tuple(names), 3, None, 0, 1)


def test_imagenet_ids_give_class_indices(monkeypatch):
    """A folder of some of the 1000 classes, as for ImageNet-A and
    ImageNet-R."""
    pairs = [(f"n{i:08}", f"name {i}") for i in range(1000)]
    monkeypatch.setattr(classifiers.imagenet, "imagenet_labels", lambda: pairs)
    data = load_run_data(["n00000007", "n00000003"])
    indices, names = match(found_for(1000), data)
    assert indices.tolist() == [7, 3] and len(names) == 1000


def test_channels_of_data_and_model_must_match():
    data = load_run_data("ab")
    gray = classifiers.LoadedClassifier(vit(input_shape=(8, 8, 1)), EIGHT, 1)
    assert gray.adapt(data).channels == 1
    four = classifiers.LoadedClassifier(None, EIGHT, 4)
    with pytest.raises(ValueError, match="have 3 channels, and the model takes 4"):
        four.adapt(data)
    # A folder that is named digits is read as images.
    source = ImageSource(None, None, None)
    names = "digits", ("a", "b")
    folder = keras_vit.data.ImageDataset(*names, 3, None, 0, 1, source=source)
    model = found_for(2)
    assert model.adapt(folder).channels == 3
    assert model.reading(folder, 4)["protocol"] == "vit_jax"


@pytest.mark.parametrize("source", ["digits", "arrays"])
def test_gray_images_fit_a_model_of_three_channels(source):
    if source == "digits":
        data = keras_vit.data.load_dataset("digits")
    else:
        pytest.importorskip("tensorflow")
        images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1))
        # `keras.datasets` gives labels of this shape.
        labels = np.arange(20)[:, None] % 2
        data = keras_vit.data.from_arrays(images.astype("uint8"), labels)
        assert data.class_names == ("0", "1") and not data.multi_label
    options = {"image_size": 8, "batch_size": 4}
    ((gray, *_), *_) = data.test(**options)
    fitted = found_for(3).adapt(data)
    ((colors, *_), *_) = fitted.test(**options)
    np.testing.assert_allclose(
        np.asarray(colors), np.repeat(np.asarray(gray), 3, -1), atol=1e-6
    )


@ON_ALL
def test_predict_dataset_returns_every_image_once():
    data = keras_vit.data.load_dataset("digits")
    model = vit(input_shape=(8, 8, 1), include_top=False, pooling="gap")
    images, expected, _ = data.test(image_size=8, batch_size=359)[0]
    outputs = model.predict(images, verbose=0)
    for most in (359, 130):
        found, labels = keras_vit.evaluation.predict_dataset(
            model, data.test(image_size=8, batch_size=100), 359, most
        )
        np.testing.assert_array_equal(labels, expected[:most])
        np.testing.assert_allclose(found, outputs[:most], atol=1e-5)


def test_images_of_weight_0_are_ignored():
    """Such images may be anywhere, as ImageNet's images without a ReaL
    label."""
    model = vit(include_top=False, pooling="gap")
    images = small_images(4, 8, 8, 3)
    batches = [
        (images[:2], np.array([7, 8]), np.array([0.0, 1.5])),
        (images[2:], np.array([9, 0]), np.array([1.5, 0.0])),
    ]
    found, labels = keras_vit.evaluation.predict_dataset(model, batches, 4)
    assert labels.tolist() == [8, 9]
    np.testing.assert_allclose(found, model.predict(images[1:3], verbose=0), atol=1e-5)
    for none in ([], batches):
        with pytest.raises(ValueError, match="no images to predict"):
            keras_vit.evaluation.predict_dataset(model, none, 0)


def test_models_without_a_config_of_a_run(tmp_path):
    run = write(tmp_path / "run", vit(), architectures=["ViTModel"], config=3)
    found = load(run)
    assert found.class_names is None
    assert found.settings == ((8, "the weights"), ("tf", "the default"), (None, ""))
    assert "protocol" not in describe_classifier(found)
    assert "class names" not in describe_classifier(found)
    assert "protocol  whole from the default" in describe_classifier(found, "whole")
    model = vit(input_shape=(None, None, 3), grid_size=2)
    run = write(tmp_path / "run", model)
    assert load(run).image_size == 224
    assert load(run, image_size=12).image_size == 12
    run = write(tmp_path / "run", vit(input_shape=(8, 16, 3)))
    assert load(run).image_size == (8, 16)
    assert "images 8 x 16 x 3" in describe_classifier(load(run))


@pytest.mark.parametrize("has_head", [True, False])
def test_a_head_of_zeros_has_a_warning_if_it_is_used(has_head, tmp_path, recwarn):
    path = tmp_path / "zeros.npz"
    keras_vit.converters.save(vit(classes=21_843), path)
    load_trained(flags.Trained(weights=str(path)), has_head=has_head)
    assert has_head == any("head of zeros" in str(x.message) for x in recwarn)


def test_a_model_of_several_sizes_is_that_of_one(tmp_path):
    """Which it was made of; with `max_tokens` it is made again."""
    model = vit()
    randomize(model)
    path = tmp_path / "mixed.keras"
    keras_vit.mixed_sizes(model).save(path)
    x, found = small_images(2, 8, 8, 3), load(str(path))
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(found.model.predict(x, verbose=0), expected, atol=1e-5)
    assert found.image_size == 8 and found.budget is None
    assert load(str(path), image_size=12).model.input_shape == (None, 12, 12, 3)
    found = load(str(path), max_tokens=4)
    packed = keras_vit.data.pack_images(x, 4)
    outputs = found.predictor.predict(packed, verbose=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    teacher = keras_vit.distillation.as_teacher(load(str(path)))
    np.testing.assert_allclose(teacher.predict(x, verbose=0), expected, atol=1e-5)
    missing = keras_vit.hub.save(path, tmp_path / "hub")
    assert missing["keras"] is None and missing["timm"] is None


@pytest.mark.parametrize(
    "config, data, words",
    [
        ({"mode": {}}, {}, "config.json' has .*mode="),
        ({"image_size": 1.5}, {}, "config.json' has .*image_size="),
        ({"dataset": ["digits"]}, {}, "config.json' has .*dataset="),
        ({}, {"class_names": 3}, "config.json' has .*class_names="),
        ({}, {"multi_label": "yes"}, "config.json' has .*multi_label="),
        ({"image_size": -8}, {}, "`image_size` in '.*config.json' must"),
        ("[" * 100_000, None, "config.json' is not valid JSON"),
        ("{", None, "config.json' is not valid JSON"),
    ],
)
def test_wrong_config_json_raises(config, data, words, tmp_path):
    run = write(tmp_path / "run", vit())
    if data is not None:
        data = {"class_names": ["a", "b", "c"], **data}
        config = json.dumps({"config": {"mode": "tf", **config}, "data": data})
    (tmp_path / "run" / "config.json").write_text(config)
    with pytest.raises(ValueError, match=words):
        load(run)


def test_wrong_files_and_models_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        load(str(tmp_path / "none.npz"))
    keras_vit.converters.save(vit(), tmp_path / "a.npz")
    run = write(tmp_path / "run", vit())
    for path, name, words in (
        (str(tmp_path / "a.npz"), "ViTB16", "does not hold a ViTB16"),
        (run, "ViTB16", "does not hold a ViTB16"),
        (run, "ViTB17", "ViTB17.* Did you mean 'ViTB16'"),
    ):
        with pytest.raises(ValueError, match=words):
            load(path, name)
    with pytest.raises(ValueError, match="`mode` must be .*'caffe'"):
        load(run, mode="caffe")
    run = write(tmp_path / "run", bit(input_shape=(32, 32, 3)))
    with pytest.raises(ValueError, match="must be a Vision Transformer"):
        load(run, max_tokens=20)


IDS = [f"n{i:08}" for i in range(3)]


@pytest.mark.parametrize(
    "classes, known, names, indices, warning",
    [
        (3, None, "xyz", [0, 1, 2], "same order: 'x', 'y', 'z'. If"),
        (3, None, IDS, [0, 1, 2], None),  # sorted, as those of ImageNet
        (3, None, IDS[::-1], [0, 1, 2], "same order: 'n00000002"),
        (3, "abc", "ca", [2, 0], None),
        (3, "xyz", "xyz", [0, 1, 2], None),
    ],
)
def test_classes_are_matched_by_name(classes, known, names, indices, warning):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, of_model = match(
            found_for(classes, known and tuple(known)), load_run_data(names)
        )
    assert found.tolist() == indices
    assert of_model == tuple(known or names)
    texts = [str(x.message) for x in caught]
    assert (not texts) if warning is None else (warning in texts[0])


@pytest.mark.parametrize(
    "classes, known, names, words",
    [
        (3, "abc", "abx", "not all 3 of .*: 'x'. Name"),
        (2, "abc", "ab", "has 2 classes with 3 names"),
        (4, None, "abc", "4 classes with no names, and 'set' has 3.*a head"),
    ],
)
def test_classes_that_do_not_match_raise(classes, known, names, words):
    with pytest.raises(ValueError, match=words):
        match(found_for(classes, known and tuple(known)), load_run_data(names))


def test_photos_are_cropped_as_the_folder_of_timm_says(tmp_path):
    model = tiny(
        input_shape=(16, 16, 3),
        classes=3,
        hidden_size=64,
        num_heads=1,
        activation="gelu",
    )
    randomize(model, 0.4)
    keras_vit.converters.save(model, tmp_path / "model.safetensors", "timm")
    config = {"architecture": "vit", "label_names": ["a", "b", "c"]}
    config["pretrained_cfg"] = {"crop_pct": 0.8, "interpolation": "bicubic"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype("uint8")
    Image.fromarray(pixels).save(tmp_path / "a.png")
    trained = load(str(tmp_path / "model.safetensors"))
    assert trained.settings.protocol == ("timm-0.8", "the weights")
    sides = Image.fromarray(pixels).resize((26, 20), Image.Resampling.BICUBIC)
    image = np.asarray(sides.crop((5, 2, 21, 18)))[None] / 127.5 - 1
    expected = trained.model.predict(image.astype("float32"), verbose=0)
    ((found,),) = [trained.predict(tmp_path / "a.png").values()]
    names = [name for _, name, _ in found]
    assert names == ["abc"[i] for i in np.argsort(-expected[0])]
    chances = np.sort(np.exp(expected[0]) / np.exp(expected[0]).sum())[::-1]
    np.testing.assert_allclose([p for *_, p in found], chances, rtol=1e-5)
    resized = load(str(tmp_path / "model.safetensors"), max_tokens=8)
    assert resized.protocol is None


def test_an_unknown_scaling_of_pixels_is_said(tmp_path):
    path, known = tmp_path / "model.safetensors", tmp_path / "model.npz"
    options = {"hidden_size": 64, "num_heads": 1, "classes": 2}
    model = tiny(activation="gelu", input_shape=(8, 8, 3), **options)
    for target, format in ((path, "timm"), (known, "vit_jax")):
        keras_vit.converters.save(model, target, format)
    options = {"weights": str(path), "image_size": 8}
    with pytest.warns(UserWarning, match="does not say how its model scales"):
        assert load(**options).mode == "tf"
    settings = types.SimpleNamespace(
        spec=sizes.resolve_model_spec(None, str(path)), **options
    )
    with pytest.warns(UserWarning, match="such as torch for DeiT"):
        assert defaults.mode(settings, None) == "tf"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*scales pixels")
        assert load(mode="torch", **options).mode == "torch"
        assert load(**{**options, "weights": str(known)}).mode == "tf"


def test_digits_have_no_protocol_of_a_run():
    data = keras_vit.data.load_dataset("digits")
    options = {"image_size": 8, "mode": "tf", "protocol": "vit_jax"}
    settings = classifiers.image_settings({"a run": options})
    model = classifiers.LoadedClassifier(vit(input_shape=(8, 8, 1)), settings, 1)
    assert model.reading(data, 4)["protocol"] == "simple"
    given = classifiers.image_settings({"an argument": options})
    model = classifiers.LoadedClassifier(model.model, given, 1)
    with pytest.raises(ValueError, match="leave out `protocol`"):
        data.test(**model.reading(data, 4))
