import logging
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit_programs import label_free as momentum
from tests.recipes import programs
from tests.recipes.programs import imagenet, read_metadata, rows_of

recipe = programs.load("pretrain_contrastive")
ON_TORCH = pytest.mark.backends("torch")


EPOCH = 1_281_167 / 1024
# main_dino.py of facebookresearch/dino; CONFIG.md of moco-v3.
PUBLISHED = {
    "dino": {
        "steps": round(100 * EPOCH),
        "warmup_steps": round(10 * EPOCH),
        "frozen_steps": round(EPOCH),
        "learning_rate": pytest.approx(0.0005 * 1024 / 256),
        "output_dim": 65536,
        "clip": 3.0,
        "teacher_momentum": 0.996,
        "teacher_temperature": 0.04,
        "local_crops": 8,
        "local_size": 96,
        "drop_path": 0.1,
        "mode": "torch",
        "koleo_weight": 0,
        "initialize": "dino",
    },
    "mocov3": {
        "steps": round(300 * EPOCH),
        "learning_rate": pytest.approx(1.5e-4 * 1024 / 256),
        "output_dim": 256,
        "teacher_momentum": 0.99,
        "initialize": "moco",
    },
}


@ON_TORCH
@pytest.mark.parametrize("method", PUBLISHED)
def test_defaults_match_the_publications(method):
    config = recipe.Config(method=method, model="ViTS16", batch_size=1024)
    config = recipe.resolve_config(config, imagenet())
    found = {name: getattr(config, name) for name in PUBLISHED[method]}
    assert found == PUBLISHED[method]
    decay = recipe.weight_decay_schedule(config)
    if method == "mocov3":
        assert decay == 0.1
        return
    ends = [float(decay(step)) for step in (0, config.steps)]
    np.testing.assert_allclose(ends, (0.04, 0.4), rtol=1e-6)
    optimizer = recipe.build_optimizer(config, 0.1)
    assert (optimizer.clipnorm, optimizer.global_clipnorm) == (3.0, None)


@ON_TORCH
def test_collapse_is_reported_once(caplog):
    report = momentum.report_collapse(after=10)
    recorder = types.SimpleNamespace(rows=[])
    # The first is within the warm-up.
    for step, diversity, warnings in (
        (10, 0.0, 0),
        (20, 0.0, 0),
        (30, 0.3, 0),
        (40, 0.001, 0),
        (50, 0.001, 1),
        (60, 0.0, 1),
    ):
        recorder.rows.append({"step": step, "train_teacher_diversity": diversity})
        with caplog.at_level(logging.WARNING, logger="keras_vit"):
            report(recorder, recorder.rows[-1])
        assert len(caplog.records) == warnings
    assert "at step 50 " in caplog.text


@pytest.mark.slow
@pytest.mark.suite("torch")
def test_files_of_a_run(finished):
    run = finished("dino")
    rows = rows_of(run)
    assert {"test_knn_accuracy", "train_teacher_diversity"} < rows[0].keys()
    assert {"test_knn_accuracy"} < read_metadata(run).keys()
    assert (run / "attention" / "step-00000004.png").is_file()
    # The encoder's files hold the same weights.
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 1))
    outputs = [
        keras.ops.convert_to_numpy(
            keras_vit.converters.load(run / name, num_heads=2)(images)
        )
        for name in ("encoder.keras", "encoder.npz")
    ]
    np.testing.assert_allclose(*outputs, atol=1e-5)
