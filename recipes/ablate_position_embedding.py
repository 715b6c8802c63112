"""Measures what position embeddings are worth, and where to add them.

"An Image is Worth 16x16 Words", Appendix D.4 and Table 8
(https://arxiv.org/abs/2010.11929): the same small Vision Transformer is trained
once for every kind of positions (none, 1-D, 2-D, relative, fixed sines) and
every place (once before the blocks; in every block, each with its own; in every
block, the same ones). Each is then judged as in the paper: by 5-shot linear
evaluation of its features, in closed form.

  python recipes/ablate_position_embedding.py
      the table's grid on handwritten digits: no download, minutes on 2 cores
  python recipes/ablate_position_embedding.py --settings none,learned_2d
      two of its rows; a place follows a slash: learned_2d/every_layer
  python recipes/ablate_position_embedding.py --pooling token
      with a class token, at its own learning rate (see below)
  python recipes/ablate_position_embedding.py --dataset cifar10 --steps 20000

A run that was interrupted goes on with the same command: settings that are done
are not trained again, and the one in between goes on where it was. The output
folder gets table.txt, results.json, table.png, and for each setting a folder.

What is the same for all: weights, order and augmentation come from --seed. All
learned positions start with a deviation of 0.5: at the usual 0.02, those added
once are far behind after so few steps, and those of every layer less so, so
that the table would compare starts. Sines have a deviation of 0.7. Relative
positions are in every layer or not at all.

--pooling and its learning rate: the paper's Figure 9 finds the class token and
the mean of the patches ("gap") equally good, each at a rate of its own: 8e-4
and 3e-4. Here, gap has 0.003, what suits these small models, and the class
token the same 8/3 of it, 0.008; --learning-rate sets another.

Measured on digits (2026-11-21, 2 busy CPU cores, JAX, --seed 0): 10 minutes,
of which 6 minutes of CPU time.

  5-shot               stem          every layer  every layer, shared
  none               0.4061                    -                    -
  learned_1d         0.9429               0.9496               0.9482
  learned_2d         0.9448               0.9554               0.9329
  relative                -               0.7928               0.7017
  sincos2d           0.8396                    -                    -

As in the paper, "none" is by far the worst, and neither the kind nor the place
of learned ones matters beyond noise: --seed 1 moves learned_1d/stem by 0.021 to
0.9643, learned_2d/every_layer by 0.006 to 0.9493, relative/every_layer by 0.059
to 0.7337 and none by 0.003 to 0.4092. Unlike in the paper, relative ones and
sines are behind: they learn slower and are not done after 400 steps. After
1600, relative/every_layer is 0.9747 and sincos2d 0.9682.
The 5 images a class are drawn from those that the model was trained on, with
their labels; the paper's are of other sets.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras

import keras_vit
from keras_vit import evaluation
from keras_vit import training

# The default of each row is all of its places, but for sines: what has no
# weights is the same, shared or not.
GRID = {
    "none": ("stem",),
    "learned_1d": tuple(training.PLACES),
    "learned_2d": tuple(training.PLACES),
    "relative": ("every_layer", "every_layer_shared"),
    "sincos2d": ("stem",),
}
# Figure 9: the class token takes 8/3 of the rate of the patches' mean.
RATES = {"gap": 0.003, "token": 0.008}
FILES = ("table.txt", "results.json", "table.png")
_FREE = (
    *("settings", "output", "overwrite", "checkpoint_every", "tensorboard"),
    "skip_bad_images",  # which a run may need that met one
)


@dataclasses.dataclass(frozen=True)
class Config(training.TrainingFlags):
    settings: str = training.flag(
        "all",
        "KIND or KIND/PLACE, with commas between: kinds "
        f"{', '.join(GRID)}; places {', '.join(training.PLACES)}",
        "LIST",
    )
    pooling: str = training.flag(
        "gap", "what the head reads: gap (mean of the patches) or token", "NAME"
    )
    shots: int = training.flag(5, "images a class for the linear evaluation")
    draws: int = training.flag(10, "how many draws of them, averaged")
    steps: int = training.flag(400, "training steps of each setting")
    learning_rate: float | None = training.flag(
        None,
        f"peak; without it, {RATES['gap']} for gap and {RATES['token']} for "
        "token",
        "X",
    )
    warmup: float = training.flag(
        0.1, "share of the steps with a rising rate", "X"
    )
    weight_decay: float = training.flag(0.05, "of AdamW", "X")
    output: str | None = training.flag(
        None, "default: runs/positions- and the dataset's name", "DIR"
    )

    def __post_init__(self):
        super().__post_init__()
        training.check_numbers(self, "weight_decay", minimum=0)
        training.check_numbers(self, "warmup", minimum=0, below=1)
        training.check_numbers(self, "shots", "draws", minimum=1)
        if self.pooling not in RATES:
            raise ValueError(
                f"--pooling must be gap or token. Received: {self.pooling!r}"
            )
        for name in ("epochs", "holdout"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is not for this recipe.")
        if self.keep != "last":
            raise ValueError(
                "--keep best would choose each setting's weights by the test "
                "images that it is then compared on. Leave it out."
            )
        settings_of(self)


def settings_of(config):
    """Returns the `(kind, place)` that are asked for, in the grid's order."""
    if config.settings == "all":
        return [(kind, p) for kind, places in GRID.items() for p in places]
    found = []
    for text in config.settings.split(","):
        kind, _, place = text.strip().partition("/")
        places = GRID.get(kind, ())
        if kind == "sincos2d":
            places = ("stem", "every_layer")
        if not places or place not in ("", *places):
            raise ValueError(
                f"--settings has no {text.strip()!r}. There are: "
                + ", ".join(f"{k}/{p}" for k, ps in GRID.items() for p in ps)
                + ", sincos2d/every_layer."
            )
        found += [(kind, p) for p in ((place,) if place else GRID[kind])]
    return list(dict.fromkeys(found))


