"""Mistakes in command lines end with one line, before anything is written, and
every flag that a recipe once had is still accepted."""

import dataclasses
import inspect
import json
import pathlib
import re

import pytest

import keras_vit
from keras_vit import exporting
from keras_vit.weights import writing
from keras_vit_programs import console, convert, export, flags, presets, sizes
from tests.recipes import programs
from tests.training.pictures import encode, noise, write_folder

pytestmark = pytest.mark.backends("torch")

# The words of the error, by the recipe and its flags. {run} is the folder of a
# model of digits, and {data} one of datasets.
REFUSED = {
    "finetune_cifar": {
        "--preset vit_jax": "give --weights",
        "--weights {run} --preset vit_jax": "give a --dataset, or, to try it on digits",
        "--keep-head": "--keep-head is for fine-tuning",
        "--pooling gap": "--pooling is for fine-tuning",
        "--train head": "--train is for fine-tuning",
        "--lora-rank 4": "--lora-rank is for --train lora.* --train all",
        "--weights x.npz --preset vit_jax --optimizer adamw": "rates of sgd"
        ".*--optimizer adamw",
        "--layer-decay 1.5": "must be 1 or less. Received: 1.5",
        "--preset bit": "--preset must be one of .*vit_jax.*: bit",
        "--steps 1 --epochs 1": "--steps or --epochs, not both",
        "--average 0.9 --average-from 0.5": "--average or --average-from",
        "--batch-size 64 --accumulate 3": "3 must divide --batch-size 64",
        "--model ViTB61": "There is no model 'ViTB61'",
        "--image-size 31": "Received: 31",
        "--image-size 8 --patch-size 3": "do not divide",
        "--weights x.npz": "There is no file",
        "--weights x.npz --dataset mnist": "There is no file",
        "--model compact-bit --remat": "--remat is for Vision",
        "--model compact-bit --dropout 0.5": "--dropout is for Vision",
        "--model compact-hybrid --max-tokens 9": "--max-tokens is for Vision",
        "--dataset {data}/sizes --image-size 16 --patch-size 8 --teacher {run} "
        "--max-tokens 9": "leave out --max-tokens. Received: --max-tokens 9",
        "--dataset {data}/empty": "two classes",
        "--dataset {data}/several.csv --loss sigmoid --image-size 8 "
        "--class-weights balanced": "--class-weights",
        "--dataset {data}/several.csv": "several.*--loss sigmoid",
        "--output {run}": "a finished run.*--overwrite",
        "--alpha 0.1": "--alpha is for training with",
        "--distill token": "--distill is for training with",
        "--holdout much": "--holdout must be .*'much'",
        "--sweep paper --holdout 0": "--holdout a fraction above 0",
    },
    "pretrain": {
        "--steps 9 --warmup-steps 9": "must be shorter",
        "--model compact-bit --position-embedding sincos2d": "--position-"
        "embedding is for Vision.*a BiT has no encoder",
        "--model compact-vit --preset augreg-imagenet": "settings for ViTTi16"
        ".* For compact-vit, give --augment too",
        "--pooling mean": "--pooling must be",
        "--accumulate 2000": "--accumulate 2000 divides each",
    },
    "pretrain_contrastive": {
        "--mixup 0.2": "--mixup is for other programs",
        "--accumulate 2 --batch-size 4": "--accumulate splits a batch.*--remat",
        "--average-from 0.75": "momentum encoder does already: leave it out",
        "--augment light1": "crops have augmentations of their own: leave it out",
        "--local-size 3": "--local-size must be a multiple",
    },
    "pretrain_masked": {
        "--method beit": "--method must be one of",
        "--erase=0.25": "--erase is for other programs",
        "--model BiT_R50x1": "is not a Vision Transformer",
        "--model R50ViTB16": "is not a Vision Transformer",
        "--method mim --model ViTH14": "--mask-patch-size",
        "--method mim --mask-patch-size 3": "--mask-patch-size",
        "--method mpp --target downsized": "4 x 4",
    },
    "pretrain_pairs": {
        "--train text": "needs an image tower: give --weights",
        "--accumulate 2": "--accumulate splits a batch",
        "--loss sigmoid": "--loss is for other programs",
    },
    "segment": {
        "--holdout 0.1": "--holdout is for other programs",
        "--train head": "give --weights",
        "--accumulate 2": "--accumulate splits a batch, on all pixels.*--remat",
        "--average 0.9": "give --train head. Received: 0.9",
        "--average-from 0.5": "give --train head. Received: 0.5",
        "--scale 0.5": "--scale must be 1 or more",
        "--model compact-bit": "Transformer blocks",
        "--blocks 0 4": "Received: 0, 4",
    },
    "detect": {
        "--protocol vit_jax": "--protocol is for other programs",
        "--haed fcos": "Did you mean --head",
        "--train head": "give --weights",
        "--stamps x --dataset {data}/squares": "Give --stamps or --dataset",
        "--model compact-bit": "Transformer blocks",
        "--scale 0.5": "--scale must be 1 or more",
        "--queries 0": "--queries must be 1 or more",
        "--dataset nothing": "Received: 'nothing'",
    },
    "evaluate": {
        "": "Give --weights",
        "--weights {run} --split dev": "one of .'test', 'train', 'all'.",
        "--weights {run} --real {data}/none.json": "No such file.*none.json",
        "--weights {run} --real {data}/real.json": "of 'digits' have no names",
        "--weights x.npz": "There is no file",
        "--weights {run} --output {run}": "--overwrite",
        "--weights {run} --patch-size 3": "not divide an image.*of 8 x 8.*--patch-size",
    },
    "few_shot": {
        "": "Give --weights",
        "--weights {run} --shots 0": "--shots must be 1",
        "--weights {run} --seeds 0": "--seeds must be 1",
        "--weights {run} --dataset digit": "'digits'",
    },
    "predict": {
        "--weights {run}": "Give --images",
        "--weights {run} --images no.png": "There is no file or folder",
        "--weights {run} --images {data}/empty": "There is no image in",
    },
    "scale": {
        "--study color": "color",
        "--image-size 30": "30",
        "--epochs 2": "--epochs is for other programs",
        "--shots 0": "shots",
    },
    "ablate_position_embedding": {
        "--pooling map": "Received: map",
        "--keep best": "--keep is for other programs",
        "--settings relative/stem": "no 'relative/stem'.*relative/every",
    },
}


