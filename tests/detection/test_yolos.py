"""YOLOS against transformers' own: outputs and files; and how it is used."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.detection import YOLOS, decode
from tests import originals
from tests.harness import numpy
from tests.small import tiny

TOLERANCE = 3e-5
ON_TORCH = pytest.mark.backends("torch")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": [32, 48],
    "patch_size": 8,
    "num_detection_tokens": 7,
    "num_labels": 5,
}
CASES = {
    "mid positions": {},
    "no mid positions": {
        "use_mid_position_embeddings": False,
        "qkv_bias": False,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
        # 8 divides neither, as in released models.
        "image_size": [44, 30],
        "num_channels": 1,
        "eos_coefficient": 0.3,
        "class_cost": 2,
        "bbox_loss_coefficient": 3,
    },
    "one block": {"num_hidden_layers": 1, "num_detection_tokens": 2},
}
SIZES = (2, 32, 48), (1, 64, 24), (3, 40, 40)


def original_of(folder=None, **options):
    case = originals.Case("YolosForObjectDetection", SMALL, {})
    model = originals.build(case, **options)
    if folder is not None:
        model.save_pretrained(folder)
    return model


def images(batch, height, width, channels=3):
    draw = np.random.default_rng(0).normal
    return draw(size=(batch, height, width, channels)).astype("float32")


def theirs(model, x):
    names = {"classes": "logits", "boxes": "pred_boxes"}
    return {k: originals.run(model, x, name) for k, name in names.items()}


@pytest.mark.parametrize(
    "case",
    [
        "mid positions",
        "no mid positions",
        pytest.param("one block", marks=ON_TORCH),
    ],
)
def test_outputs_and_files_are_transformers(case, tmp_path, record_error):
    original = original_of(tmp_path / "theirs", **CASES[case])
    model = keras_vit.load(tmp_path / "theirs")
    for size in SIZES:
        x = images(*size, original.config.num_channels)
        found = model(x, training=False)
        assert found.keys() == {"classes", "boxes"}
        for name, expected in theirs(original, x).items():
            assert np.ptp(expected) > 0.03
            error = np.abs(numpy(found[name]) - expected).max()
            record_error("yolos", f"{case} {size} {name}", error, TOLERANCE)

    # Its file back bit for bit; transformers reads it.
    keras_vit.save(model, tmp_path / "ours")
    again = originals.reload(original, tmp_path / "theirs", tmp_path / "ours")
    before, after = original.config.to_dict(), again.config.to_dict()
    different = {name for name in before if before[name] != after[name]}
    # A grid of patches is that of several image sizes, and a function has
    # several names.
    allowed = {"image_size", "hidden_act", "use_mid_position_embeddings"}
    assert different <= {*allowed, "_name_or_path"}
    expected, found = theirs(original, x), theirs(again, x)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6)


@ON_TORCH
def test_files_of_other_models_are_refused(tmp_path):
    original_of(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"model_type": "vit"}, "'model_type' in its config.json must be 'yolos'"),
        (
            {"num_hidden_layers": 10**9},
            "'num_hidden_layers' .* must be 3, as in its arrays",
        ),
        ({"image_size": [10**6, 10**6]}, "24 positions, which are not those of the im"),
        ({"num_detection_tokens": 5}, "must be 7, as in its arrays"),
        ({"use_mid_position_embeddings": False}, "must be True, as in its arr"),
        ({"hidden_act": "abs"}, "Received: 'abs'"),
    ):
        path.write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=message):
            keras_vit.load(tmp_path / "theirs")
    path.write_text(json.dumps(config))
    model = keras_vit.load(tmp_path / "theirs")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        keras_vit.save(model, tmp_path / "theirs")
    model.class_names = ["a"]
    with pytest.raises(ValueError, match="5 names.*'a'"):
        keras_vit.save(model, tmp_path / "new")
    other = YOLOS(tiny(layer_scale=1.0), classes=2)
    with pytest.raises(ValueError, match=r"layer_scale=1.0 \(it has None\)"):
        keras_vit.save(other, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@ON_TORCH
def test_names_of_classes_are_kept(tmp_path):
    def names_in(folder):
        content = json.loads((tmp_path / folder / "config.json").read_text())
        return list(content["id2label"].values())

    names = ["cat", "N/A", "dog", "N/A", "owl"]
    original_of(tmp_path / "theirs", id2label=dict(enumerate(names)))
    model = keras_vit.load(tmp_path / "theirs")
    keras_vit.save(model, tmp_path / "ours")
    assert names_in("ours") == names_in("theirs") == names
    # predict.py reads it.
    loaded = keras_vit.evaluation.load_classifier(str(tmp_path / "ours"))
    assert loaded.class_names == tuple(names)
    assert (loaded.image_size, loaded.mode) == (32, "torch")
    assert loaded.model.output.keys() == {"classes", "boxes"}
    keras_vit.save(model, tmp_path / "model.keras")
    keras_vit.save(keras_vit.load(tmp_path / "model.keras"), tmp_path / "again")
    assert names_in("again") == names
    model.class_names = list("abcde")
    keras_vit.save(model, tmp_path / "new")
    assert names_in("new") == list("abcde")


@ON_TORCH
def test_unknown_options_of_the_loss_raise():
    with pytest.raises(TypeError, match="'dice'"):
        YOLOS(tiny(), classes=2, loss_options={"dice": 1.0})


def test_boxes_are_transformers():
    """Their scores, classes and boxes of an image of 30 x 40 pixels."""
    torch = pytest.importorskip("torch")
    from transformers.models.yolos import image_processing_yolos as original
    from transformers.models.yolos import modeling_yolos

    rng = np.random.default_rng(0)
    outputs = {
        "classes": rng.normal(size=(2, 5, 4)).astype("float32"),
        "boxes": rng.uniform(size=(2, 5, 4)).astype("float32"),
    }
    with torch.device("cpu"):
        theirs = modeling_yolos.YolosObjectDetectionOutput(
            logits=torch.from_numpy(outputs["classes"]),
            pred_boxes=torch.from_numpy(outputs["boxes"]),
        )
        processor = original.YolosImageProcessor()
        expected = processor.post_process_object_detection(
            theirs, threshold=0.0, target_sizes=[(30, 40)] * 2
        )
    for found, theirs in zip(decode(outputs, 30, 40), expected, strict=True):
        np.testing.assert_array_equal(found["classes"], theirs["labels"])
        for ours, name in (("scores", "scores"), ("boxes", "boxes")):
            np.testing.assert_allclose(found[ours], theirs[name], atol=1e-5)
