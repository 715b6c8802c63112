"""Commands of docs/reproduce.md have the published settings."""

import dataclasses
import pathlib
import re
import shlex
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.data.randaugment import AUGREG
from keras_vit.models import BIT_VARIANTS
from keras_vit.models import VARIANTS
from keras_vit.training import command_line
from keras_vit.training import setup
from tests.recipes import programs
from tests.recipes import published
from tests.training.mocked import mocked

pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.backends("torch")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reproduce.md"
finetune = programs.load("finetune_cifar")
pretrain = programs.load("pretrain")


def commands():
    """Returns every command of the page with an argument or more.

    Masked pre-training has tests of its own (test_pretrain_masked.py).
    """
    text = re.sub(r"## Learning without labels.*?(?=\n## )", "",
                  PAGE.read_text(), flags=re.DOTALL)  # fmt: skip
    return re.findall(r"(recipes/\w+\.py --[^`\n|]*)", text)


COMMANDS = commands()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """TFDS with the metadata of prepared data sets."""
    with mocked(tmp_path_factory.mktemp("tfds"), published.SIZES):
        yield


@pytest.fixture(autouse=True)
def no_files(monkeypatch, tmp_path):
    """Released weights are not read: their variants give the sizes."""
    resolve = training.resolve_model_spec
    find = keras_vit.data.load_dataset

    def spec_of(model, weights, patch_size=None):
        if weights is None or model is None:
            return resolve(model, weights, patch_size)
        assert model in VARIANTS or model in BIT_VARIANTS
        return resolve(model, None, patch_size)

    def load_dataset(name, holdout=0.0, *others):
        if name != "imagenet21k":
            return find(name, holdout, *others)
        # A set that its user prepares: test has the first images.
        assert not holdout
        digits = find("digits")
        return dataclasses.replace(
            digits, name=name, image_size=None, channels=3, num_train=14_145_922
        )

    monkeypatch.setattr(training, "resolve_model_spec", spec_of)
    monkeypatch.setattr(setup, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)


def config_of(program, command):
    _, *argv = shlex.split(command)
    return command_line.parse_args(program.Config, "", argv)


def size_of(split, dataset):
    """Returns the number of images of such as "train[:98%]"."""
    count = published.SIZES[dataset]["train"]
    name, start, stop = re.match(
        r"(\w+)(?:\[(\d*)%?:(\d*)%?\])?", split
    ).groups()
    assert name == "train"
    first, last = (
        round(int(x) / 100 * count) if x else default
        for x, default in ((start, 0), (stop, count))
    )
    return last - first


def kernel_of(optimizer):
    """Returns a kernel of ones that the optimizer is built for."""
    kernel = keras.Variable(np.ones((2, 2), "float32"), name="kernel")
    optimizer.build([kernel])
    return kernel


def momentum_dtype(optimizer):
    kernel_of(optimizer)
    return keras.backend.standardize_dtype(optimizer.momentums[0].dtype)


def lost_at_peak(optimizer, warmup_steps):
    """Returns the fraction of a kernel that decays in a step at the peak."""
    kernel = kernel_of(optimizer)
    optimizer.iterations.assign(warmup_steps)
    optimizer.apply([keras.ops.zeros((2, 2))], [kernel])
    return 1 - keras.ops.convert_to_numpy(kernel)[0, 0]


def test_every_documented_command_is_known():
    tuned = [x for x in COMMANDS if "finetune_cifar" in x]
    assert tuned == list(published.FINE_TUNING)
    pretrained = [x for x in COMMANDS if "pretrain.py" in x]
    found = {
        config_of(pretrain, x).preset: config_of(pretrain, x).dataset
        for x in pretrained
    }
    assert found == {
        name: values["dataset"]
        for name, values in published.PRETRAINING.items()
    }
    assert set(found) == set(training.PRE_TRAINING) - {None}
    # The others are of the digits of an earlier run, or have tests below.
    for command in set(COMMANDS) - {*tuned, *pretrained}:
        name = re.match(r"recipes/(\w+)\.py", command)[1]
        config_of(programs.load(name), command)
        assert "runs/digits" in command or name in (
            *("few_shot", "vtab"),
            *("pretrain_masked", "scale"),
        )


