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
      trains with a class token, at its own learning rate
  python recipes/ablate_position_embedding.py --dataset cifar10 --steps 20000

An interrupted run resumes with the same command: finished settings are not
trained again, and the interrupted one resumes from its last checkpoint. The
output folder contains table.txt, results.json, table.png, and a folder for each
setting. docs/scaling.md has the results on digits, which take 6 minutes of CPU
time.

All settings share --seed. The initial standard deviation of all learned
position embeddings is 0.5: with the usual 0.02, those added once are far behind
after so few steps, so that the table would compare initial values. Sinusoids
have a standard deviation of 0.7. Relative position embeddings are in every
layer or not at all. The 5 images per class are sampled from the images that the
model was trained on; those of the paper are from other datasets.
"""

import dataclasses
import os
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit_programs import building, defaults, flags, run_folder, studies

PLACEMENTS = {
    "stem": "stem",
    "every_layer": "every layer",
    "every_layer_shared": "every layer, shared",
}
# The default placements of each kind. Sinusoids have no weights that could be
# shared, and are in every layer only if that is requested.
GRID = {
    "none": ("stem",),
    "learned_1d": tuple(PLACEMENTS),
    "learned_2d": tuple(PLACEMENTS),
    "relative": ("every_layer", "every_layer_shared"),
    "sincos2d": ("stem",),
}
# Learning rates by pooling. In the paper's Figure 9, class token and global
# average pooling are equally good, each at its own learning rate: 8e-4 and
# 3e-4. 0.003 suits these small models.
RATES = {"gap": 0.003, "token": 0.008}
FILES = ("table.txt", "results.json", "table.png")


# The defaults, in the order in which they are set.
DEFAULTS = (
    flags.Rule("spec", "", lambda s, data: {"patch_size": s.patch_size, "stride": 1}),
    flags.Rule(
        "image_size",
        "that of the dataset, else 64",
        lambda s, data: data.image_size or 64,
    ),
    defaults.PATCH_SIZE,
    *defaults.batch_size(64),
    defaults.constant("steps", 400),
    defaults.evaluate_every(4),
    flags.Rule(
        "learning_rate",
        f"{RATES['gap']} for gap, {RATES['token']} for token",
        lambda s, data: RATES[s.pooling],
    ),
    defaults.constant("warmup", 0.1),
    *defaults.STUDY,
)


@dataclasses.dataclass(frozen=True)
class Config(flags.Patches, flags.Warmup, flags.Study):
    settings: str = flags.flag(
        "KIND or KIND/PLACEMENT, separated by commas; kinds: "
        f"{', '.join(GRID)}; placements: {', '.join(PLACEMENTS)}",
        "all",
        "LIST",
    )
    pooling: str = flags.flag(
        "input of the head: gap (global average pooling of the patches) or "
        "token (the class token)",
        "gap",
        choices=tuple(RATES),
    )
    samples: int = flags.flag(
        "number of random samples of the images of the few-shot evaluation, "
        "which are averaged",
        10,
        minimum=1,
    )

    defaults = DEFAULTS

    def __post_init__(self):
        super().__post_init__()
        settings_of(self)


def settings_of(config):
    """Returns the requested settings, as pairs of kind and placement."""
    default = [(kind, p) for kind, places in GRID.items() for p in places]
    if config.settings == "all":
        return default
    known, found = [*default, ("sincos2d", "every_layer")], []
    for text in config.settings.split(","):
        kind, _, placement = text.strip().partition("/")
        asked = [(kind, placement)] if placement else default
        asked = [x for x in asked if x[0] == kind and x in known]
        if not asked:
            raise ValueError(
                f"--settings has no {text.strip()!r}. There are: "
                f"{', '.join(map('/'.join, known))}."
            )
        found += asked
    return list(dict.fromkeys(found))


def main(config):
    started = time.perf_counter()
    with flags.user_errors():
        strategy = studies.begin_study(config)
        data = keras_vit.data.load_dataset(
            config.dataset,
            skip_bad_images=config.skip_bad_images,
            test_split=config.test_split,
        )
        config = resolve_config(config, data)
        settings = settings_of(config)
        name = f"positions-{data.name}"
        output = studies.open_study(config, name, "settings")
        if config.overwrite:
            for result in output.glob("*/few_shot.json"):
                shutil.rmtree(result.parent)
    rows = []
    for number, setting in enumerate(settings, start=1):
        print(f"\n{number} of {len(settings)}: {' / '.join(setting)}")
        folder = output / "-".join(setting)
        rows.append(
            studies.measure_once(
                folder / "few_shot.json",
                measure,
                *(config, data, strategy, folder, *setting),
            )
        )
        write_ablation(rows, config, data, output)
    print(f"\n{(output / 'table.txt').read_text()}")
    print(f"{time.perf_counter() - started:.0f} seconds")
    for name in FILES:
        print(f"  {output / name}")


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    return flags.fill(given, data)


def measure(config, data, strategy, folder, kind, placement):
    """Trains a model with one setting, and returns its results."""

    def build_model():
        return building.build_model(
            "compact-vit",
            None,
            config.patch_size,
            config.seed,
            input_shape=config.input_shape(data.channels),
            classes=len(data.class_names),
            pooling=config.pooling,
            position_embedding=kind,
            position_placement=placement,
            remat=config.remat,
        )

    # A model's run is the same, whatever else --settings names.
    one = dataclasses.replace(config, settings="all")
    trained = studies.train_classifier(
        *(one, data, strategy, folder, build_model, config.warmup),
        f"{kind}, {placement}",
    )
    model = keras_vit.load(folder / "model.keras")
    found = keras_vit.evaluation.few_shot_of_model(
        model, data, config.reading, config.shots, config.samples
    )
    return {
        "positions": kind,
        "placement": placement,
        "few_shot": found["accuracy"],
        "few_shot_std": found["std"],
        "test_accuracy": trained["test_accuracy"],
        "weights": trained["model"]["weights"],
        "seconds": trained["seconds"],
    }


def write_ablation(rows, config, data, output):
    """Writes `table.txt`, `results.json` and `table.png`, replacing older ones.

    It is called after each trained setting, so that an interrupted ablation
    leaves the results so far.
    """
    lines = []
    for title, column in (
        (f"{config.shots}-shot", "few_shot"),
        ("test", "test_accuracy"),
    ):
        # The layout is that of the paper's Table 8.
        found = {(r["positions"], r["placement"]): r[column] for r in rows}
        cells = [[title, *PLACEMENTS.values()]]
        for kind in dict.fromkeys(kind for kind, _ in found):
            values = [found.get((kind, placement)) for placement in PLACEMENTS]
            shown = ["-" if x is None else f"{x:.4f}" for x in values]
            cells.append([kind, *shown])
        lines += [f"{x[0]:14}" + "".join(f"{c:>21}" for c in x[1:]) for x in cells]
        lines.append("")
    with run_folder.atomic_write(output / "table.txt") as temporary:
        temporary.write_text("\n".join(lines))
    summary = {
        "rows": rows,
        "config": dataclasses.asdict(config),
        "data": data.metadata(),
        "versions": run_folder.versions(),
    }
    run_folder.save_json(summary, output / "results.json")
    label = f"{config.shots}-shot accuracy on {data.name}, {config.steps} steps"
    with run_folder.atomic_write(output / "table.png") as temporary:
        plotted(rows, label).savefig(temporary, dpi=120)


def plotted(rows, label):
    """Returns a plot of the few-shot accuracy of each setting, with the
    standard deviation over samples of training images."""
    figure = flags.require("matplotlib.figure").Figure(
        figsize=(8, 0.4 * len(rows) + 1.2), layout="constrained"
    )
    axes = figure.subplots()
    for i, row in enumerate(rows):
        axes.barh(
            f"{row['positions']}, {PLACEMENTS[row['placement']]}",
            row["few_shot"],
            xerr=row["few_shot_std"],
            color=f"C{list(GRID).index(row['positions'])}",
        )
        axes.text(0.01, i, f"{row['few_shot']:.4f}", va="center", color="white")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(label)
    return figure


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