@pytest.mark.parametrize("name", ["vtab", *REFUSED])
def test_help_names_flags_of_the_program_and_one_default(name, capsys):
    config = programs.load(name).Config
    with pytest.raises(SystemExit):
        flags.parse_args(config, "", ["--help-all"])
    text = re.sub(r"-\n +", "-", capsys.readouterr().out.partition("options:")[2])
    own = set(re.findall(r"(?m)^  (--[\w-]+)", text))
    assert own and set(re.findall(r"--[a-z][\w-]*", text)) <= {*own, "--help"}
    text = " ".join(text.split())
    for rule in config.defaults:
        if rule.why and f"--{rule.name.replace('_', '-')}" in own:
            assert (
                f"; default: {rule.why}" in text
                or f"; {rule.why}" in text
                or (f", else {rule.why}" in text)
            ), rule.name


def test_help_of_many_flags_shows_those_that_most_need(capsys):
    config = programs.load("finetune_cifar").Config
    texts = []
    for given in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            flags.parse_args(config, "", [given])
        texts.append(capsys.readouterr().out.partition("options:")[2])
    short, whole = (set(re.findall(r"(?m)^  (--[\w-]+)", text)) for text in texts)
    assert {"--dataset", "--weights", "--steps", "--help-all"} <= short < whole
    assert len(short) == 12 and {"--teacher", "--mixup"} <= whole
    assert "\nMixtures of labeled images:\n" in texts[1]


@pytest.mark.parametrize(
    "given, meant",
    [
        ("--lr 1", "Did you mean --learning-rate?"),
        ("--model-ema", "Did you mean --average?"),
        ("--warmup-epochs 5", "Did you mean --warmup?"),
        ("--config.optax.mu_dtype=bfloat16", "Did you mean --momentum-dtype?"),
        ("--sched cosine", "--sched is that of --preset, or a cosine: leave it out"),
        ("--resume x", "The same command resumes a run"),
        ("--mixu 1", "Did you mean --mixup?"),
        # Similar to --seed, --keep and --erase.
        *((f"--{x} 1", "unrecognized arguments:") for x in ("sec", "ep", "evaluation")),
    ],
)
def test_flags_of_other_packages_are_answered_with_ours(given, meant, capsys):
    line = programs.refused(capsys, "finetune_cifar", *given.split())
    assert meant in line
    assert ("Did you mean" in line) == ("Did you mean" in meant)


def test_flags_of_other_packages_have_an_equivalent():
    names = [text.split() for counts in FLAGS.values() for text in counts.values()]
    every = {flag.removeprefix("--") for flag in sum(names, [])}
    for ours in console._ELSEWHERE.values():
        assert every.issuperset(ours.split())


@pytest.fixture(scope="module")
def data(data_folders):
    (data_folders / "empty").mkdir(exist_ok=True)
    (data_folders / "real.json").write_text("[[1]]")
    pictures = {f"{i}.png": encode(noise(9, 9, seed=i)) for i in range(12)}
    write_folder(data_folders, pictures)
    rows = [f"{i}.png,{('a', 'b', 'a;b')[i % 3]}" for i in range(12)]
    table = "\n".join(["image,label", *rows])
    (data_folders / "several.csv").write_text(table)
    return data_folders


