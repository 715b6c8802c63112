"""Folders of YOLOS and EoMT: what they say of the model, and what they cannot say."""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit_programs import convert
from tests.small import tiny

numpy = keras.ops.convert_to_numpy
pytestmark = pytest.mark.backends("torch")
BUILD = {
    "yolos": lambda encoder: keras_vit.detection.YOLOS(encoder, 3, 4),
    "eomt": lambda encoder: keras_vit.segmentation.EoMT(encoder, 3, 4, 1),
}
OPTIONS = dict(num_layers=2, pooling=None, include_top=False, classes=None)
OF = {
    "yolos": {**OPTIONS, "activation": "gelu", "resampling": "bicubic"},
    "eomt": {
        **OPTIONS,
        "input_shape": (16, 16, 3),
        "activation": "gelu",
        "layer_scale": 1.0,
        "mlp_dim": 96,
        "position_prefix": "none",
        "resampling": "bicubic_antialias",
    },
}


def saved(kind, folder, **more):
    model = BUILD[kind](tiny(**{**OF[kind], **more}))
    keras_vit.save(model, folder, kind)
    return model


def change(folder, remove=(), **entries):
    """Removes arrays, and changes entries of config.json."""
    arrays = load_file(folder / "model.safetensors")
    arrays = {key: x for key, x in arrays.items() if key not in remove}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))


def test_dropout_of_yolos_is_read_and_written(tmp_path):
    saved("yolos", tmp_path / "a", dropout=0.1, attention_dropout=0.2)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["hidden_dropout_prob"] == 0.1
    assert config["attention_probs_dropout_prob"] == 0.2
    found = keras_vit.load(tmp_path / "a").config
    assert (found.dropout, found.attention_dropout) == (0.1, 0.2)


@pytest.mark.parametrize("kind", BUILD)
@pytest.mark.parametrize(
    "options",
    [{"pad_to_patch": True}, {"position_embedding": "none"}, {"patch_bias": False}],
    ids=str,
)
def test_what_the_folder_cannot_say_is_refused(kind, options, tmp_path):
    with pytest.raises(ValueError, match=[*options][0]):
        saved(kind, tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_folders_of_eomt_may_lack_what_the_training_needs(tmp_path):
    """transformers begins with probabilities of 1, and class weights of config.json."""
    saved("eomt", tmp_path / "a")
    change(tmp_path / "a", ["attn_mask_probs", "criterion.empty_weight"])
    images = np.random.default_rng(0).random((1, 16, 16, 3), "float32")
    masked = keras_vit.load(tmp_path / "a")
    plain = keras_vit.load(tmp_path / "a", masked=False)
    found, expected = masked(images), plain(images)
    assert set(expected) == {"masks", "classes"} < set(found)
    assert not np.allclose(
        *(keras.ops.convert_to_numpy(x["masks"]) for x in (found, expected))
    )


@pytest.mark.parametrize(
    "kind, key",
    [
        ("eomt", "query.weight"),
        ("eomt", "class_predictor.bias"),
        ("yolos", "class_labels_classifier.layers.2.bias"),
    ],
)
def test_missing_arrays_are_named(kind, key, tmp_path):
    saved(kind, tmp_path / "a")
    change(tmp_path / "a", [key])
    with pytest.raises(ValueError, match=key):
        keras_vit.load(tmp_path / "a")


@pytest.mark.parametrize("kind", BUILD)
def test_formats_of_detectors_are_not_those_of_encoders(kind, tmp_path):
    model = BUILD[kind](tiny(**OF[kind]))
    for other, write in ((tiny(), keras_vit.save), (model, keras_vit.converters.save)):
        with pytest.raises(ValueError, match="is for detectors and segmenters"):
            write(other, tmp_path / "a", kind)
    assert not (tmp_path / "a").exists()


def test_weights_of_moco_v3_are_of_its_encoder(tmp_path):
    encoder = tiny(**OPTIONS)
    moco = keras_vit.pretraining.MoCoV3(encoder, hidden_dim=16, output_dim=8)
    keras_vit.save(moco, tmp_path / "a.weights.h5")
    found = keras_vit.load(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(
        *(
            keras.ops.convert_to_numpy(x.get_layer("class_token").tokens)
            for x in (found, encoder)
        )
    )


@pytest.mark.parametrize("kind", BUILD)
def test_convert_writes_and_verifies_them_both_ways(kind, tmp_path, capsys):
    saved(kind, tmp_path / "folder")
    folder, file, back = (str(tmp_path / x) for x in ("folder", "a.keras", "back"))
    assert convert.main([folder, file, "--verify"]) == 0
    assert "0.0e+00" in capsys.readouterr().out
    assert convert.main([file, back, "--to", kind, "--verify"]) == 0
    first, second = (load_file(f"{x}/model.safetensors") for x in (folder, back))
    assert first.keys() == second.keys()
    assert all((first[key] == second[key]).all() for key in first)
    assert convert.main([folder, str(tmp_path / "half"), "--dtype", "float16"]) == 1
    assert "leave out --dtype" in capsys.readouterr().err
    assert not (tmp_path / "half").exists()
