"""Models that resize and scale their images themselves."""

import functools
import io
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import (
    detection,
    distillation,
    evaluation,
    hub,
    segmentation,
)
from keras_vit.exporting import web
from keras_vit.models import preprocessing_of
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit_programs import building, convert, report
from tests import originals
from tests.small import randomize, tiny

rng = np.random.default_rng(0)
SHAPE = (16, 16, 3)
PIXELS = rng.integers(0, 256, (2, 41, 30, 3), dtype="uint8")


def preprocess(images, *arguments):
    layer = keras_vit.layers.ImagePreprocessing(*arguments)
    return keras.ops.convert_to_numpy(layer(images))


@pytest.fixture
def pair():
    """Two models of the same weights, with and without preprocessing."""
    inside = tiny(input_shape=SHAPE, preprocessing=True)
    randomize(inside)
    without = tiny(input_shape=SHAPE)
    without.set_weights(inside.get_weights())
    return inside, without


@pytest.mark.parametrize("size", [(20, 17), (60, 50), (41, 90)])
def test_resizing_equals_pillow(size):
    found = (preprocess(PIXELS, size)[0] + 1) * 127.5
    image = Image.fromarray(PIXELS[0])
    expected = image.resize(size[::-1], Image.Resampling.BILINEAR)
    # Pillow rounds to integers after each of the two axes.
    assert np.abs(found - np.asarray(expected, "float32")).max() < 1.02


