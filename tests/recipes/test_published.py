"""Commands of docs/reproduce.md and docs/accuracies.md have the published settings."""

import dataclasses
import pathlib
import re
import shlex

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import BIT_VARIANTS, VARIANTS
from keras_vit.data.steps.randaugment import AUGREG
from keras_vit.evaluation.classifiers import image_settings
from keras_vit_programs import building, flags, presets, setup, sizes
from tests import small
from tests.recipes import programs, published
from tests.training.mocked import mocked

pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.backends("torch")
DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE, TABLES = DOCS / "reproduce.md", DOCS / "accuracies.md"
finetune = programs.load("finetune_cifar")
pretrain = programs.load("pretrain")


def commands():
    """Returns every command of the page with an argument or more."""
    return re.findall(r"(recipes/\w+\.py --[^`\n|]*)", PAGE.read_text())


def tables():
    """Returns the page of the tables; its commands are one line each."""
    return re.sub(r" \\\n +", " ", TABLES.read_text())


def cells():
    """Yields the command of each accuracy in the tables of a page: that above the
    table, with the model of its row and the dataset of its column."""
    names = {
        **{"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "Pets": "oxford_iiit_pet"},
        **{"Flowers": "oxford_flowers102", "ImageNet": "imagenet2012", "ReaL": None},
    }
    command, datasets = "", []
    for line in tables().splitlines():
        columns = [x.strip(" `") for x in line.split("|")[1:-1]]
        if "--dataset DATASET" in line:
            command = line.strip().removeprefix("python ")
        elif "| CIFAR-10 | CIFAR-100 |" in line:
            datasets = columns[1:]
        elif line.startswith("| `"):
            model, *values = columns
            for name, value in zip(datasets, values, strict=True):
                if names[name] and value != "-":
                    filled = command.replace("DATASET", names[name])
                    yield filled.replace("MODEL", model)


COMMANDS = commands()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """TFDS with the metadata of prepared data sets."""
    with mocked(tmp_path_factory.mktemp("tfds"), published.SIZES):
        yield


@pytest.fixture(autouse=True)
def no_files(monkeypatch, tmp_path):
    """Released weights are not read: their variants give the sizes."""
    resolve = sizes.resolve_model_spec
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

    monkeypatch.setattr(sizes, "resolve_model_spec", spec_of)
    monkeypatch.setattr(setup, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)


def config_of(program, command):
    _, *argv = shlex.split(command)
    return flags.parse_args(program.Config, "", argv)


def settings_of(program, config, data):
    """Returns what a run is trained with, by the names of `published`."""
    job = programs.plan(program, config, data)
    config, (optimizer, rate) = job.config, job.optimizer()
    kernel = keras.Variable(np.ones((2, 2), "float32"), name="kernel")
    found = {name: value or 0 for name, value in vars(config).items()}
    for name in ("momentum", "beta_1", "beta_2", "epsilon"):
        found[name] = getattr(optimizer, name, None)
    found |= {
        "num_train": data.num_train,
        "num_test": data.num_test,
        "split": job.split,
        "augment": AUGREG[config.augment][:2],
        "optimizer": type(optimizer).__name__,
        "clip": optimizer.global_clipnorm,
        "weight_decay": optimizer.weight_decay or 0,
        "layer_decay": optimizer.layer_decay or 0,
        "decay_kernels_only": optimizer.decay_kernels_only,
        "peak": rate.peak,
        "decay": getattr(rate, "decay", None),
        "warmup_steps": getattr(rate, "warmup_steps", None),
    }
    assert "scaled" not in config.augment
    assert optimizer.use_ema == bool(config.average)
    micro_batches = optimizer.gradient_accumulation_steps or 1
    assert micro_batches == config.accumulate
    assert getattr(rate, "steps", job.steps) == job.steps
    if found["layer_decay"] == 0:
        optimizer.build([kernel])
        dtype = optimizer.momentums[0].dtype
        found["momentum_dtype"] = keras.backend.standardize_dtype(dtype)
    if found["layer_decay"] == 0 and micro_batches == 1:
        optimizer.iterations.assign(found["warmup_steps"] or 500)
        optimizer.apply([keras.ops.zeros((2, 2))], [kernel])
        lost = 1 - keras.ops.convert_to_numpy(kernel)[0, 0]
        found["lost"] = pytest.approx(lost, rel=2e-3)
    return found, rate


def compare(found, expected):
    found = {name: found[name] for name in expected}
    for name, value in expected.items():
        if isinstance(value, float) and name != "lost":
            found[name] = pytest.approx(found[name], rel=1e-6)
    assert found == expected


def test_every_documented_command_is_known():
    tuned = [x for x in COMMANDS if "finetune_cifar" in x]
    assert tuned == list(published.FINE_TUNING)
    pretrained = [x for x in COMMANDS if "pretrain.py" in x]
    found = {
        config_of(pretrain, x).preset: config_of(pretrain, x).dataset
        for x in pretrained
    }
    assert found == {
        name: values["dataset"] for name, values in published.PRETRAINING.items()
    }
    assert set(found) == set(presets.PRE_TRAINING) - {None}
    # The others are of the digits of an earlier run, or have tests below.
    for command in set(COMMANDS) - {*tuned, *pretrained}:
        name = re.match(r"recipes/(\w+)\.py", command)[1]
        config_of(programs.load(name), command)
        assert "runs/digits" in command or name in (
            *("few_shot", "vtab"),
            *("pretrain_masked", "scale"),
        )


def test_every_cell_is_known():
    assert list(cells()) == list(published.CELLS)
    # The others have tests above, or are of runs of these.
    others = re.findall(r"(recipes/(\w+)\.py --.*)", tables())
    for command, name in others:
        if "DATASET" not in command:
            config = config_of(programs.load(name), command.replace("MODEL", "ViTL16"))
            if name == "finetune_cifar":
                assert command in published.FINE_TUNING
            elif name == "few_shot":
                assert (config.shots, config.max_train) == ((5,), 65_000)
                assert command in PAGE.read_text()


@pytest.mark.parametrize("command", [*published.FINE_TUNING, *published.MAE_FINETUNE])
def test_fine_tuning_settings_match_the_publications(command, datasets):
    check_fine_tuning(
        command, (published.FINE_TUNING | published.MAE_FINETUNE)[command]
    )


@pytest.mark.parametrize(
    "model", dict.fromkeys(x.split(" --model ")[1] for x in published.CELLS)
)
def test_settings_of_cells_match_the_publications(model, datasets):
    """The cells of a row."""
    for command, expected in published.CELLS.items():
        if command.endswith(f" --model {model}"):
            check_fine_tuning(command, expected)


def check_fine_tuning(command, expected):
    expected = dict(expected)
    if "--accumulate" not in command and "mae" not in command:
        expected["lost"] = 0.0
    config = config_of(finetune, command)
    is_imagenet = config.dataset == "imagenet2012"
    _, data, _ = setup.begin(config)
    if config.sweep:
        rates = flags.parse_learning_rates(config.sweep, config.dataset)
        assert rates == (published.SWEEP_IMAGENET if is_imagenet else published.SWEEP)
        assert data.num_validation == expected.pop("num_validation")
        config = dataclasses.replace(
            config, sweep=None, holdout=0.0, learning_rate=expected["peak"]
        )
        data = setup.load_run_data(config)  # as the sweep's last training
    found, rate = settings_of(finetune, config, data)
    compare(found, expected)
    if "bit-hyperrule" not in command:
        assert type(rate) is keras_vit.schedules.WarmupDecay
        return
    first, *falls = (
        published.BIT_SUPPORTS_IMAGENET if is_imagenet else published.BIT_SUPPORTS
    )
    assert float(rate(first)) == pytest.approx(rate.peak)
    assert float(rate(first / 2)) == pytest.approx(rate.peak / 2)
    for i, step in enumerate(falls):
        assert float(rate(step)) == pytest.approx(rate.peak / 10**i)
        assert float(rate(step + 1)) == pytest.approx(rate.peak / 10 ** (i + 1))


def test_preset_settings_depend_on_the_model(datasets):
    def complete(flags):
        config = config_of(finetune, f"x --preset mae --dataset imagenet2012 {flags}")
        values = config.published.values(vars(config))
        return dataclasses.replace(config, **values)

    with pytest.raises(ValueError, match="For other models, give --learning-rate"):
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
    model = small.vit(num_layers=2, include_top=False)
    small.randomize(model)
    path = tmp_path / "mae.npz"
    keras_vit.converters.save(model, path)
    tuned = building.build_model(
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
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, atol=1e-5)
    assert tuned.get_layer("head").kernel.shape == (16, 5)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (finetune, "--preset vit_jax --dataset cifar10 --weights x.npz"),
        (pretrain, "--preset augreg-imagenet --dataset imagenet2012"),
    ],
)
def test_holdout_0_trains_on_all_images(program, command, datasets, capsys):
    config = config_of(program, f"recipe.py {command} --holdout 0")
    _, data, _ = setup.begin(config)
    count = published.SIZES[config.dataset]["train"]
    assert (data.num_train, data.num_validation) == (count, 0)
    assert "trains without" not in capsys.readouterr().out
    # Without the flag, the preset leaves some out.
    _, data, _ = setup.begin(dataclasses.replace(config, holdout=None))
    assert (data.num_train < count, data.num_validation) == (True, 0)
    assert "trains without the last" in capsys.readouterr().out


