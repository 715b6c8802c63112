import csv
import dataclasses
import json
import re
import types
import warnings

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import keras_vit
from keras_vit_programs import building, flags, runs, sizes
from tests.recipes import programs
from tests.training.pictures import write_folder

pytestmark = pytest.mark.usefixtures("few_files")
recipe = programs.load("finetune_cifar")
main = recipe.main
read_metadata, rows_of = programs.read_metadata, programs.rows_of


def run(**settings):
    main(recipe.Config(**settings))


def refused(match, **settings):
    with pytest.raises(flags.UserError, match=match) as error:
        run(**settings)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A short run from scratch; the other tests look at what it left."""
    output = tmp_path_factory.mktemp("runs") / "digits"
    settings = {"learning_rate": 0.01, "batch_size": 32, "seed": 1}
    settings |= {"steps": 45, "evaluate_every": 4, "tensorboard": True}
    run(output=str(output), **settings)
    return output


def accuracy_of(model, size=8):
    data = keras_vit.data.load_dataset("digits")
    images, labels, weights = data.test(image_size=size, batch_size=359)[0]
    assert len(images) == 359 and (weights == 1).all()
    return np.mean(model.predict(images, verbose=0).argmax(-1) == labels)


def test_files_of_a_run(digits):
    found = sorted(path.name for path in digits.iterdir())
    more = ("per_class.csv", "confusion.png", "mistakes.png", "mistakes.csv", "log.txt")
    assert found == sorted([*runs.FILES, *more, "tensorboard"])
    for name in ("curves.png", "predictions.png", *more[1:3]):
        assert (digits / name).read_bytes().startswith(b"\x89PNG")
    rows = rows_of(digits)
    assert ",".join(rows[0]) == (
        "step,train_loss,train_accuracy,test_loss,test_accuracy,"
        "learning_rate,images_per_second"
    )
    # Every 4 steps, and after the last.
    assert [int(row["step"]) for row in rows] == [*range(4, 45, 4), 45]
    log = (digits / "log.txt").read_text()
    times = r"(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d+  *"
    assert len(re.findall(times + r"\d+/45 ", log)) == 12
    metadata = read_metadata(digits)
    config = metadata["config"]
    assert config["steps"] == 45 and config["learning_rate"] == 0.01
    assert config["image_size"] == 8 and config["patch_size"] == 2
    assert metadata["data"]["num_test"] == 359
    assert metadata["data"]["class_names"] == list("0123456789")
    assert metadata["versions"]["backend"] == keras.config.backend()


def test_results_of_a_run(digits):
    """The table, the classes and both model files have the same accuracy."""
    rows = rows_of(digits)
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    schedule = keras_vit.schedules.warmup_cosine(0.01, 45, 0.1)
    for row in rows:
        rate = float(schedule(int(row["step"]) - 1))
        assert float(row["learning_rate"]) == pytest.approx(rate, rel=1e-4)
    for split, folder in (("train", "train"), ("test", "validation")):
        folder = str(digits / "tensorboard" / folder)
        events = EventAccumulator(folder, {"tensors": 0}).Reload()  # all of them
        for name in ("loss", "accuracy"):
            found = events.Tensors(f"epoch_{name}")
            assert [event.step for event in found] == [*range(len(rows))]
            values = [make_ndarray(event.tensor_proto) for event in found]
            expected = [float(row[f"{split}_{name}"]) for row in rows]
            np.testing.assert_allclose(values, expected, rtol=1e-4)
    accuracy = read_metadata(digits)["test_accuracy"]
    # Chance is 0.1, and the zero head starts there.
    assert accuracy > 0.2
    reported = float(rows[-1]["test_accuracy"])
    assert reported == pytest.approx(accuracy, abs=1e-5)
    with open(digits / "per_class.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["class"] for row in found] == list("0123456789")
    right = sum(int(row["right"]) for row in found)
    assert right / 359 == pytest.approx(accuracy, abs=1e-6)
    for model in (
        keras.models.load_model(digits / "model.keras"),
        keras_vit.converters.load(digits / "model.npz"),
    ):
        assert accuracy_of(model) == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("num_train", "weights", "settings", "expected"),
    [
        # Between two evaluations, twice the 359 images that are evaluated
        (1438, None, {"steps": 7}, (7, 7)),
        (1438, None, {"steps": 60}, (60, 12)),
        (1438, None, {"steps": 1000}, (1000, 100)),
        (1438, None, {"epochs": 3, "batch_size": 100}, (45, 15)),
        (1438, None, {}, (2400, 240)),
        (60, None, {}, (300, 30)),
        # The pixels of an image decide, not the channels of its mode.
        (1438, None, {"image_size": 32, "mode": "torch"}, (2400, 240)),
        (1438, None, {"image_size": 64, "mode": "torch"}, (1200, 120)),
        (1438, "x", {}, (500, 50)),
        # 30 epochs, and 100 steps or more
        (1438, "x", {"batch_size": 360}, (120, 12)),
        (1438, "x", {"batch_size": 720}, (100, 10)),
        (1438, "x", {"batch_size": 720, "preset": "bit-hyperrule"}, (500, 50)),
        (49_000, "x", {}, (10_000, 1000)),
        (1_281_167, "x", {}, (20_000, 2000)),
    ],
)
def test_steps_and_epochs(num_train, weights, settings, expected, monkeypatch):
    if weights:
        monkeypatch.setattr(sizes, "resolve_model_spec", lambda *_: BIT_SPEC)
    data = keras_vit.data.load_dataset("digits")
    data = dataclasses.replace(data, num_train=num_train)
    config = recipe.resolve_config(recipe.Config(weights=weights, **settings), data)
    assert (config.steps, config.evaluate_every) == expected


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, "last"),
        ({"holdout": 0.1}, "best"),
        ({"holdout": 0.1, "keep": "last"}, "last"),
        ({"sweep": "0.1,0.2"}, "last"),
    ],
)
def test_the_best_step_of_a_validation_split_is_kept(settings, kept):
    config = recipe.Config(**settings)
    data = keras_vit.data.load_dataset("digits", config.holdout)
    assert recipe.resolve_config(config, data).keep == kept


@pytest.mark.slow
@pytest.mark.suite("tensorflow", "torch")
@pytest.mark.usefixtures("eager")
def test_training_on_a_folder_of_images(tmp_path, capsys):
    pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    endings = ("jpeg", "png", "png", "png", "JPG")
    photos = {
        f"{name}/photo{i}.{ending}": rng.integers(
            least, least + 120, (10 + i, 12 - i, 3), np.uint8
        )
        for name, least in (("dark", 0), ("bright", 130))
        for i, ending in enumerate(endings)
    }
    folder = write_folder(tmp_path / "shades", photos)
    settings = {"dataset": str(folder), "image_size": 8, "epochs": 2}
    settings["batch_size"] = 64  # more than there are images
    run(**settings, output=str(tmp_path / "out"))
    # Lines are wrapped.
    printed = " ".join(capsys.readouterr().out.split())
    assert f"10 files of {folder}, decoded during training" in printed
    metadata = read_metadata(tmp_path / "out")
    assert metadata["data"]["class_names"] == ["bright", "dark"]
    assert metadata["data"]["num_test"] == 2
    assert metadata["config"]["batch_size"] == 8
    assert [row["step"] for row in rows_of(tmp_path / "out")] == ["1", "2"]
    model = keras.models.load_model(tmp_path / "out" / "model.keras")
    assert model.output_shape == (None, 2)
    # Images that are damaged behind their headers are found before training.
    for path in folder.glob("bright/*"):
        path.write_bytes(path.read_bytes()[:300])
    words = r"photo\d.\w+' cannot be read: .* Remove or convert such files, or use"
    refused(words, **settings, output=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("eager")
def test_a_log_begins_with_its_run(tmp_path, monkeypatch):
    """Not with a download, after which a run may fail, or an earlier run."""
    build, output = recipe.build_model, tmp_path / "run"
    errors = [ValueError("no weights")]

    def downloading(config, data):
        flags.logger.warning("downloading")
        if errors:
            raise errors.pop()
        return build(config, data)

    monkeypatch.setattr(recipe, "build_model", downloading)
    settings = {"batch_size": 32, "output": str(output)}
    refused("no weights", **settings, steps=1)
    assert not output.exists()
    for steps in (1, 2):
        run(**settings, steps=steps, evaluate_every=1, overwrite=steps == 2)
        log = (output / "log.txt").read_text()
        found = re.findall(r" (\d/\d) |(downloading)", log)
        assert found == [(f"{i}/{steps}", "") for i in range(1, steps + 1)]


BIT = ("BiT", {"resnet_layers": (1,), "width_factor": 0.5}, 32)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_resnet_trains_and_is_fine_tuned(tmp_path, monkeypatch):
    monkeypatch.setitem(sizes.COMPACT, "compact-bit", BIT)
    data = {"batch_size": 16, "steps": 1}
    run(model="compact-bit", output=str(tmp_path / "a"), **data)
    weights = str(tmp_path / "a" / "model.npz")
    run(weights=weights, image_size=40, output=str(tmp_path / "b"), **data)
    found = keras.models.load_model(tmp_path / "b" / "model.keras")
    assert found.input_shape == (None, 40, 40, 1)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_finished_run_is_trained_further(digits, tmp_path):
    """The learning rate is too small for any prediction to change."""
    settings = {"steps": 1, "batch_size": 32, "learning_rate": 1e-12}
    refused(
        f"finished run.*--weights {digits} --keep-head",
        output=str(digits),
        **settings,
    )
    settings |= {"weights": str(digits), "keep_head": True}
    run(**settings, output=str(tmp_path / "a"))
    before, after = read_metadata(digits), read_metadata(tmp_path / "a")
    assert after["test_accuracy"] == pytest.approx(before["test_accuracy"])
    # Of other classes.
    facts = {**before, "data": {**before["data"], "class_names": list("abc")}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    model = keras_vit.converters.load(digits / "model.npz", classes=3)
    keras_vit.converters.save(model, tmp_path / "model.npz")
    settings |= {"weights": str(tmp_path), "output": str(tmp_path / "b")}
    refused("others, such as '0'", **settings)
    # Class names of a file, in another order.
    model = keras_vit.converters.load(digits / "model.npz")
    model.class_names = tuple("1023456789")
    model.save(tmp_path / "other.keras")
    other = {"weights": str(tmp_path / "other.keras")}
    refused("in the same order", **settings | other)
    (tmp_path / "config.json").unlink()
    refused("10 classes.*a head of 3 classes", **settings)


@pytest.mark.backends("torch")
def test_classes_of_released_weights_are_those_of_their_model(monkeypatch):
    """Weights such as "imagenet2012" are of several models."""
    opened = []

    def open_weights(model, weights, sizes):
        opened.append((model, weights, sizes["hidden_size"]))
        return types.SimpleNamespace(classes=2, class_names=lambda _: ["dog", "cat"])

    monkeypatch.setattr(building, "open_weights", open_weights)
    data = types.SimpleNamespace(name="photos", class_names=("cat", "dog"))
    with pytest.raises(ValueError, match="in the same order"):
        building.check_classes("ViTB16", "imagenet2012", data)
    assert opened == [("ViTB16", "imagenet2012", 768)]


@pytest.mark.backends("torch")
def test_images_are_checked_before_weights_are_downloaded(tmp_path, monkeypatch):
    def fetch(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(keras_vit.utils.downloads, "fetch", fetch)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "a.jpg").touch()
    given = {"dataset": str(tmp_path / "photos"), "model": "ViTS14"}
    given["output"] = str(tmp_path / "run")
    refused("2 of 2 images cannot be used: .* is empty", weights="dinov2", **given)
    refused("There is no file 'dinov3'", weights="dinov3", **given)


@pytest.mark.backends("torch")
def test_a_compact_model_keeps_its_name(tmp_path):
    arguments = {"input_shape": (32, 32, 3), "classes": 2}
    model = building.build_model("compact-hybrid", None, None, **arguments)
    keras_vit.converters.save(model, tmp_path / "model.npz")
    settings = {"config": {"model": "compact-hybrid"}, "data": {}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    again = building.build_model(None, str(tmp_path), None, **arguments)
    assert again.name == model.name == "compact_hybrid"


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_images_that_are_not_square(tmp_path):
    """They are trained on, fine-tuned on and evaluated."""
    data = {"batch_size": 32, "steps": 2}
    run(image_size="12x8", output=str(tmp_path / "a"), **data)
    assert read_metadata(tmp_path / "a")["config"]["image_size"] == [12, 8]
    weights = {"weights": str(tmp_path / "a"), **data}
    run(output=str(tmp_path / "b"), **weights)
    model = keras.models.load_model(tmp_path / "b" / "model.keras")
    assert model.input_shape == (None, 12, 8, 1)
    programs.run("evaluate", "--weights", tmp_path / "b", "--output", tmp_path / "d")
    results = json.loads((tmp_path / "d" / "results.json").read_text())
    expected = read_metadata(tmp_path / "b")["test_accuracy"]
    assert results["accuracy"] == pytest.approx(expected, abs=1e-6)
    refused(
        "12x9.*--image-size 12x10",
        image_size="12x9",
        output=str(tmp_path / "e"),
        **weights,
    )


UNNAMED = {"name": None, "mode": "tf"}
VIT = {**UNNAMED, "patch_size": 14, "image_size": 518, "stride": 1, "mode": "torch"}
HYBRID = {**UNNAMED, "patch_size": 1, "image_size": 224, "stride": 16}
BIT_SPEC = {**UNNAMED, "patch_size": None, "image_size": 224, "stride": 0}


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("spec", "settings", "expected"),
    [
        (VIT, {"batch_size": 32}, ("adamw", 7e-4, 0.5)),
        (VIT, {}, ("adamw", 7e-4 * 2**0.5, 0.5)),  # batches of 64
        (VIT, {"batch_size": 512}, ("adamw", 2.8e-3, 0.5)),
        (VIT, {"batch_size": 8, "train": "lora"}, ("adamw", 5e-4, None)),
        (VIT, {"batch_size": 32, "train": "head"}, ("adamw", 3e-3, None)),
        (HYBRID, {"batch_size": 32}, ("adamw", 7e-4, 0.5)),
        (BIT_SPEC, {"batch_size": 32}, ("adamw", 3e-4, None)),
        (VIT, {"layer_decay": 1.0}, ("adamw", 3e-4 * 2**0.5, 1.0)),
        (VIT, {"learning_rate": 0.1}, ("adamw", 0.1, 0.5)),
        (VIT, {"optimizer": "sgd"}, ("sgd", 0.03, None)),
        # The rates of the paper are SGD's.
        (VIT, {"sweep": "paper"}, ("sgd", 0.1, None)),
        (VIT, {"sweep": "0.1,0.2"}, ("adamw", 0.1, 0.5)),
        # The preset says which optimizer.
        (VIT, {"preset": "vit_jax-augreg"}, ("sgd", 0.03, None)),
        (None, {}, ("adamw", 0.003, None)),
        (None, {"batch_size": 8}, ("adamw", 0.003, None)),
    ],
)
def test_own_defaults_of_fine_tuning(spec, settings, expected, monkeypatch):
    if spec:
        settings = {"weights": "x.npz", "image_size": 112, **settings}
        monkeypatch.setattr(sizes, "resolve_model_spec", lambda *_: spec)
    data = keras_vit.data.load_dataset("digits")
    config = recipe.Config(**settings)
    if config.sweep:
        config = dataclasses.replace(config, learning_rate=0.1)
    config = recipe.resolve_config(config, data)
    assert (config.optimizer, config.layer_decay) == expected[::2]
    assert config.learning_rate == pytest.approx(expected[1])


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("spec", "side", "expected"),
    [
        (VIT, 112, 112),
        (VIT, 100, 112),  # whole patches
        (VIT, 28, 56),  # 4 x 4 patches
        (VIT, 600, 518),
        (VIT, None, 518),
        (HYBRID, 100, 112),
        (BIT_SPEC, 28, 224),
        ({**VIT, "image_size": (28, 42)}, 14, (28, 42)),
        ({**VIT, "image_size": 28}, 8, 28),
        ({**VIT, "image_size": None, "patch_size": 8}, 8, 64),
    ],
)
def test_images_are_not_enlarged_to_the_size_of_weights(
    spec, side, expected, monkeypatch
):
    monkeypatch.setattr(sizes, "resolve_model_spec", lambda *_: spec)
    data = keras_vit.data.load_dataset("digits")
    data = dataclasses.replace(data, image_size=None, median_side=side)
    config = recipe.Config(weights="x.npz")
    assert recipe.resolve_config(config, data).image_size == expected


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        ({}, {}, (128, 512, "bit-hyperrule", 0.0, 0.003, 500)),
        (
            {"num_train": 50_000, "image_size": None},
            {},
            (480, 512, "bit-hyperrule", 0.1, 0.003, 10_000),
        ),
        (
            {},
            {
                "batch_size": 32,
                "image_size": 64,
                "mixup": 0.5,
                "steps": 9,
                "learning_rate": 0.1,
                "protocol": "vit_jax",
            },
            (64, 32, "vit_jax", 0.5, 0.1, 9),
        ),
    ],
)
def test_bit_hyperrule_depends_on_the_data(data, settings, expected, monkeypatch):
    monkeypatch.setattr(sizes, "resolve_model_spec", lambda *_: BIT_SPEC)
    data = dataclasses.replace(keras_vit.data.load_dataset("digits"), **data)
    bit = {"preset": "bit-hyperrule", "weights": "x.npz"}
    job = programs.plan(recipe, recipe.Config(**bit, **settings), data)
    names = "image_size batch_size protocol mixup learning_rate steps"
    assert expected == tuple(getattr(job.config, x) for x in names.split())
    _, rate = job.optimizer()
    assert type(rate) is keras_vit.schedules.BiTHyperRule


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("name", "batch_size", "dropout"), [("ViTL16", None, 0.1), (None, 8, 0.0)]
)
def test_preset_depends_on_the_model_of_the_weights(
    name, batch_size, dropout, monkeypatch
):
    spec = {**VIT, "name": name, "patch_size": 16}
    monkeypatch.setattr(sizes, "resolve_model_spec", lambda *_: spec)
    settings = {"preset": "vit_jax", "steps": 9, "warmup_steps": 1}
    given = recipe.Config(weights="x.npz", batch_size=batch_size, **settings)
    data = keras_vit.data.load_dataset("digits")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        config = recipe.resolve_config(given, data)
    assert (config.model, config.dropout) == (name, dropout)
    assert config.learning_rate == 0.03
    messages = [str(x.message) for x in found]
    assert bool(batch_size) == any("these have 8 images" in x for x in messages)


@pytest.mark.backends("torch")
def test_features_are_computed_once_unless_flags_change_images(finished, data_folders):
    """What is saved is the whole classifier, with the weights of its best row."""
    run_of, source = finished("head"), data_folders / "encoder.keras"
    rows, summary = rows_of(run_of), read_metadata(run_of)
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert summary["config"]["features"] == "once"
    best = max(float(x["test_accuracy"]) for x in rows)
    assert summary["test_accuracy"] == pytest.approx(best, abs=1e-5)
    old, new = map(keras_vit.load, (source, run_of / "model.keras"))
    heads = {"head/kernel", "head/bias"}
    for before, after in zip(old.variables, new.variables, strict=True):
        same = np.array_equal(np.shape(before), np.shape(after))
        same = same and np.array_equal(before, after)
        assert same != (after.path.removeprefix(f"{new.name}/") in heads), after.path
    trained = keras_vit.evaluation.load_classifier(str(run_of))
    data = keras_vit.data.load_dataset(summary["config"]["dataset"])
    batches = data.test(**trained.reading(data, 6))
    logits, labels = keras_vit.evaluation.predict_dataset(trained.model, batches, 6)
    found = np.mean(logits.argmax(1) == labels)
    assert found == pytest.approx(summary["test_accuracy"], abs=1e-6)

    def features(**settings):
        settings = {"weights": str(source), "steps": 50, "train": "head"} | settings
        return recipe.resolve_config(recipe.Config(**settings), data).features

    assert features() == "once" and features(train="lora") is None
    for flag in ({"protocol": "simple"}, {"erase": 0.1}, {"steps": 1}):
        assert features(**flag) == "each-step", flag
    with pytest.raises(ValueError, match="--features once is for --train head"):
        features(features="once", augment="light1")
    with pytest.raises(ValueError, match="leave it out, or --dropout. Received"):
        features(features="once", dropout=0.1)
    with pytest.raises(ValueError, match="once is for --train head: give it"):
        features(features="once", train="all")


@pytest.mark.backends("torch")
def test_what_the_optimizer_refuses_is_an_error_of_one_line(digits, tmp_path):
    output = tmp_path / "out"
    settings = {"weights": str(digits), "train": "head", "output": str(output)}
    refused("trains none. Give 1.0", steps=4, layer_decay=0.5, **settings)
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_train_flag_selects_the_trained_weights(digits, tmp_path):
    run(
        weights=str(digits),
        train="lora",
        optimizer="adamw",
        learning_rate=0.01,
        steps=4,
        batch_size=32,
        output=str(tmp_path / "out"),
    )
    old = keras_vit.converters.load(digits / "model.npz")
    # The updates are merged into the kernels.
    new = keras_vit.converters.load(tmp_path / "out" / "model.npz")
    changed = {
        before.path.replace(old.name, "")
        for before, after in zip(old.variables, new.variables, strict=True)
        if not np.array_equal(before, after)
    }
    assert changed == {"head/kernel", "head/bias"} | {
        f"block_{i}/attention/{name}/kernel"
        for i in range(2)
        for name in ("query", "value")
    }
    accuracy = read_metadata(tmp_path / "out")["test_accuracy"]
    assert accuracy_of(new) == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_training_stops_without_improvement(tmp_path):
    """The learning rate is too small for any prediction to change. A run that
    was interrupted after its last step does not train again."""
    settings = {"learning_rate": 1e-12, "batch_size": 8, "steps": 9}
    settings |= {"evaluate_every": 1, "patience": 2}
    settings["output"] = str(tmp_path / "out")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Run, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(**settings)
    run(**settings)
    assert [row["step"] for row in rows_of(tmp_path / "out")] == ["1", "2", "3"]


@pytest.mark.backends("torch")
def test_given_flags_are_used():
    data = keras_vit.data.load_dataset("digits")

    def planned(**settings):
        return programs.plan(recipe, recipe.Config(**settings), data)

    for clip, expected in ((None, 1.0), (0.0, None), (2.0, 2.0)):
        optimizer, _ = planned(clip=clip).optimizer()
        assert optimizer.global_clipnorm == expected
    half, _ = planned(momentum_dtype="bfloat16").optimizer()
    assert half.momentum_dtype == "bfloat16"
    _, rate = planned(steps=100, warmup_steps=7).optimizer()
    assert rate.warmup_steps == 7
    job = planned(drop_path=0.25, dropout=0.5, label_smoothing=0.1, optimizer="sgd")
    block = job.build().get_layer("block_1")
    assert (block.drop_path, block.dropout) == (0.25, 0.5)
    assert job.batches["one_hot"]
    assert type(job.optimizer()[0]) is keras_vit.optimizers.PublishedSGD


@pytest.mark.backends("torch")
def test_saved_weights_match_the_reported_accuracy(tmp_path, capsys):
    """The step, the accuracy and `model.keras` belong to the same weights."""
    run(
        steps=6,
        evaluate_every=1,
        batch_size=64,
        # Too high for the accuracy to rise at each evaluation.
        learning_rate=0.3,
        warmup=0.0,
        average=0.5,
        keep="best",
        output=str(tmp_path),
    )
    rows = rows_of(tmp_path)
    config = read_metadata(tmp_path)
    step = config["kept"]["step"]
    assert config["kept"]["chosen_by"] == "test_accuracy"
    assert f"weights of step {step} of 6" in capsys.readouterr().out
    (row,) = (row for row in rows if row["step"] == str(step))
    accuracies = [float(row["test_accuracy"]) for row in rows]
    assert float(row["test_accuracy"]) == max(accuracies) > min(accuracies)
    model = keras.models.load_model(tmp_path / "model.keras")
    for found in (max(accuracies), accuracy_of(model)):
        assert found == pytest.approx(config["test_accuracy"], abs=1e-5)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.backends("tensorflow")
def test_accumulation_is_refused_in_a_strategy_of_tensorflow(capsys, tmp_path):
    line = programs.refused(
        capsys, "finetune_cifar", "--strategy", "mirrored", "--accumulate", 2,
        "--output", tmp_path / "run",
    )  # fmt: skip
    assert "--accumulate 2 is not possible with --strategy mirrored" in line
    strategy = keras_vit.distribution.get_strategy("mirrored")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        sgd = keras_vit.optimizers.PublishedSGD(0.1, gradient_accumulation_steps=2)
        model.compile(sgd, "mse")
    with pytest.raises(ValueError, match="does not accumulate gradients"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
