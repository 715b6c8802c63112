"""Compares position embeddings and the layers to which they are added.

"An Image is Worth 16x16 Words", Appendix D.4 and Table 8
(https://arxiv.org/abs/2010.11929): the same small Vision Transformer is trained
once for every kind of position embedding (none, 1-D, 2-D, relative, fixed
sinusoids) and every placement (once before the blocks; in every block, with
separate weights; in every block, with shared weights). Each model is then
evaluated as in the paper: by 5-shot linear evaluation of its features, in
closed form.

  python recipes/ablate_position_embedding.py
      trains all settings of the table on handwritten digits, in minutes on 2
      cores, without a download
  python recipes/ablate_position_embedding.py --settings none,learned_2d
      trains two rows of the table; a slash selects a placement:
      learned_2d/every_layer
  python recipes/ablate_position_embedding.py --pooling token
      trains with a class token, at its own learning rate (see below)
  python recipes/ablate_position_embedding.py --dataset cifar10 --steps 20000

An interrupted run resumes with the same command: finished settings are not
trained again, and the interrupted one resumes from its last checkpoint. The
output folder contains table.txt, results.json, table.png, and a folder for each
setting.

All settings share --seed, which determines initial weights, order of the images
and augmentation. The initial standard deviation of all learned position
embeddings is 0.5: with the usual 0.02, those added once are far behind after so
few steps, and those of every layer less so, so that the table would compare
initial values. Sinusoids have a standard deviation of 0.7. Relative position
embeddings are in every layer or not at all.

The learning rate depends on --pooling: the paper's Figure 9 finds that the
class token and global average pooling ("gap") are equally good, each at its own
learning rate: 8e-4 and 3e-4. Here, gap has 0.003, which suits these small
models, and the class token 8/3 of it, 0.008. --learning-rate overrides both.

Measured on digits (2026-11-21, 2 busy CPU cores, JAX, --seed 0): 10 minutes,
of which 6 minutes of CPU time.

  5-shot               stem          every layer  every layer, shared
  none               0.4061                    -                    -
  learned_1d         0.9429               0.9496               0.9482
  learned_2d         0.9448               0.9554               0.9329
  relative                -               0.7928               0.7017
  sincos2d           0.8396                    -                    -

As in the paper, "none" is by far the worst, and neither the kind nor the
placement of learned position embeddings matters beyond noise: --seed 1 changes
learned_1d/stem by 0.021 to 0.9643, learned_2d/every_layer by 0.006 to 0.9493,
relative/every_layer by 0.059 to 0.7337 and none by 0.003 to 0.4092. Unlike in
the paper, relative position embeddings and sinusoids are behind: they train
more slowly and have not converged after 400 steps. After 1600 steps,
relative/every_layer has 0.9747 and sincos2d 0.9682.

The 5 images per class are sampled from the images, with labels, that the model
was trained on; those of the paper are from other datasets.
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

# The default placements of each kind. Sinusoids have no weights that could be
# shared, and are in every layer only if that is requested.
GRID = {
    "none": ("stem",),
    "learned_1d": tuple(training.PLACES),
    "learned_2d": tuple(training.PLACES),
    "relative": ("every_layer", "every_layer_shared"),
    "sincos2d": ("stem",),
}
# Learning rates by pooling. In Figure 9, that of the class token is 8/3 of that
# of global average pooling.
RATES = {"gap": 0.003, "token": 0.008}
FILES = ("table.txt", "results.json", "table.png")
_FREE = (
    *("settings", "output", "overwrite", "checkpoint_every", "tensorboard"),
    "skip_bad_images",  # needed to resume after an unreadable image
)


@dataclasses.dataclass(frozen=True)
class Config(training.TrainingFlags):
    settings: str = training.flag(
        "all",
        "KIND or KIND/PLACE, separated by commas; kinds: "
        f"{', '.join(GRID)}; places: {', '.join(training.PLACES)}",
        "LIST",
    )
    pooling: str = training.flag(
        "gap",
        "input of the head: gap (global average pooling of the patches) or "
        "token (the class token)",
        "NAME",
    )
    shots: int = training.flag(
        5, "training images per class in the linear evaluation"
    )
    draws: int = training.flag(
        10, "number of random samples of these images, which are averaged"
    )
    steps: int = training.flag(400, "training steps of each setting")
    learning_rate: float | None = training.flag(
        None,
        f"peak learning rate; default: {RATES['gap']} for gap, "
        f"{RATES['token']} for token",
        "X",
    )
    warmup: float = training.flag(
        0.1,
        "fraction of the steps in which the learning rate is warmed up",
        "X",
    )
    weight_decay: float = training.flag(0.05, "weight decay of AdamW", "X")
    output: str | None = training.flag(
        None,
        "output folder; default: runs/positions- followed by the name of the "
        "dataset",
        "DIR",
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
    """Returns the requested settings, as pairs of kind and placement.

    Args:
        config: `Config`.

    Raises:
        ValueError: if there is no such setting.
    """
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
    """Returns the config with values for all settings that are None.

    Args:
        config: `Config`.
        data: `keras_vit.data.ImageDataset`.

    Raises:
        ValueError: if the patch size does not divide the image size.
    """
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
    """Creates or reopens the output folder.

    Args:
        config: `Config`.
        data: `keras_vit.data.ImageDataset`.

    Returns:
        Path of the folder.

    Raises:
        ValueError: if the folder holds other files, or an ablation with other
            flags.
    """
    output = pathlib.Path(config.output or f"runs/positions-{data.name}")
    output = output.expanduser()
    facts = dataclasses.asdict(config) | {"backend": keras.backend.backend()}
    facts = {name: facts[name] for name in facts if name not in _FREE}
    settings_path = output / "flags.json"
    if config.overwrite:
        for kind, place in [(k, p) for k in GRID for p in training.PLACES]:
            shutil.rmtree(output / f"{kind}-{place}", ignore_errors=True)
    elif settings_path.exists():
        before = json.loads(settings_path.read_text())
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
    training.save_json(facts, settings_path)
    return output


def measured(config, data, chosen, output, setting):
    """Returns the results of one setting, and trains it if necessary.

    Args:
        config: `Config`.
        data: `keras_vit.data.ImageDataset`.
        chosen: `keras_vit.distribution.Strategy`.
        output: Path of the output folder.
        setting: Tuple of the kind and the placement.

    Returns:
        Dict. A row of the table.
    """
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
    """Trains one setting and writes the results to its folder."""
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