@pytest.mark.parametrize("command", published.FINE_TUNING)
def test_fine_tuning_settings_match_the_publications(command, datasets):
    source = published.FINE_TUNING[command]
    config = config_of(finetune, command)
    if config.sweep:
        rates = command_line.parse_learning_rates(config.sweep, config.dataset)
        assert rates == source["sweep"]
        _, data, _ = setup.begin(config)
        assert data.num_validation == size_of(
            source["held_out"], config.dataset
        )
        config = dataclasses.replace(
            config, sweep=None, holdout=0.0, learning_rate=source["base_lr"]
        )
        data = setup.load_run_data(config)  # as the sweep's last training
    else:
        _, data, _ = setup.begin(config)
    job = programs.plan(finetune, config, data)
    config = job.config
    optimizer, rate = job.optimizer()
    assert data.num_train == size_of(source["train"], config.dataset)
    assert job.split == "test"
    assert data.num_test == published.SIZES[config.dataset][source["test"]]
    assert config.image_size == source["crop"]
    assert config.batch_size == source["batch"]
    assert job.steps == source["total_steps"]
    assert config.protocol == source["pp"]
    assert config.mode == "tf"
    assert config.dropout == source["dropout_rate"]
    assert config.mixup == source.get("mixup", 0.0)
    assert (config.augment, config.cutmix) == ("none", 0.0)
    assert (config.weight_decay, config.layer_decay) == (None, None)
    assert config.average == source.get("polyak", 0.0)
    assert type(optimizer) is keras_vit.optimizers.PublishedSGD
    assert optimizer.momentum == source["momentum"]
    assert momentum_dtype(optimizer) == source["optim_dtype"]
    assert optimizer.global_clipnorm == source["grad_norm_clip"]
    assert optimizer.use_ema == ("polyak" in source)
    micro_batches = optimizer.gradient_accumulation_steps or 1
    assert micro_batches == config.accumulate
    if micro_batches == 1:
        assert lost_at_peak(job.optimizer()[0], 500) == 0
    assert rate.peak == source["base_lr"]
    if source["decay_type"] == "cosine":
        assert (
            type(rate) is keras_vit.schedules.WarmupDecay
            and rate.decay == "cosine"
        )
        assert rate.warmup_steps == source["warmup_steps"]
        assert rate.steps == source["total_steps"]
        return
    first, *falls = source["supports"]
    assert float(rate(first)) == pytest.approx(rate.peak)
    assert float(rate(first / 2)) == pytest.approx(rate.peak / 2)
    for i, step in enumerate(falls[:-1]):
        assert float(rate(step)) == pytest.approx(rate.peak / 10**i)
        assert float(rate(step + 1)) == pytest.approx(rate.peak / 10 ** (i + 1))