@pytest.mark.parametrize("mode", ["tf", "torch"])
def test_scaling_equals_preprocess_input(mode):
    expected = keras_vit.preprocess_input(PIXELS, mode)
    for images in (PIXELS, PIXELS.astype("float32")):
        for size in (None, PIXELS.shape[1:3]):
            found = preprocess(images, size, mode)
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_model_equals_layer_and_model(pair):
    inside, without = pair
    assert inside.input_shape == (None, None, None, 3)
    size = without.input_shape[1:3]
    expected = without.predict(preprocess(PIXELS, size), verbose=0)
    for images in (PIXELS, PIXELS.astype("float32")):
        found = inside.predict(images, verbose=0)
        np.testing.assert_allclose(found, expected, atol=2e-5)
    other = PIXELS[:, :37]
    expected = without.predict(preprocess(other, size), verbose=0)
    found = inside.predict(other, verbose=0)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_save_and_load_round_trip(pair, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    keras_vit.converters.save(pair[0], path)
    expected = pair[0].predict(PIXELS, verbose=0)
    loaded = keras_vit.converters.load(path)
    np.testing.assert_array_equal(loaded.predict(PIXELS, verbose=0), expected)
    if suffix == ".keras":
        loaded = keras.saving.load_model(path)
        found = loaded.predict(PIXELS, verbose=0)
        np.testing.assert_array_equal(found, expected)
    without = keras_vit.converters.load(path, preprocessing=False)
    assert without.input_shape == pair[1].input_shape


@pytest.mark.backends("torch")
def test_conversion_drops_preprocessing_with_a_warning(pair, tmp_path, capsys):
    inside, without = pair
    path = tmp_path / "model.npz"
    with pytest.warns(UserWarning, match="does not contain the preprocessing"):
        keras_vit.converters.save(inside, path)
    again = keras_vit.VisionTransformer(
        weights=str(path), num_heads=without.get_layer("block_0").num_heads
    )
    for one, other in zip(again.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)

    inside.save(tmp_path / "model.keras")
    notes = convert.convert(
        tmp_path / "model.keras", tmp_path / "new.npz", to="vit_jax"
    )
    assert "preprocessing inside the model is left out" in notes[0]


@pytest.mark.backends("torch")
def test_mode_is_inferred_from_the_weights(tmp_path):
    model = tiny(input_shape=SHAPE)
    for layout, mode in (("vit_jax", "tf"), ("torchvision", "torch")):
        path = tmp_path / f"{layout}.npz"
        keras_vit.converters.save(model, path, layout)
        built = keras_vit.VisionTransformer(
            weights=str(path),
            num_heads=model.get_layer("block_0").num_heads,
            preprocessing=True,
        )
        assert built.get_layer("preprocessing").mode == mode
        assert open_checkpoint(path, num_heads=2).preprocess_mode == mode
    path = tmp_path / "timm.npz"
    keras_vit.converters.save(model, path, "timm")
    with pytest.raises(ValueError, match='preprocessing="torch"'):
        keras_vit.VisionTransformer(weights=str(path), num_heads=2, preprocessing=True)
    folder = tmp_path / "folder"
    inside = tiny(input_shape=SHAPE, preprocessing="torch")
    with pytest.warns(UserWarning, match="does not contain"):
        keras_vit.converters.save(inside, folder, "huggingface")
    assert open_checkpoint(folder).preprocess_mode == "torch"
    # All models of DINOv2 and DeiT have the same mean and standard deviation.
    for name, options in (
        (
            "dinov2",
            {"layer_scale": 1.0, "mask_token": True, "pooling": "token_gap"},
        ),
        ("deit", {"distillation": True}),
    ):
        folder = tmp_path / name
        model = tiny(input_shape=SHAPE, mlp_dim=96, **options)
        keras_vit.converters.save(model, folder, "huggingface")
        (folder / "preprocessor_config.json").unlink()
        found = open_checkpoint(folder)
        assert found.weight_map.variant.startswith(name)
        assert found.preprocess_mode == "torch"


def boxes(model, mode, images, size=16):
    found = evaluation.find_boxes(model, images, size, mode)
    return np.concatenate([x["boxes"] for x in found])


def of_classifier(path, mode, images, size=16, part=lambda model: model):
    trained = evaluation.load_classifier(str(path), None, size, mode)
    assert trained.mode == mode
    pixels = np.pad(images, ((0, 0), (0, size - 16), (0, 0), (0, 0)))
    if size != 16:
        trained = evaluation.load_classifier(str(path), None, (size, 16), mode)
    scaled = keras_vit.preprocess_input(pixels, mode)
    return part(trained.model).predict(np.asarray(scaled), verbose=0)


def of_boxes(path, mode, images):
    trained = evaluation.load_classifier(str(path), image_size=16, mode=mode)
    return boxes(trained.model, trained.mode, images)


def of_report(path, mode, images):
    *_, figure = report.draw_boxes(str(path), list(images), mode)
    figure.savefig(buffer := io.BytesIO(), format="raw")
    return np.frombuffer(buffer.getvalue(), "uint8")


def of_teacher(path, mode, images):
    teacher = distillation.as_teacher(evaluation.load_classifier(str(path), mode=mode))
    return teacher.predict(images / np.float32(127.5) - 1, verbose=0)


def of_fine_tuning(path, mode, images):
    options = {"input_shape": SHAPE, "classes": 5, "keep_head": True}
    model = building.build_model(None, str(path), None, **options)
    return model.predict(np.asarray(keras_vit.preprocess_input(images, mode)))


def of_export(path, mode, images):
    """A file for another runtime scales images if the model does."""
    import torch

    model, target = keras.models.load_model(path), path.with_suffix(".pt2")
    keras_vit.export(model, target, image_size=16, check=False)
    x = images.astype("float32")
    if preprocessing_of(model) is None:
        x = np.asarray(keras_vit.preprocess_input(x, mode))
    outputs = torch.export.load(target).module()(torch.tensor(x))
    return keras.tree.flatten(outputs)[0].numpy()


def of_web(path, mode, images):
    """What a page computes, of a checkpoint that does not store its mode."""
    settings = {"preprocessing": mode, "classifier_activation": "linear"}
    model = web.model_of_pixels(path, None, settings, (16, 16))
    return model.predict(images, verbose=0)


def of_page(path, mode, images):
    """The attention that a report draws."""
    folder = path.with_suffix("")
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i}.png")
    out = path.with_suffix(".report")
    arguments = [str(path), str(folder), "--output", str(out), "--mode", mode]
    assert not report.main(arguments)
    return np.asarray(Image.open(out / "attention.png"))


