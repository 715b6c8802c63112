import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit_programs import curves, presets, rows
from tests.harness import numpy
from tests.recipes import programs
from tests.recipes.programs import imagenet, read_metadata, rows_of

recipe = programs.load("pretrain_masked")
finetune = programs.load("finetune_cifar")
# As published, not from the table in the package: batch, steps, learning rate,
# decay a step, warm-up, second beta, ratio, initial values.
PUBLISHED = {
    "mpp": (4096, 1_000_000, 2e-4, 0.0, 10_000, 0.999, 0.5, None),
    "mim": (2048, 500_456, 4e-4, 0.05 * 4e-4, 6_256, 0.999, 0.6, "simmim"),
    "mae": (4096, 250_228, 2.4e-3, 1.2e-4, 12_511, 0.95, 0.75, "mae"),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("method", presets.MASKED)
def test_defaults_of_small_models_have_no_warning(method, recwarn):
    given = recipe.Config(method=method)
    recipe.resolve_config(given, keras_vit.data.load_dataset("digits"))
    assert not recwarn.list


@pytest.mark.backends("torch")
@pytest.mark.parametrize("method", presets.MASKED)
def test_defaults_match_the_publications(method):
    given = recipe.Config(method=method, model="ViTB16")
    job = programs.plan(recipe, given, imagenet())
    config = job.config
    optimizer, rate = job.optimizer()
    assert PUBLISHED[method] == (
        config.batch_size,
        job.steps,
        pytest.approx(config.learning_rate),
        pytest.approx(optimizer.weight_decay * config.learning_rate),
        rate.warmup_steps,
        optimizer.beta_2,
        config.mask_ratio,
        config.initialize,
    )
    if method == "mae":
        assert (config.decoder_layers, config.decoder_width) == (8, 512)
        # 1.5e-4 for 256 images.
        given = dataclasses.replace(given, batch_size=256)
        job = programs.plan(recipe, given, imagenet())
        assert job.config.learning_rate == pytest.approx(1.5e-4)


# Read in the sources that MASKED names: crop, pixels, clipping, stochastic
# depth, mask unit, activation, layer scale.
ENCODERS = {
    "mpp": ("pretrain", "tf", None, 0.0, None, "gelu_tanh", None),
    "mim": ("simmim", "torch", 5.0, 0.1, 32, "gelu", 0.1),
    "mae": ("mae", "torch", None, 0.0, None, "gelu", None),
}


def simmim_learning_rate(step, epoch, base, total):
    """lr_scheduler.py, `MultiStepLRScheduler._get_lr`, with the numbers of
    configs/vit_base__800ep, scaled by main_simmim.py."""
    scale = total / 512
    peak, start, warmup = base * scale, 5e-7 * scale, 10 * epoch
    if step < warmup:
        return start + step * (peak - start) / warmup
    return peak * 0.1 ** (step >= 700 * epoch)


def mae_learning_rate(step, epoch, base, total):
    """util/lr_sched.py with the numbers of PRETRAIN.md."""
    peak, at = base * total / 256, step / epoch
    if at < 40:
        return peak * at / 40
    return peak * 0.5 * (1 + np.cos(np.pi * (at - 40) / (800 - 40)))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "method,expected,base,batch",
    [
        ("mim", simmim_learning_rate, 1e-4, 2048),
        ("mae", mae_learning_rate, 1.5e-4, 4096),
    ],
)
def test_learning_rates_match_the_publications(method, expected, base, batch):
    data = dataclasses.replace(imagenet(), num_train=625 * batch)
    job = programs.plan(recipe, recipe.Config(method=method, model="ViTB16"), data)
    _, rate = job.optimizer()
    assert job.steps == 800 * 625
    for epoch in (0, 0.5, 5, 9.999, 10, 40, 300, 699.999, 700, 750, 799.9):
        step = round(epoch * 625)
        np.testing.assert_allclose(
            float(rate(step)),
            expected(step, 625, base, batch),
            rtol=1e-4,
            atol=1e-9,
        )


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.usefixtures("three_blocks")
@pytest.mark.parametrize("method", presets.MASKED)
def test_encoders_and_decays_match_the_publications(method):
    """ViT-Ti/16 for small images, otherwise as published.

    In PyTorch all weights of more than one dimension decay, except SimMIM's
    `cls_token` (which decays here; see MASKED) and `pos_embed`.
    """
    small = {"model": "ViTTi16", "image_size": 64, "steps": 10}
    config = recipe.Config(method=method, **small)
    job = programs.plan(recipe, config, imagenet())
    model, (optimizer, rate) = job.build(), job.optimizer()
    block = model.encoder.get_layer("block_2")
    assert ENCODERS[method] == (
        job.batches["protocol"],
        job.batches["mode"],
        optimizer.global_clipnorm,
        block.drop_path,
        getattr(model, "mask_patch_size", None),
        block.activation,
        block.layer_scale,
    )
    assert model.encoder.get_layer("block_0").drop_path == 0
    assert block.norm_epsilon == 1e-6
    if method == "mim":
        # ceil(0.6 * 4) of 4 units of 2 x 2 patches
        assert set(numpy(model.sample_mask(3, seed=0)).sum(1)) == {12}
    if method == "mae":
        decoder = model.decoder.get_layer("block_0")
        assert (decoder.num_heads, decoder.mlp_dim) == (16, 2048)
        assert model.norm_pixels
    optimizer.build(model.trainable_variables)
    step = job.config.warmup_steps
    optimizer.iterations.assign(step)
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones(variable.shape))
    optimizer.apply([keras.ops.zeros(v.shape) for v in model.trainable_variables])
    decay = float(rate(step)) * (0 if method == "mpp" else 0.05)
    mask_token = "decoder/mask_token" if method == "mae" else "mask_token"
    tokens = {"class_token/tokens", f"{mask_token}/tokens"}
    for path, variable in model.variables_by_path().items():
        if variable.trainable:
            decays = path.endswith(("/kernel", "/tokens"))
            found = 1 - float(numpy(variable).mean())
            expected = decay if decays else 0
            assert found == pytest.approx(expected, rel=0.01, abs=1e-9), path
            tokens.discard(path)
    assert not tokens and (decay > 0 or method == "mpp")