@pytest.mark.parametrize("model", published.MAE_FINETUNE)
def test_fine_tuning_settings_match_mae(model, datasets):
    """FINETUNE.md's commands and the defaults of main_finetune.py."""
    source = published.MAE_FINETUNE[model]
    command = f"mae --dataset imagenet2012 --model {model} --weights x.npz"
    config = config_of(finetune, f"x --preset {command}")
    _, data, _ = setup.begin(config)
    job = programs.plan(finetune, config, data)
    config, (optimizer, rate) = job.config, job.optimizer()
    batch = source["batch_size"] * source["gpus"]
    steps_per_epoch = -(-data.num_train // batch)
    assert data.num_train == size_of("train", "imagenet2012")
    assert (config.image_size, config.batch_size) == (224, batch)
    assert job.steps == source["epochs"] * steps_per_epoch
    assert type(rate) is keras_vit.schedules.WarmupDecay
    assert rate.decay == "cosine"
    assert rate.peak == pytest.approx(source["blr"] * batch / 256)
    assert rate.warmup_steps == source["warmup_epochs"] * steps_per_epoch
    assert type(optimizer) is keras_vit.optimizers.PublishedAdamW
    assert optimizer.epsilon == 1e-8
    assert (optimizer.beta_1, optimizer.beta_2) == (0.9, 0.999)
    assert optimizer.weight_decay == source["weight_decay"]
    assert optimizer.decay_kernels_only
    assert optimizer.layer_decay == source["layer_decay"]
    assert optimizer.global_clipnorm is source["clip_grad"]
    assert config.drop_path == source["drop_path"]
    assert config.dropout == 0.0
    assert (config.mixup, config.cutmix) == (source["mixup"], source["cutmix"])
    assert config.label_smoothing == source["smoothing"]
    assert config.erase == source["reprob"]
    assert config.pooling == "gap" and source["global_pool"]
    assert config.protocol == "mae-finetune"
    # rand-m9-mstd0.5-inc1 of timm
    assert AUGREG[config.augment][:2] == (2, 10)


def test_preset_settings_depend_on_the_model(datasets):
    def complete(flags):
        config = config_of(
            finetune, f"x --preset mae --dataset imagenet2012 {flags}"
        )
        return config.published.fill(config)

    with pytest.raises(ValueError, match="depends on the model"):
        complete("--weights x.npz")
    small = "--model ViTS16 --weights x.npz --learning-rate 0.001 --steps 9"
    with pytest.raises(
        ValueError,
        match="For ViTS16, give --warmup, --layer-decay, --drop-path too",
    ):
        complete(small)
    rest = "--warmup-steps 2 --layer-decay 0.8 --drop-path 0.1"
    config = complete(f"{small} {rest}")
    # A learning rate that is given is not multiplied.
    assert (config.learning_rate, config.steps) == (0.001, 9)
    config = complete("--model ViTB16 --weights x.npz --batch-size 256")
    assert config.learning_rate == pytest.approx(5e-4)
    with pytest.raises(ValueError, match="learning rates of adamw"):
        finetune.Config(preset="mae", weights="x.npz", optimizer="sgd")


def test_mae_head_reads_the_mean_of_the_patches(tmp_path):
    """models_vit.py: `fc_norm(x[:, 1:].mean(dim=1))`, of the last block."""
    arguments = {"patch_size": 4, "hidden_size": 16, "num_layers": 2}
    model = keras_vit.VisionTransformer(
        **arguments, input_shape=(8, 8, 3), num_heads=2, include_top=False
    )
    for variable in model.variables:
        noise = keras.random.normal(variable.shape, stddev=0.3, seed=1)
        variable.assign(variable + noise)
    path = tmp_path / "mae.npz"
    keras_vit.converters.save(model, path)
    tuned = training.build_model(
        None,
        str(path),
        None,
        mean_pooling=True,
        input_shape=(8, 8, 3),
        classes=5,
    )
    assert not any(x.name == "encoder_norm" for x in tuned.layers)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3))
    tokens = keras.Model(model.input, model.get_layer("block_1").output)
    mean = keras.ops.convert_to_numpy(tokens(images))[:, 1:].mean(1)
    found = keras.Model(tuned.input, tuned.get_layer("head").input)(images)
    expected = (mean - mean.mean(-1, keepdims=True)) / np.sqrt(
        mean.var(-1, keepdims=True) + 1e-6
    )
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(found), expected, atol=1e-5
    )
    assert tuned.get_layer("head").kernel.shape == (16, 5)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (finetune, "--preset vit_jax --dataset cifar10 --weights x.npz"),
        (pretrain, "--preset augreg-imagenet --dataset imagenet2012"),
    ],
)
def test_holdout_0_trains_on_all_images(program, command, datasets):
    config = config_of(program, f"recipe.py {command} --holdout 0")
    _, data, _ = setup.begin(config)
    count = published.SIZES[config.dataset]["train"]
    assert (data.num_train, data.num_validation) == (count, 0)
    # Without the flag, the preset leaves some out.
    _, data, _ = setup.begin(dataclasses.replace(config, holdout=None))
    assert (data.num_train < count, data.num_validation) == (True, 0)