DOORS = {
    "classifier": of_classifier,
    "another size": functools.partial(of_classifier, size=24),
    "features": functools.partial(of_classifier, part=evaluation.feature_model),
    "teacher": of_teacher,
    "fine-tuning": of_fine_tuning,
    "page": of_web,
    "report": of_page,
}
OF_DETECTORS = {
    "boxes of a file": of_boxes,
    "boxes": lambda path, *x: boxes(keras.models.load_model(path), *x),
    "report": of_report,
}
HEADLESS = {"include_top": False, "pooling": None, "classes": None}
KINDS = {
    "plain": (lambda encoder: encoder, {}, DOORS),
    "distilled": (lambda encoder: encoder, {"distillation": True}, DOORS),
    "segmenter": (
        lambda encoder: segmentation.LinearSegmenter(encoder, 3),
        HEADLESS,
        {},
    ),
    "fcos": (
        lambda encoder: detection.FCOS(encoder, 2, filters=8, depth=1),
        HEADLESS,
        OF_DETECTORS,
    ),
    "yolos": (
        lambda encoder: detection.YOLOS(encoder, 2, queries=3),
        HEADLESS,
        OF_DETECTORS,
    ),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("mode", ["tf", "torch", "clip"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_doors_scale_images_once(kind, mode, tmp_path):
    """A model that scales images itself predicts what one without does."""
    build, options, doors = KINDS[kind]
    inside, without = (
        build(tiny(input_shape=SHAPE, preprocessing=x, **options))
        for x in (mode, False)
    )
    randomize(inside)
    without.set_weights(inside.get_weights())
    paths = tmp_path / "inside.keras", tmp_path / "without.keras"
    inside.save(paths[0])
    without.save(paths[1])
    images = PIXELS[:, :16, :16]
    if mode == "clip":  # this takes seconds
        doors = {**doors, "export": of_export}
    scaled = np.asarray(keras_vit.preprocess_input(images, mode))
    outputs = without.predict(scaled, verbose=0)
    by_hand = {"export": keras.tree.flatten(outputs)[0]}
    if isinstance(outputs, dict):
        found = detection.decode(outputs, 16, 16)
        by_hand["boxes"] = np.concatenate([x["boxes"] for x in found])
        by_hand["boxes of a file"] = by_hand["boxes"]
    elif kind in ("plain", "distilled"):
        others = ("classifier", "teacher", "fine-tuning", "page")
        by_hand |= dict.fromkeys(others, outputs)
    errors = {}
    for door, predict in doors.items():
        found, expected = (predict(path, mode, images) for path in paths)
        assert np.ptp(found) > 0
        errors[door] = np.abs(found.astype("float64") - expected).max()
        if door in by_hand:
            error = np.abs(found - by_hand[door]).max()
            errors[f"{door}, by hand"] = error
    # All, so that each is seen to fail.
    assert max(errors.values(), default=0) < 5e-5, errors


@pytest.mark.backends("torch")
def test_student_and_teacher_must_scale_images_alike(pair):
    for student, teacher in (pair, pair[::-1]):
        with pytest.raises(ValueError, match="one of them with `preprocessing`"):
            distillation.Distillation(student, teacher)


SATELLITE = {"image_mean": [0.430, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143]}
SATELLITE_MODE = tuple(map(tuple, SATELLITE.values()))
EQUAL = {"image_mean": [0.2] * 3, "image_std": [0.3] * 3}
SCALED = {"do_normalize": False}
WHOLE = {"image_mean": [120, 110, 99], "image_std": [58, 57, 56]}
PROCESSORS = {
    "satellite": ("DINOv3ViTImageProcessor", SATELLITE),
    "imagenet": ("DINOv3ViTImageProcessor", {}),
    "clip": ("CLIPImageProcessor", {}),
    "one value": ("ViTImageProcessor", EQUAL),
    "scaled alone": ("ViTImageProcessor", SCALED),
    "a factor": ("ViTImageProcessor", {**SCALED, "rescale_factor": 1 / 100}),
    "both": ("DeiTImageProcessor", {"rescale_factor": 1 / 127.5, **SATELLITE}),
    "not scaled": ("ViTImageProcessor", {"do_rescale": False, **WHOLE}),
    "nothing": ("ViTImageProcessor", {"do_rescale": False, **SCALED}),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", PROCESSORS)
def test_scaling_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind, options = PROCESSORS[name]
    processor = getattr(transformers, kind)(**options)
    source = tmp_path / "source"
    originals.build(originals.CASES["transformers-vit"]).save_pretrained(source)
    processor.save_pretrained(source)
    whole = {"do_resize": False, "do_center_crop": False, "return_tensors": "np"}
    expected = processor(list(PIXELS), **whole)["pixel_values"].transpose(0, 2, 3, 1)

    def check(mode):
        np.testing.assert_allclose(
            preprocess(PIXELS, None, mode), expected, rtol=2e-6, atol=2e-6
        )

    check(open_checkpoint(source).preprocess_mode)
    if name != "not scaled":
        return
    check_kept(source, tmp_path, check)
    kept = json.loads((tmp_path / "hub/preprocessor_config.json").read_text())
    assert kept == json.loads((source / "preprocessor_config.json").read_text())


def check_kept(source, folder, check):
    """Checks the mode of a checkpoint, of its models and of their files."""
    plain, inside = (keras_vit.load(source, preprocessing=x) for x in (False, True))
    check(plain.preprocess_mode)
    check(inside.preprocess_mode)
    check(inside.get_layer("preprocessing").mode)
    check(evaluation.load_classifier(str(source)).mode)
    plain.save(folder / "plain.keras")
    inside.save(folder / "inside.keras")
    keras_vit.save(inside, folder / "inside.weights.h5")
    keras_vit.save(plain, folder / "written")
    hub.save(source, folder / "hub")
    convert.convert(source, folder / "converted", to="huggingface")
    for name in (
        *("plain.keras", "inside.keras", "inside.weights.h5"),
        *("written", "hub", "converted"),
    ):
        again = folder / name
        check(evaluation.load_classifier(str(again)).mode)
        model = keras_vit.converters.load(again, preprocessing=True, classes=3)
        check(model.get_layer("preprocessing").mode)
        assert model.class_names is None
    found = inside.predict(PIXELS, verbose=0)
    for name in ("inside.keras", "inside.weights.h5"):
        model = keras_vit.load(folder / name)
        np.testing.assert_allclose(model.predict(PIXELS, verbose=0), found, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["Yolos", "Eomt"])
def test_labels_of_dense_models_are_kept(kind, tmp_path):
    """Names of classes and the scaling of pixels, in folders and .keras files."""
    transformers = pytest.importorskip("transformers")
    task = "ObjectDetection" if kind == "Yolos" else "UniversalSegmentation"
    sizes = {"image_size": [32, 32], "num_detection_tokens": 3}
    if kind == "Eomt":
        sizes = {"image_size": 32, "num_queries": 3, "num_blocks": 1}
    names = ("ant", "bee", "cat", "dog", "emu")
    case = originals.Case(f"{kind}For{task}", {**sizes, "mlp_ratio": 2}, {})
    theirs = originals.build(case, id2label=dict(enumerate(names)))
    theirs.save_pretrained(tmp_path / "theirs")
    make = getattr(transformers, f"{kind}ImageProcessor")
    processor = make(**SATELLITE, rescale_factor=1 / 127.5)
    processor.save_pretrained(tmp_path / "theirs")
    model = keras_vit.load(tmp_path / "theirs")
    keras_vit.save(model, tmp_path / "ours")
    model.save(tmp_path / "model.keras")
    keras_vit.save(keras_vit.load(tmp_path / "model.keras"), tmp_path / "again")
    for folder in ("ours", "again"):
        again = keras_vit.load(tmp_path / folder)
        assert again.class_names == names
        assert again.preprocess_mode == model.preprocess_mode
        config = type(theirs.config).from_pretrained(tmp_path / folder)
        assert tuple(config.id2label.values()) == names
        whole = {"do_resize": False, "do_pad": False, "return_tensors": "np"}
        pixels = list(PIXELS[:, :16, :16])
        expected, found = (
            x(pixels, **whole)["pixel_values"]
            for x in (processor, make.from_pretrained(tmp_path / folder))
        )
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    (tmp_path / "theirs/preprocessor_config.json").unlink()
    default = "torch" if kind == "Yolos" else None
    assert keras_vit.load(tmp_path / "theirs").preprocess_mode == default


TIMM = {
    "satellite": {"mean": SATELLITE_MODE[0], "std": SATELLITE_MODE[1]},
    "zero and one": {"mean": (0, 0, 0), "std": (1, 1, 1)},
    "cropped": {"crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.1, 0.2, 0.3)},
    "defaults": {},
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", TIMM)
def test_scaling_of_timm(name, tmp_path):
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 48, "depth": 1}
    sizes |= {"num_heads": 3, "num_classes": 4}
    overlay = {"input_size": (3, 16, 16), **TIMM[name]}
    model = timm.create_model(
        "vit_tiny_patch16_224", **sizes, pretrained_cfg_overlay=overlay
    )
    originals.shake(model)
    source = tmp_path / "source"
    timm.models.save_for_hf(model, source, model_config={"model_args": sizes})
    data = timm.data.resolve_data_config({}, model=model)
    mean, std = data["mean"], data["std"]
    expected = (PIXELS / 255 - np.array(mean)) / np.array(std)

    def check(mode):
        np.testing.assert_allclose(preprocess(PIXELS, None, mode), expected, atol=2e-6)

    check(open_checkpoint(source).preprocess_mode)
    if name != "cropped":
        return
    check_kept(source, tmp_path, check)
    again = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True)
    found = timm.data.resolve_data_config({}, model=again)
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(data))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name, content, expected",
    [
        # transformers 5 writes it for models with a tokenizer.
        ("processor_config.json", {"image_processor": SATELLITE}, SATELLITE),
        (
            "open_clip_config.json",
            {"preprocess_cfg": {"mean": [0.430, 0.411, 0.296], "std": 0.2}},
            {"image_mean": SATELLITE["image_mean"], "image_std": [0.2] * 3},
        ),
        # timm before 0.7
        (
            "config.json",
            {"architecture": "x", "mean": [0.1] * 3, "std": [0.2] * 3},
            {"image_mean": [0.1], "image_std": [0.2]},
        ),
        (
            "config.json",
            {"config": {"mode": [*SATELLITE.values()]}},
            SATELLITE,
        ),
        ("config.json", {"config": {"mode": "train"}}, None),
        ("preprocessor_config.json", {"image_mean": None, "size": 224}, None),
        # What is empty says nothing.
        ("processor_config.json", {"image_processor": None}, None),
        ("image_converter.json", {"config": None}, None),
        ("open_clip_config.json", {"preprocess_cfg": None}, None),
        ("config.json", {"mean": None, "std": None}, None),
        ("preprocessor_config.json", {**SATELLITE, "image_std": [0]}, ValueError),
        ("preprocessor_config.json", {"image_mean": "a", "image_std": [1]}, ValueError),
        ("preprocessor_config.json", {**SATELLITE, "rescale_factor": "x"}, ValueError),
        ("config.json", {"pretrained_cfg": {"mean": [1, 2], "std": []}}, ValueError),
        ("image_converter.json", {"config": [1]}, ValueError),
    ],
)
def test_files_that_store_a_scaling(name, content, expected, tmp_path):
    path = tmp_path / "model.safetensors"
    keras_vit.converters.save(tiny(input_shape=SHAPE), path, "timm")
    (tmp_path / name).write_text(json.dumps(content))
    checkpoint = open_checkpoint(path, num_heads=3)
    if expected is ValueError:
        with pytest.raises(ValueError, match=rf"'{name}' next to .* cannot be used"):
            keras_vit.converters.load(checkpoint)
        return
    mode = checkpoint.preprocess_mode
    assert mode == (expected and tuple(map(tuple, expected.values())))
    assert keras_vit.converters.load(checkpoint).preprocess_mode == mode


@pytest.mark.parametrize(
    "mode, options",
    [("torch", {}), (SATELLITE_MODE, {"pre_norm": True, "patch_bias": False})],
)
def test_gray_images_equal_those_of_three_channels(mode, options, tmp_path):
    colors = tiny(input_shape=SHAPE, preprocessing=mode, **options)
    randomize(colors)
    colors.save(tmp_path / "colors.keras")
    with pytest.warns(UserWarning, match="another scaling of each channel"):
        keras_vit.load(
            tmp_path / "colors.keras", input_shape=(16, 16, 1), preprocessing=False
        )
    gray = keras_vit.load(tmp_path / "colors.keras", input_shape=(16, 16, 1))
    assert gray.input_shape == (None, None, None, 1)
    pixels = PIXELS[..., :1]
    expected = colors.predict(np.repeat(pixels, 3, axis=-1), verbose=0)
    gray.save(tmp_path / "gray.keras")
    keras_vit.save(gray, tmp_path / "gray.weights.h5")
    for path in (tmp_path / "gray.keras", tmp_path / "gray.weights.h5"):
        for again in (keras_vit.load(path), keras_vit.load(path, drop_path=0.1)):
            assert again.input_shape == gray.input_shape
            found = again.predict(pixels, verbose=0)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert keras_vit.load(path, preprocessing=False).input_shape[1:] == SHAPE
        trained = evaluation.load_classifier(str(path))
        assert (trained.channels, trained.mode) == (3, mode)
        images = keras_vit.preprocess_input(pixels[:, :16, :16], trained.mode)
        whole = keras_vit.load(path).predict(pixels[:, :16, :16], verbose=0)
        np.testing.assert_allclose(trained.model.predict(images), whole, atol=1e-5)