@pytest.mark.parametrize("name", published.PRETRAINING)
def test_pre_training_settings_match_the_publications(name, datasets):
    expected = dict(published.PRETRAINING[name])
    command = f"--preset {name} --dataset {expected.pop('dataset')}"
    config = config_of(pretrain, f"pretrain.py {command}")
    _, data, _ = setup.begin(config)
    found, _ = settings_of(pretrain, config, data)
    images = expected.pop("epochs") * expected["num_train"]
    steps = round(images / expected["batch_size"])
    assert expected.setdefault("steps", steps) == steps
    compare(found, expected)


def built(preset, **settings):
    """Returns the model that a preset trains, for small images."""
    digits = keras_vit.data.load_dataset("digits")
    config = pretrain.Config(preset=preset, image_size=32, **settings)
    return programs.plan(pretrain, config, digits).build()


@pytest.mark.parametrize(
    "name, length, deviation",
    [
        # big_vision/models/vit.py: get_posemb, and _Model.__call__: the class
        # token has no position.
        ("augreg-imagenet", 4, 192**-0.5),
        ("augreg-imagenet21k", 4, 192**-0.5),
        ("paper-imagenet", 5, 0.02),
    ],
)
def test_initial_positions_match_the_publications(name, length, deviation):
    model = built(name, model="ViTTi16", augment="none")
    layer = model.get_layer("position_embedding")
    assert layer.num_prefix_tokens == length - 4
    assert layer.embedding.shape == (1, length, 192)
    values = keras.ops.convert_to_numpy(layer.embedding)
    assert values.std() == pytest.approx(deviation, rel=0.1)
    assert values.mean() == pytest.approx(0, abs=0.01)
    (token,) = model.get_layer("class_token").get_weights()
    assert not token.any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "before"), published.PREACTIVATION.items())