@pytest.mark.parametrize("name", published.PRETRAINING)
def test_pre_training_settings_match_the_publications(name, datasets):
    source = published.PRETRAINING[name]
    command = f"--preset {name} --dataset {source['dataset']}"
    config = config_of(pretrain, f"pretrain.py {command}")
    _, data, _ = setup.begin(config)
    job = programs.plan(pretrain, config, data)
    config = job.config
    optimizer, rate = job.optimizer()
    count = 14_145_922
    if source["dataset"] == "imagenet2012":
        count = size_of(source["split"], source["dataset"])
    assert data.num_train == count and job.split == "test"
    batch = source["batch_size"]
    steps = round(source["total_epochs"] * count / batch)
    assert job.steps == steps == source.get("total_steps", steps)
    assert config.batch_size == batch and config.image_size == 224
    assert config.model == source["model"]
    assert job.loss == source["loss"]
    assert config.head_bias == source["init_head_bias"]
    assert config.protocol == source["pp"]
    level = AUGREG[config.augment]
    assert level[:2] == (source["randaug"] or (0, 0))
    assert config.mixup == source["mixup"]
    assert "scaled" not in config.augment
    assert (rate.peak, rate.warmup_steps, rate.decay, rate.steps) == (
        pytest.approx(source["lr"]),
        source["warmup_steps"],
        source["decay_type"],
        steps,
    )
    assert optimizer.global_clipnorm == source["grad_clip_norm"]
    assert momentum_dtype(optimizer) == source["mu_dtype"]
    lost = lost_at_peak(job.optimizer()[0], source["warmup_steps"])
    assert lost == pytest.approx(source["wd"], rel=2e-3)
    if "momentum" in source:
        assert type(optimizer) is keras_vit.optimizers.PublishedSGD
        assert optimizer.momentum == source["momentum"]
    else:
        assert type(optimizer) is keras_vit.optimizers.PublishedAdamW
        assert optimizer.beta_1 == source["b1"]
        assert optimizer.beta_2 == source["b2"]
    assert (config.dropout or 0) == source["dropout"]
    for ours, theirs in published.OPTIONS.items():
        assert (getattr(config, ours) or 0) == source.get(theirs, 0), ours
    width = VARIANTS[config.model].sizes()["hidden_size"] if (
        config.model in VARIANTS) else 0  # fmt: skip
    expected = width if source["rep_size"] else 0
    assert (config.representation_size or 0) == expected


def built(preset, **settings):
    """Returns the model that a preset trains, for small images."""
    digits = keras_vit.data.load_dataset("digits")
    config = pretrain.Config(preset=preset, image_size=32, **settings)
    return programs.plan(pretrain, config, digits).build()


@pytest.mark.parametrize("name", ["augreg-imagenet", "augreg-imagenet21k"])
def test_augreg_positions_match_big_vision(name):
    """big_vision/models/vit.py: get_posemb, and _Model.__call__."""
    assert published.PRETRAINING[name]["posemb"] == "learn"
    model = built(name, model="ViTTi16", augment="none")
    layer = model.get_layer("position_embedding")
    assert layer.num_prefix_tokens == 0  # the class token has no position
    assert layer.embedding.shape == (1, 4, 192)
    values = keras.ops.convert_to_numpy(layer.embedding)
    assert values.std() == pytest.approx(192**-0.5, rel=0.1)
    assert values.mean() == pytest.approx(0, abs=0.01)
    (token,) = model.get_layer("class_token").get_weights()
    assert not token.any()


