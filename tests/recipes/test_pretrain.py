import contextlib
import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit_programs import runs
from tests.recipes import programs
from tests.recipes.programs import imagenet, read_metadata, rows_of

recipe = programs.load("pretrain")
finetune = programs.load("finetune_cifar")


def digits_data():
    return keras_vit.data.load_dataset("digits")


@pytest.mark.backends("torch")
def test_given_flags_override_the_preset():
    given = dict(
        model="ViTS32",
        batch_size=512,
        epochs=2,
        learning_rate=0.1,
        warmup_steps=7,
        clip=0.0,
        head_bias=0.0,
        loss="softmax",
        mixup=0.0,
        representation_size=0,
        decay="linear",
        weight_decay=0.0,
        dropout=0.0,
        momentum_dtype="float32",
        protocol="vit_jax",
        drop_path=0.1,
    )
    config = recipe.Config(preset="augreg-imagenet", **given)
    job = programs.plan(recipe, config, imagenet())
    del given["epochs"]  # they have become steps
    found = {name: getattr(job.config, name) for name in given}
    assert found == given
    assert job.steps == 5005
    # Not given, and for this model.
    assert job.config.augment == "medium1"
    assert job.optimizer()[0].global_clipnorm is None
    config = recipe.Config(preset="paper-imagenet", steps=9, warmup_steps=0)
    assert programs.plan(recipe, config, imagenet()).steps == 9


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "rate", "decay"),
    [
        # AugReg trained with 1e-3 and 3e-4, and a decay of 1e-4 with both.
        ({"preset": "augreg-imagenet", "learning_rate": 3e-4}, 3e-4, 1e-4),
        # big_vision: 3e-5 for 256 images.
        ({"preset": "bit-s", "batch_size": 256}, 0.03, 3e-5),
        ({"preset": "bit-s", "learning_rate": 0.2}, 0.2, None),
        ({"preset": "paper-imagenet", "batch_size": 256}, 3e-3, None),
    ],
)
def test_learning_rates_and_decays(settings, rate, decay):
    job = programs.plan(recipe, recipe.Config(**settings), imagenet())
    assert job.config.learning_rate == pytest.approx(rate)
    if decay is not None:
        found = job.optimizer()[0].weight_decay * rate
        assert found == pytest.approx(decay)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "more, warned",
    [
        ({}, True),
        ({"show_settings": True}, True),
        ({"learning_rate": 1e-4}, False),
        ({"preset": "bit-s"}, False),
    ],
)
def test_a_rate_for_another_batch_size_has_a_warning(more, warned, recwarn):
    given = recipe.Config(**{"preset": "big-vision-s16", "batch_size": 64, **more})
    with contextlib.suppress(SystemExit):
        recipe.resolve_config(given, imagenet())
    said = [str(x.message) for x in recwarn if "is for batches of" in str(x.message)]
    assert len(said) == warned
    if warned:  # the published rate is 0.001
        assert "of 1024 images" in said[0] and "in proportion 6.25e-05" in said[0]


@pytest.mark.backends("torch")
def test_small_dataset_reduces_batch_size_and_warmup():
    job = programs.plan(recipe, recipe.Config(), digits_data())
    # 1438 / 20 is 71, of which 64 is the power of two below.
    assert job.config.batch_size == 64 and job.steps == 2247
    assert job.config.warmup_steps == 449
    assert "batch size 64 for 4096, warmup steps 449 for 10000" in job.summary
    given = recipe.Config(batch_size=1000, warmup_steps=3)
    assert programs.plan(recipe, given, digits_data()).summary == "from scratch"
    tiny = dataclasses.replace(digits_data(), num_train=7)
    config = recipe.resolve_config(recipe.Config(accumulate=3), tiny)
    assert config.batch_size == 3