@pytest.mark.suite("jax", "torch")
@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "mim",
        pytest.param("mae", marks=pytest.mark.backends("torch")),
        pytest.param("mpp", marks=[pytest.mark.backends("torch"), pytest.mark.nightly]),
    ],
)
def test_files_of_a_run_are_fine_tuned(method, finished):
    output = finished(method)
    assert {"test_loss"} < read_metadata(output).keys()
    rows = rows_of(output)
    names = ["step", "train_loss", "test_loss", "learning_rate"]
    assert list(rows[0])[:4] == names
    assert int(rows[-1]["step"]) == 6
    pictures = sorted(p.name for p in (output / "reconstructions").iterdir())
    assert {"step-00000003.png", "step-00000006.png"} <= set(pictures)
    # The folder, the encoder and the whole model are the same to fine-tune.
    whole = keras_vit.pretraining.load(output / "model.keras")
    kernel = numpy(whole.encoder.get_layer("block_0").mlp.dense_1.kernel)
    data = keras_vit.data.load_dataset("digits")
    for weights in (output, output / "encoder.keras", output / "model.keras"):
        config = finetune.Config(weights=str(weights), steps=1)
        job = programs.plan(finetune, config, data)
        assert (job.config.image_size, job.config.patch_size) == (8, 2)
        model = job.build()
        found = numpy(model.get_layer("block_0").mlp.dense_1.kernel)
        np.testing.assert_array_equal(found, kernel)
        assert model.output_shape == (None, 10)
        # What was fixed in pre-training learns here.
        assert model.get_layer("position_embedding").trainable_variables


@pytest.mark.backends("torch")
def test_a_run_that_stops_early_draws_its_last_step(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "selection_score", lambda row: -row["step"])
    settings = {"method": "mim", "steps": 6, "evaluate_every": 1, "patience": 1}
    recipe.main(recipe.Config(output=str(tmp_path), picture_every=9, **settings))
    assert [row["step"] for row in rows_of(tmp_path)] == ["1", "2"]
    (picture,) = (tmp_path / "reconstructions").iterdir()
    assert picture.name == "step-00000002.png"


@pytest.mark.backends("torch")
def test_pixel_range_of_each_mode():
    assert curves.pixel_range("tf", 1) == ((-1.0,), (1.0,))
    low, high = curves.pixel_range("torch", 3)
    np.testing.assert_allclose(low, [-2.1179, -2.0357, -1.8044], atol=1e-3)
    np.testing.assert_allclose(high, [2.2489, 2.4286, 2.6400], atol=1e-3)
