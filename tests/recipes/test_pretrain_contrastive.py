import dataclasses
import logging
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import models
from keras_vit.training import pretraining as momentum
from tests.recipes import programs
from tests.recipes.programs import imagenet
from tests.recipes.programs import read_metadata
from tests.recipes.programs import rows_of

recipe = programs.load("pretrain_contrastive")
main = recipe.main
ON_TORCH = pytest.mark.backends("torch")


@pytest.fixture(scope="module", autouse=True)
def small_model():
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    small = ("VisionTransformer", {**sizes, "pooling": "gap"}, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.COMPACT, "compact-vit", small)
        yield


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
    decay = momentum.weight_decay_schedule(config)
    if method == "mocov3":
        assert decay == 0.1
        return
    ends = [float(decay(step)) for step in (0, config.steps)]
    np.testing.assert_allclose(ends, (0.04, 0.4), rtol=1e-6)
    optimizer = recipe.build_optimizer(config, 0.1)
    assert (optimizer.clipnorm, optimizer.global_clipnorm) == (3.0, None)


@ON_TORCH
@pytest.mark.parametrize(
    "given, value",
    [
        ({"mixup": 0.2}, "0.2"),
        ({"augment": "light1"}, "light1"),
        ({"accumulate": 2, "batch_size": 4}, "2"),
        ({"average": 0.9}, "0.9"),
        ({"average_from": 0.75}, "0.75"),
    ],
)
def test_flags_without_effect_are_refused(given, value):
    name = next(iter(given)).partition("_")[0]
    with pytest.raises(ValueError, match=rf"--{name}.*Received: {value}"):
        recipe.Config(**given)


@ON_TORCH
def test_collapse_is_reported_once(caplog):
    report = momentum.ReportCollapse(after=10)
    optimizer = types.SimpleNamespace()
    report.set_model(types.SimpleNamespace(optimizer=optimizer))
    # The first is within the warm-up.
    for step, diversity, found in (
        (10, 0.0, None),
        (20, 0.0, None),
        (30, 0.3, None),
        (40, 0.001, None),
        (50, 0.001, 50),
        (60, 0.0, 50),
    ):
        optimizer.iterations = np.int64(step)
        with caplog.at_level(logging.WARNING, logger="keras_vit"):
            report.on_epoch_end(0, {"teacher_diversity": diversity})
        assert report.step == found


@pytest.mark.slow
@pytest.mark.suite("torch")
@pytest.mark.parametrize(
    "method", ["dino", pytest.param("mocov3", marks=pytest.mark.nightly)]
)
def test_interrupted_run_resumes_bit_for_bit(method, tmp_path):
    # The graph of the jitter, and of each local crop, is traced in seconds;
    # tests/training/test_crops.py has all of them.
    small = recipe.resolve_config(
        recipe.Config(method=method), keras_vit.data.load_dataset("digits")
    )
    given = dict(
        method=method,
        steps=4,
        checkpoint_every=1,
        batch_size=32,
        output_dim=8,
        crops=dataclasses.replace(small.crops, jitter_probability=0.0),
        local_crops=1 if method == "dino" else 0,
    )
    whole = tmp_path / "whole"
    main(recipe.Config(output=str(whole), evaluate_every=4, **given))
    rows = rows_of(whole)
    assert {"test_knn_accuracy", "train_teacher_diversity"} < rows[0].keys()
    assert {"test_knn_accuracy"} < read_metadata(whole).keys()
    assert (whole / "attention" / "step-00000004.png").is_file()

    output = str(tmp_path / "stopped")
    stopped = recipe.Config(output=output, evaluate_every=4, **given)
    with programs.interrupted(2):
        main(stopped)
    main(stopped)
    programs.assert_same_runs(
        tmp_path / "stopped", whole, "encoder.keras", "model.keras"
    )
    # The encoder's files hold the same weights.
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 1))
    outputs = [
        keras.ops.convert_to_numpy(
            keras_vit.converters.load(whole / name, num_heads=2)(images)
        )
        for name in ("encoder.keras", "encoder.npz")
    ]
    np.testing.assert_allclose(*outputs, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.backends("jax")
@pytest.mark.parametrize(
    "flags, collapses",
    [
        pytest.param(
            "--no-centering --teacher-temperature 0.1 --koleo-weight 0 "
            "--warmup-steps 20 --steps 120 --evaluate-every 10",
            True,
            id="neither centred nor sharpened",
        ),
        pytest.param("--evaluate-every 50", False, id="defaults"),
    ],
)
def test_collapse_of_the_recipe(flags, collapses, tmp_path):
    """A collapse is reported by step 60, and the defaults do not collapse."""
    argv = ["--method", "dino", *flags.split(), "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, programs.RECIPES / "pretrain_contrastive.py", *argv],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"collapse: .* at step (\d+)", done.stdout + done.stderr)
    assert [int(step) <= 60 for step in found] == [True] * collapses
    diversity = [
        float(row["train_teacher_diversity"]) for row in rows_of(tmp_path)
    ]
    if collapses:
        assert diversity[-1] < momentum.COLLAPSED / 10
    else:
        assert min(diversity) > 10 * momentum.COLLAPSED
