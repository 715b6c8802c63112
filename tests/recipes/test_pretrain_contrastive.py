import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import models
from keras_vit.training import pretraining as momentum
from tests.recipes import programs
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


def imagenet():
    return dataclasses.replace(
        keras_vit.data.load_dataset("digits"),
        name="imagenet2012",
        num_train=1_281_167,
        image_size=None,
        channels=3,
    )


@ON_TORCH
def test_defaults_match_the_publications():
    """main_dino.py of facebookresearch/dino; CONFIG.md of moco-v3."""
    config = recipe.Config(method="dino", model="ViTS16")
    config = recipe.resolve_config(config, imagenet())
    epoch = 1_281_167 / 1024
    assert config.steps == round(100 * epoch)
    assert (config.warmup_steps, config.frozen_steps) == (
        round(10 * epoch),
        round(epoch),
    )
    assert config.learning_rate == pytest.approx(0.0005 * 1024 / 256)
    assert (config.output_dim, config.clip) == (65536, 3.0)
    assert (config.teacher_momentum, config.teacher_temperature) == (
        0.996,
        0.04,
    )
    assert (config.local_crops, config.local_size) == (8, 96)
    assert (config.drop_path, config.mode) == (0.1, "torch")
    assert config.koleo_weight == 0
    decay = momentum.weight_decay_schedule(config)
    ends = [float(decay(step)) for step in (0, config.steps)]
    np.testing.assert_allclose(ends, (0.04, 0.4), rtol=1e-6)
    optimizer = recipe.build_optimizer(config, 0.1)
    assert (optimizer.clipnorm, optimizer.global_clipnorm) == (3.0, None)

    config = recipe.Config(method="mocov3", model="ViTS16", batch_size=1024)
    config = recipe.resolve_config(config, imagenet())
    assert config.learning_rate == pytest.approx(1.5e-4 * 1024 / 256)
    assert (config.teacher_momentum, config.output_dim) == (0.99, 256)
    assert momentum.weight_decay_schedule(config) == 0.1
    assert config.steps == round(300 * 1_281_167 / 1024)


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
    optimizer = types.SimpleNamespace(iterations=np.int64(0))
    report.set_model(types.SimpleNamespace(optimizer=optimizer))
    found = []
    with caplog.at_level(logging.WARNING, logger="keras_vit"):
        for step, diversity in (
            (10, 0.0),  # the warm-up
            (20, 0.0),
            (30, 0.3),
            (40, 0.001),
            (50, 0.001),
            (60, 0.0),
        ):
            optimizer.iterations = np.int64(step)
            report.on_epoch_end(0, {"teacher_diversity": diversity})
            found.append(report.step)
    assert found == [None, None, None, None, 50, 50]


@pytest.mark.slow
@ON_TORCH
@pytest.mark.parametrize(
    "method", ["dino", pytest.param("mocov3", marks=pytest.mark.nightly)]
)
def test_interrupted_run_resumes_bit_for_bit(method, tmp_path):
    given = dict(
        method=method, steps=4, checkpoint_every=1, batch_size=32, output_dim=8
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


def start(method, output):
    """Starts the recipe in a process of its own, with a small model."""
    command = (
        f"--method {method} --steps 12 --checkpoint-every 1 --evaluate-every 6 "
        f"--batch-size 16 --output-dim 8 --output {output}"
    )
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.recipes.programs"),
            *("pretrain_contrastive", *command.split()),
        ],
        cwd=programs.RECIPES.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["dino", "mocov3"])
def test_killed_run_resumes_bit_for_bit(method, tmp_path):
    """Send `kill -9` after checkpoints of each half of the run."""
    for step in (2, 8):
        process = start(method, tmp_path / "killed")
        checkpoints = tmp_path / "killed" / "checkpoints"
        checkpoint = checkpoints / f"step-{step:08}.npz"
        while process.poll() is None and not checkpoint.exists():
            time.sleep(0.002)
        process.kill()
        printed, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, printed
        assert not (tmp_path / "killed" / "model.keras").exists()
    for name in ("killed", "whole"):
        process = start(method, tmp_path / name)
        printed, _ = process.communicate(timeout=500)
        assert process.returncode == 0, printed
        assert ("resuming" in printed) == (name == "killed")
    programs.assert_same_runs(tmp_path / "killed", tmp_path / "whole")


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
