import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.training import _masked
from keras_vit.training import _models
from tests.recipes import programs
from tests.recipes.programs import facts_of
from tests.recipes.programs import rows_of

recipe = programs.load("pretrain_masked")
finetune = programs.load("finetune_cifar")
main = training.main_of(recipe.plan)


@pytest.fixture(scope="module", autouse=True)
def small_model():
    """Of compact-vit one narrow block: most of the time is compiling."""
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    small = ("VisionTransformer", {**sizes, "pooling": "gap"}, None)
    decoder = {"decoder_layers": 1, "decoder_width": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_models.COMPACT, "compact-vit", small)
        patch.setattr(_masked, "SMALL_DECODER", decoder)
        yield


def imagenet():
    return dataclasses.replace(
        training.find_data("digits"),
        name="imagenet2012",
        num_train=1_281_167,
        image_size=None,
        channels=3,
    )


# As published, not what the table in the package says: batch, steps, rate,
# decay a step, warm-up, second beta, ratio.
PUBLISHED = {
    "mpp": (4096, 1_000_000, 2e-4, 0.0, 10_000, 0.999, 0.5),
    "mim": (2048, 500_456, 4e-4, 2e-5, 6_256, 0.999, 0.6),
    "mae": (4096, 250_228, 2.4e-3, 1.2e-4, 12_511, 0.95, 0.75),
}


@pytest.mark.parametrize("method", training.METHODS)
def test_defaults_are_what_was_published(method):
    given = recipe.Config(method=method, model="ViTB16")
    job = recipe.plan(given, imagenet())
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
    )
    if method == "mae":
        assert (config.decoder_layers, config.decoder_width) == (8, 512)
        # 1.5e-4 for 256 images.
        given = dataclasses.replace(given, batch_size=256)
        job = recipe.plan(given, imagenet())
        assert job.config.learning_rate == pytest.approx(1.5e-4)


@pytest.mark.parametrize("method", training.METHODS)
def test_pre_trains_and_fine_tunes(method, tmp_path):
    output = tmp_path / "run"
    main(
        recipe.Config(
            method=method, steps=6, picture_every=3, output=str(output)
        )
    )
    assert {"test_loss"} < facts_of(output).keys()
    rows = rows_of(output)
    assert list(rows[0])[:4] == ["step", "train_loss", "test_loss"] + [
        "learning_rate"
    ]
    assert int(rows[-1]["step"]) == 6
    pictures = sorted(p.name for p in (output / "reconstructions").iterdir())
    assert {"step-00000003.png", "step-00000006.png"} <= set(pictures)
    whole = keras_vit.pretraining.load(output / "model.keras")
    kernel = whole.encoder.get_layer("block_0").mlp.dense_1.kernel

    # The folder, the encoder and the whole model are the same to fine-tune.
    for weights in (output, output / "encoder.keras", output / "model.keras"):
        config = finetune.Config(weights=str(weights), steps=1)
        job = finetune.plan(config, training.find_data("digits"))
        assert (job.config.image_size, job.config.patch_size) == (8, 2)
        model = job.build()
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(
                model.get_layer("block_0").mlp.dense_1.kernel
            ),
            keras.ops.convert_to_numpy(kernel),
        )
        assert model.output_shape == (None, 10)
        # What was fixed in pre-training learns here.
        assert model.get_layer("position_embedding").trainable_variables


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    given = dict(method="mae", steps=6, checkpoint_every=2, batch_size=16)
    main(recipe.Config(output=str(tmp_path / "whole"), **given))

    class Stop(Exception):
        pass

    def stopped(self, batch, logs=None):
        draw(self, batch, logs)
        if self._step == 5:
            raise Stop

    draw = training.Reconstructions.on_train_batch_end
    part = recipe.Config(output=str(tmp_path / "part"), **given)
    with monkeypatch.context() as patch:
        patch.setattr(training.Reconstructions, "on_train_batch_end", stopped)
        with pytest.raises(Stop):
            main(part)
    main(part)
    found, expected = (
        keras.models.load_model(tmp_path / name / "encoder.keras").get_weights()
        for name in ("part", "whole")
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_mistakes_are_said_before_training(tmp_path):
    for message, settings in (
        ("--method takes", {"method": "beit"}),
        ("labels, which are not read", {"mixup": 0.2}),
        ("is no Vision Transformer", {"model": "BiT_R50x1"}),
        ("is no Vision Transformer", {"model": "R50ViTB16"}),
        ("4 x 4", {"method": "mpp", "target": "downsized"}),
    ):
        with pytest.raises(ValueError, match=message):
            main(recipe.Config(output=str(tmp_path / "out"), **settings))
    assert not (tmp_path / "out").exists()


def test_the_range_of_pixels():
    assert _masked.pixel_range("tf", 1) == ((-1.0,), (1.0,))
    low, high = _masked.pixel_range("torch", 3)
    np.testing.assert_allclose(low, [-2.1179, -2.0357, -1.8044], atol=1e-3)
    np.testing.assert_allclose(high, [2.2489, 2.4286, 2.6400], atol=1e-3)