@pytest.mark.backends("torch")
def test_augmentation_sets_mixup():
    def mixup(**settings):
        config = recipe.Config(model="ViTB16", **settings)
        return recipe.resolve_config(config, imagenet()).mixup

    assert [mixup(augment=level) for level in keras_vit.data.AUGREG] == [
        *(0.0, 0.0, 0.2, 0.2, 0.5, 0.5, 0.8),
        *(0.2, 0.2, 0.5, 0.5, 0.8),  # light2-scaled and so on
    ]
    assert mixup(augment="strong2", mixup=0.1) == 0.1
    assert mixup() == 0.0


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("three_blocks")
def test_dropout_and_drop_path_placement():
    """Dropout follows the positions, the attention and both dense layers of an
    MLP, but not the attention probabilities; drop path grows linearly from
    0."""
    config = recipe.Config(model="ViTTi16", dropout=0.1, drop_path=0.3)
    config = dataclasses.replace(config, image_size=32, patch_size=16)
    model = programs.plan(recipe, config, digits_data()).build()
    assert model.get_layer("embedding_dropout").rate == 0.1
    names = [layer.name for layer in model.layers]
    before = names.index("position_embedding")
    assert names.index("embedding_dropout") == before + 1
    for i in range(3):
        block = model.get_layer(f"block_{i}")
        assert block.drop_path == pytest.approx(0.3 * i / 2)
        assert (block.dropout, block.attention_dropout) == (0.1, 0.0)
        assert block.mlp.dropout == 0.1
    # The paper's tanh layer, of the hidden size.
    assert model.get_layer("pre_logits").units == 192


def test_files_of_a_run(finished):
    pretrained = finished("pretrain")
    found = sorted(path.name for path in pretrained.iterdir())
    assert found == sorted([*runs.FILES, "log.txt"])
    config = read_metadata(pretrained)["config"]
    assert config["preset"] == "paper-imagenet21k"
    assert config["loss"] == "sigmoid" and config["decay"] == "linear"
    assert config["dropout"] == 0.1 and config["representation_size"] == 16
    rows = rows_of(pretrained)
    assert [int(row["step"]) for row in rows] == [*range(1, 7)]
    # All logits are -10: nine classes are classified correctly, one wrongly.
    # The first rate of the warm-up is 0, and this the first step's loss.
    expected = 9 * np.log1p(np.exp(-10)) + np.log1p(np.exp(10))
    assert float(rows[0]["train_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(rows[-1]["test_loss"]) < 10
    model = keras.models.load_model(pretrained / "model.keras")
    assert model.get_layer("head").get_weights()[1].max() < -9


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.usefixtures("few_files")
def test_fine_tuning_drops_the_representation_layer(finished, tmp_path):
    pretrained = finished("pretrain")
    before = keras.models.load_model(pretrained / "model.keras")
    assert before.get_layer("pre_logits").weights
    settings = {"steps": 1, "batch_size": 64, "image_size": 16}
    weights, output = str(pretrained / "model.npz"), str(tmp_path)
    finetune.main(finetune.Config(weights=weights, output=output, **settings))
    after = keras.models.load_model(tmp_path / "model.keras")
    assert after.input_shape == (None, 16, 16, 1)
    assert not after.get_layer("pre_logits").weights
    # The one step is the first of a warm-up, at a rate of 0.
    for name in ("patch_embedding", "block_0", "block_1", "encoder_norm"):
        for old, new in zip(
            before.get_layer(name).get_weights(),
            after.get_layer(name).get_weights(),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)
    assert not np.any(after.get_layer("head").get_weights()[0])


@pytest.mark.backends("torch")
def test_resnet_models_have_the_head_bias():
    config = recipe.Config(preset="bit-m", model="compact-bit")
    model = programs.plan(recipe, config, digits_data()).build()
    kernel, bias = model.get_layer("head").get_weights()
    assert (bias == -10).all() and not kernel.any()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "preset, published, compact",
    [
        ("paper-imagenet", "BiT_R50x1", "compact-bit"),
        ("augreg-imagenet", "BiT_R50x1", "compact-bit"),
        ("big-vision-bit-imagenet", "ViTB16", "compact-vit"),
    ],
)
def test_presets_are_for_models_of_another_family(preset, published, compact):
    given = {"preset": preset}
    if preset == "augreg-imagenet":
        given["augment"] = "none"
    config = recipe.Config(model=published, **given)
    found = recipe.resolve_config(config, imagenet())
    assert not found.dropout and not found.positions_of_big_vision
    assert found.preactivation is None
    config = recipe.Config(model=compact, **given)
    programs.plan(recipe, config, digits_data()).build()