def test_bit_networks_match_big_vision(name, before):
    """big_vision/models/bit.py and bit_paper.py"""
    model = built(name, model="compact-bit")
    assert ("final_norm" in {x.name for x in model.layers}) == before
    unit = model.get_layer("stage_1_unit_1")
    assert unit.preactivation == before
    gamma = keras.ops.convert_to_numpy(unit.norm_3.gamma)
    assert (gamma == before).all()  # ones, or zeros


def test_few_shot_settings_match_big_vision():
    (command,) = (x for x in COMMANDS if "few_shot" in x and "oxford" in x)
    few_shot = programs.load("few_shot")
    config = config_of(few_shot, command)
    found = {name: getattr(config, name) for name in published.FEW_SHOT}
    assert found == published.FEW_SHOT
    # 224 pixels are the size of these weights.
    settings = image_settings({"": {"image_size": 224, "mode": "tf"}})
    trained = keras_vit.evaluation.LoadedClassifier(None, settings, 3)
    images, labels = np.zeros((4, 8, 8, 3), "uint8"), [0, 1, 0, 1]
    data = keras_vit.data.from_arrays(images, labels, (images, labels))
    options = trained.reading(data, config.batch_size, few_shot.PROTOCOL)
    assert (options["protocol"], options["mode"]) == ("few-shot", "tf")
    assert options["image_size"] == 224


def test_vtab_settings_match_the_paper():
    (command,) = (x for x in COMMANDS if "vtab" in x)
    vtab = programs.load("vtab")
    config = config_of(vtab, command)
    config = flags.fill(dataclasses.replace(config, mode="tf"))
    found = {name: getattr(config, name) for name in published.VTAB}
    assert found == published.VTAB
    assert len(keras_vit.data.VTAB_TASKS) == 19
    rate = keras_vit.schedules.warmup_cosine(0.01, config.steps, config.warmup)
    source = published.VIT_JAX
    assert rate.warmup_steps == source["warmup_steps"]
    optimizer = vtab.optimizer_of(rate)
    assert optimizer.momentum == source["momentum"]
    assert optimizer.global_clipnorm == source["clip"]
    assert optimizer.momentum_dtype == source["momentum_dtype"]
