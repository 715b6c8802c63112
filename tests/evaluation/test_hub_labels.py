"""Folders for the hub keep that a model is multi-label."""

import json

import pytest

import keras_vit
from tests.small import tiny


@pytest.mark.backends("torch")
def test_hub_folder_keeps_that_a_model_is_multi_label(tmp_path):
    model = tiny(classes=2)
    run = tmp_path / "run"
    run.mkdir()
    model.save(run / "model.keras")
    config = {
        "config": {"loss": "sigmoid", "mode": "tf"},
        "data": {"class_names": ["cat", "dog"], "multi_label": True},
    }
    (run / "config.json").write_text(json.dumps(config))
    keras_vit.hub.save(run, tmp_path / "hub")
    written = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert written["problem_type"] == "multi_label_classification"
    found = keras_vit.evaluation.load_classifier(str(tmp_path / "hub"))
    assert (found.loss, found.multi_label) == ("sigmoid", True)