def main(config):
    started = time.perf_counter()
    with training.user_errors():
        chosen = keras_vit.distribution.get_strategy(config.strategy)
        if chosen.host[1] > 1:
            raise ValueError("This recipe reads its images on one host.")
        if config.mixed_precision:
            keras.config.set_dtype_policy("mixed_bfloat16")
        training.require("matplotlib")
        if config.tensorboard:
            training.require("tensorflow")
        data = keras_vit.data.load_dataset(
            config.dataset,
            skip_bad_images=config.skip_bad_images,
            test_split=config.test_split,
        )
        config = complete(config, data)
        settings = settings_of(config)
        output = open_folder(config, data)
    rows = []
    for number, setting in enumerate(settings, start=1):
        print(f"\n{number} of {len(settings)}: {' / '.join(setting)}")
        rows.append(measured(config, data, chosen, output, setting))
        training.write_ablation(rows, config, data, output)
    print(f"\n{(output / 'table.txt').read_text()}")
    print(f"{time.perf_counter() - started:.0f} seconds")
    for name in FILES:
        print(f"  {output / name}")


def complete(config, data):
    """Returns the config with its sizes and its learning rate filled in."""
    image_size, patch_size = training.choose_sizes(
        (config.image_size, data.image_size, 64), config.patch_size, stride=1
    )
    return dataclasses.replace(
        config,
        image_size=image_size,
        patch_size=patch_size,
        batch_size=config.whole_batch(config.batch_size, data.num_train),
        learning_rate=config.learning_rate or RATES[config.pooling],
        mixup=config.mixup or 0.0,
        cutmix=config.cutmix or 0.0,
        mode=config.mode or "tf",
        evaluate_every=config.evaluate_every or max(1, config.steps // 4),
    )


def open_folder(config, data):
    """Returns the output folder, if what it holds is of the same run."""
    output = pathlib.Path(config.output or f"runs/positions-{data.name}")
    output = output.expanduser()
    facts = dataclasses.asdict(config) | {"backend": keras.backend.backend()}
    facts = {name: facts[name] for name in facts if name not in _FREE}
    told = output / "flags.json"
    if config.overwrite:
        for kind, place in [(k, p) for k in GRID for p in training.PLACES]:
            shutil.rmtree(output / f"{kind}-{place}", ignore_errors=True)
    elif told.exists():
        before = json.loads(told.read_text())
        other = [name for name in facts if before.get(name) != facts[name]]
        if other:
            raise ValueError(
                f"{str(output)!r} holds an ablation with other flags: "
                + ", ".join(f"{n} was {before.get(n)}" for n in other)
                + ". Choose another --output, or --overwrite it."
            )
    else:
        training.check_output(output, overwrite=False)
    output.mkdir(parents=True, exist_ok=True)
    training.save_json(facts, told)
    return output


def measured(config, data, chosen, output, setting):
    """Returns a row of the table; trains for it if nobody has."""
    kind, place = setting
    folder = output / f"{kind}-{place}"
    result = folder / "few_shot.json"
    if result.exists():
        print(f"done before: {result}")
        return json.loads(result.read_text())
    if not (folder / "config.json").exists():
        train(config, data, chosen, folder, kind, place)
    facts = json.loads((folder / "config.json").read_text())
    model = keras.models.load_model(folder / "model.keras")
    features = keras_vit.evaluation.feature_model(model)
    options = {
        **config.batches(),
        "batch_size": config.batch_size,
        "one_hot": False,
    }
    x, y = keras_vit.evaluation.predict_dataset(
        features, data.batches("train", **options), data.num_train
    )
    test_x, test_y = keras_vit.evaluation.predict_dataset(
        features, data.test(**options), data.num_test
    )
    (found,) = evaluation.few_shot(
        x,
        y,
        config.shots,
        config.draws,
        test_features=test_x,
        test_labels=test_y,
    )
    row = {
        "positions": kind,
        "placement": place,
        "few_shot": found["accuracy"],
        "few_shot_std": found["std"],
        "test_accuracy": facts["test_accuracy"],
        "weights": facts["model"]["weights"],
        "seconds": facts["seconds"],
    }
    training.save_json(row, result)
    return row


def train(config, data, strategy, output, kind, place):
    """Trains one setting; writes its results to a folder."""
    summary = f"positions {kind}, {place}"
    config = dataclasses.replace(config, overwrite=False)
    with training.Run(config, data, strategy, output, summary) as run:
        # 1. Data.
        def train_batches(start):
            return data.train(
                batch_size=config.batch_size,
                micro_batches=config.accumulate,
                seed=config.seed,
                start=start,
                **config.batches(),
                **config.augmentation(data.channels),
            )

        test = run.distribute(
            data.evaluation(batch_size=run.micro_batch_size, **config.batches())
        )

        # 2. Model.
        model = training.build_model(
            "compact-vit",
            None,
            config.patch_size,
            config.seed,
            input_shape=(config.image_size, config.image_size, data.channels),
            classes=len(data.class_names),
            pooling=config.pooling,
            position_embedding=kind,
            position_placement=place,
            remat=config.remat,
        )

        # 3. Optimizer, loss and metrics.
        schedule = keras_vit.schedules.warmup_cosine(
            config.learning_rate, config.steps, config.warmup
        )
        model.compile(
            optimizer=keras_vit.optimizers.AdamW(
                schedule,
                config.weight_decay,
                global_clipnorm=1.0,
                **config.optimizer_options(),
            ),
            loss=keras_vit.losses.get_loss("softmax", config.one_hot),
            weighted_metrics=["accuracy"],
            jit_compile=training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        for batches, steps, epochs in run.fit_calls(
            model, schedule, train_batches, test
        ):
            model.fit(
                batches,
                steps_per_epoch=steps,
                epochs=epochs,
                validation_data=test,
                callbacks=run.callbacks,
                shuffle=False,
                verbose=0,
            )
        run.save(model)


if __name__ == "__main__":
    training.run(main, Config, __doc__)