def test_paper_positions_match_vit_jax():
    assert published.PRETRAINING["paper-imagenet"]["posemb"] == "vit_jax"
    model = built("paper-imagenet", model="ViTTi16")
    layer = model.get_layer("position_embedding")
    assert layer.embedding.shape == (1, 5, 192)
    values = keras.ops.convert_to_numpy(layer.embedding)
    assert values.std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [x for x, y in published.PRETRAINING.items() if "preactivation" in y],
)
def test_bit_networks_match_big_vision(name):
    """big_vision/models/bit.py and bit_paper.py"""
    model = built(name, model="compact-bit")
    names = {layer.name for layer in model.layers}
    before = published.PRETRAINING[name]["preactivation"]
    assert ("final_norm" in names) == before
    unit = model.get_layer("stage_1_unit_1")
    assert unit.preactivation == before
    gamma = keras.ops.convert_to_numpy(unit.norm_3.gamma)
    assert (gamma == before).all()  # ones, or zeros
    full = keras_vit.BiT_R50x1(
        preactivation=before, input_shape=(32, 32, 3), classes=10
    )
    assert ("final_norm" in {x.name for x in full.layers}) == before


def test_few_shot_settings_match_big_vision(monkeypatch):
    (command,) = (x for x in COMMANDS if "few_shot" in x and "oxford" in x)
    few_shot = programs.load("few_shot")
    config = config_of(few_shot, command)
    source = published.FEW_SHOT
    assert config.shots == source["shots"]
    assert config.l2 == (source["l2_reg"],)
    assert config.seeds == source["num_seeds"]
    # 224 pixels are the size of these weights.
    model = types.SimpleNamespace(output=np.zeros((1, 3)))
    trained = keras_vit.evaluation.LoadedClassifier(model, 224, 3, "tf")
    images, labels = np.zeros((4, 8, 8, 3), "uint8"), [0, 1, 0, 1]
    data = keras_vit.data.from_arrays(images, labels, (images, labels))
    seen = []

    class Stop(Exception):
        pass

    def batches(self, split, **options):
        seen.append(options)
        if len(seen) == 2:
            raise Stop
        return options

    monkeypatch.setattr(few_shot.Config, "trained", lambda self: trained)
    monkeypatch.setattr(type(trained), "describe", lambda self: "")
    monkeypatch.setattr(type(trained), "for_batches", lambda self, x: x)
    monkeypatch.setattr(few_shot.Config, "load_data", lambda *_: data)
    monkeypatch.setattr(
        keras_vit.evaluation, "feature_model", lambda model: model
    )
    monkeypatch.setattr(keras_vit.data.ImageDataset, "batches", batches)
    with pytest.raises(Stop):
        few_shot.main(config)
    for options in seen:
        assert options["protocol"] == source["pp"]
        assert options["image_size"] == 224 and options["mode"] == "tf"


def test_vtab_settings_match_the_paper():
    (command,) = (x for x in COMMANDS if "vtab" in x)
    vtab = programs.load("vtab")
    config = config_of(vtab, command)
    source = published.VTAB
    assert config.steps == source["steps"]
    assert config.learning_rate == source["lr"]
    assert config.image_size == source["resolution"]
    assert config.batch_size == source["batch"]
    assert len(keras_vit.data.VTAB_TASKS) == source["tasks"]
    rate = keras_vit.schedules.warmup_cosine(0.01, config.steps, config.warmup)
    assert rate.warmup_steps == published.VIT_JAX["warmup_steps"]
    optimizer = vtab.optimizer_of(rate)
    assert optimizer.momentum == source["momentum"]
    assert optimizer.global_clipnorm == source["grad_norm_clip"]
    assert momentum_dtype(optimizer) == source["optim_dtype"]