@pytest.mark.parametrize(
    "name, flags",
    [(name, flags) for name in REFUSED for flags in REFUSED[name]],
)
def test_refused(name, flags, data, trained_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = flags.format(data=data, run=trained_run).split()
    if "--output" not in given:
        given += ["--output", "out"]
    line = programs.refused(capsys, name, *given)
    assert re.search(REFUSED[name][flags], line), line
    assert not list(tmp_path.iterdir())


# The flags by the number of their values.
FLAGS = pathlib.Path(__file__).with_name("flags.json")
FLAGS = json.loads(FLAGS.read_text())


@pytest.mark.parametrize("name", FLAGS)
def test_flags_keep_their_names_and_number_of_values(name, capsys):
    with pytest.raises(SystemExit):
        flags.parse_args(programs.load(name).Config, "", ["--help-all"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    usage = " ".join(usage.split()) + " "
    for count, names in FLAGS[name].items():
        for flag in names.split():
            start = f"[{flag}{'] ' if count == '0' else ' '}"
            _, found, rest = usage.partition(start)
            assert found, flag
            if count != "0":
                values = rest.partition("]")[0]
                assert ("[" in values) == (count == "+"), flag


@pytest.mark.parametrize("name", FLAGS)
def test_each_setting_is_defined_once(name):
    classes = programs.load(name).Config.__mro__
    fields = [field for cls in classes for field in inspect.get_annotations(cls)]
    constants = {"defaults", "presets", "preset"}
    assert not {x for x in fields if fields.count(x) > 1} - constants


def test_names_in_help_texts_are_those_of_the_library():
    assert flags.MODEL_NAMES == sizes.MODEL_NAMES
    assert flags.PROTOCOLS == tuple(keras_vit.data.PROTOCOLS)
    assert flags.AUGREG == tuple(keras_vit.data.AUGREG)
    assert convert.DTYPES == tuple(writing.DTYPES)
    assert export.FORMATS == tuple(exporting.FORMATS)
    assert presets.COMPACT_NAMES == tuple(sizes.COMPACT)
    vtab, pretrain = programs.load("vtab"), programs.load("pretrain")
    assert vtab.TASKS == tuple(keras_vit.data.VTAB_TASKS)
    decays = dataclasses.fields(pretrain.Config)
    (decays,) = (field for field in decays if field.name == "decay")
    assert decays.metadata["limits"]["choices"] == tuple(keras_vit.schedules.DECAYS)
    published = presets.MOMENTUM["dino"].settings
    crops = keras_vit.data.CROPS["dino"]
    local = published["local_crops"], published["local_size"]
    assert local == (crops.num_local, crops.local_size)


def test_settings_are_shown_with_what_set_them(trained_run, tmp_path, capsys):
    given = ("--weights", trained_run, "--steps", "7", "--output", trained_run)
    with pytest.raises(SystemExit) as ended:
        programs.run("finetune_cifar", *given, "--show-settings")
    assert not ended.value.code
    rows = capsys.readouterr().out
    for row in (
        "steps +7 +given",
        "batch_size +64 +64, or more",
        "learning_rate +0.00098.* 0.003 from scratch.*finetune_cifar.py:\\d+\\)",
        "keep +last.* best with a validation split",
        "label_smoothing +0 +chosen here",
        "strategy +auto +default",
        "model +- +that of --weights$",
        "patience +- +no early stopping$",
        "not set .*epochs, features",
        "weight_decay +0.05 +0.05 for adamw",
        "digits: 1,438 training and 359 test images$",
    ):
        assert re.search(f"(?m)^{row}", rows), row
    assert "rate_images" not in rows and "None" not in rows
    with pytest.raises(SystemExit):
        given = ("--sweep", "0.1,0.2", "--show-settings")
        programs.run("finetune_cifar", *given)
    rows = capsys.readouterr().out
    assert "learning rates 0.1, 0.2 on" in rows
    assert re.search("(?m)^digits: .* validation images$", rows)
    # What is published is printed before weights and data, which no server has here.
    published = ("--preset", "vit_jax", "--model", "ViTB16", "--dataset", "cifar10")
    with pytest.raises(SystemExit):
        given = ("--weights", "missing.npz", "--show-settings")
        programs.run("finetune_cifar", *published, *given)
    assert "steps 10000" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        programs.run("pretrain", "--preset", "deit", "--show-settings")
    rows = capsys.readouterr().out
    assert re.search("(?m)^mixup +0.8 +published: deit", rows)
    assert re.search("(?m)^batch_size +64 +at most a 20th", rows)
    assert re.search("(?m)^steps +6741 +300 epochs, published: deit", rows)
