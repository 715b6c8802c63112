"""Studies how accuracy depends on computation, data, shape and settings.

The experiments of "An Image is Worth 16x16 Words"
(https://arxiv.org/abs/2010.11929) on scaling and of its appendix, at the size
of a laptop. Every study trains several small models and writes a table and a
picture:

  compute      Figure 5: accuracy by the computation of the training, for
               Vision Transformers, BiT ResNets and hybrids of several sizes
  data         Figures 3 and 4: accuracy by the fraction of the training images
  shape        Figure 8: depth, width, MLP and patch size changed one at a time
  pooling      Figure 9: class token and mean of the patches, for a sweep of
               learning rates
  optimizer    Table 7: Adam and SGD for ResNets, for a sweep of learning rates

  python recipes/scale.py
      runs compute, data and shape on handwritten digits, without a download
  python recipes/scale.py --study pooling
  python recipes/scale.py --study all --dataset cifar10 --steps 20000

An interrupted run resumes with the same command: finished models are not
trained again, and the interrupted one resumes from its last checkpoint. Studies
share models, so that another --study in the same folder trains only what is
missing. The output folder contains report.md with all tables and pictures,
results.json, and a folder for each model in `models`.

The computation of a training is `keras_vit.cost(...).training(...)`: 6 x
multiply-adds x images. Few-shot accuracy is measured by ridge regression on
the features of 5 images per class, sampled from all training images.

docs/scaling.md has the results of all studies on digits, and their CPU times.
"""

import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit_programs import building, defaults, flags, run_folder, studies

# Arguments of the model functions. Patches of a Vision Transformer are a
# quarter of the image's height and width by default.
VIT = {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "pooling": "gap"}
HYBRID = {**VIT, "width_factor": 0.5, "patch_size": 1, "num_layers": 2}
MODELS = {
    "ViT-32x2": {**VIT, "hidden_size": 32, "num_layers": 2},
    "ViT-64x2": {**VIT, "num_layers": 2},
    "ViT-64x4": VIT,
    "ViT-96x6": {**VIT, "hidden_size": 96, "num_layers": 6},
    "BiT-1x0.5": {"resnet_layers": (1,), "width_factor": 0.5},
    "BiT-2x0.5": {"resnet_layers": (1, 1), "width_factor": 0.5},
    "BiT-2x1": {"resnet_layers": (1, 1), "width_factor": 1.0},
    "hybrid-32x2": {**HYBRID, "resnet_layers": (1,), "hidden_size": 32},
    "hybrid-64x2": {**HYBRID, "resnet_layers": (1, 1)},
}
# Figure 8: one size of ViT-64x4 changed at a time. A patch is a fraction of the
# image's height and width.
SHAPES = {
    "depth": {"2": {"num_layers": 2}, "8": {"num_layers": 8}},
    "width": {"32": {"hidden_size": 32}, "128": {"hidden_size": 128}},
    "width of the MLP": {"64": {"mlp_dim": 64}, "512": {"mlp_dim": 512}},
    "patches per side": {"2": {"grid": 2}, "8": {"grid": 8}},
}
FRACTIONS = (1 / 32, 1 / 8, 1 / 2, 1.0)
BY_FRACTION = ("ViT-32x2", "ViT-64x4", "BiT-2x0.5")
# Figure 9 has a factor of 8/3 between the best rates of the two poolings.
POOLING_RATES = (0.0003, 0.001, 0.003, 0.008, 0.02)
OPTIMIZER_RATES = {"adam": (0.0003, 0.001, 0.003), "sgd": (0.01, 0.03, 0.1)}

FIRST = ("compute", "data", "shape")
GRID = 4
# Tables and plots: names and formats of what they show of the row of a model.
POOLINGS = {"token": "class token", "gap": "mean of the patches"}
FORMATS = {
    "teraFLOPs": ".3g",
    "learning rate": "g",
    "accuracy": ".4f",
    "few-shot": ".4f",
}
BOTH = ("accuracy", "few-shot")


@dataclasses.dataclass(frozen=True)
class Report:
    """A table and a plot of a study.

    Columns come before the scores in the table. The first one names the lines
    of the plot, and the last one is its x.
    """

    title: str
    axis: str  # the label of the x-axis
    columns: tuple
    scores: tuple = BOTH  # of which the plot has a panel each


REPORTS = {
    "compute": Report(
        "Computation (Figure 5)",
        "teraFLOPs of training",
        ("family", "model", "steps", "teraFLOPs"),
    ),
    "data": Report(
        "Data (Figures 3 and 4)",
        "training images",
        ("model", "training images"),
    ),
    "shape": Report(
        "Shape (Figure 8)",
        "teraFLOPs of training",
        ("changed", "value", "teraFLOPs"),
        ("few-shot",),
    ),
    "pooling": Report(
        "Class token and mean (Figure 9)",
        "peak learning rate",
        ("pooling", "learning rate"),
        ("accuracy",),
    ),
    "optimizer": Report(
        "Adam and SGD for a ResNet (Table 7)",
        "peak learning rate",
        ("optimizer", "learning rate"),
        ("accuracy",),
    ),
}
STUDIES = tuple(REPORTS)


# The defaults, in the order in which they are set.
DEFAULTS = (
    defaults.constant("image_size", 32),
    *defaults.batch_size(64),
    defaults.constant("steps", 400),
    defaults.evaluate_every(1),
    flags.Rule(
        "learning_rate",
        "0.003 for Vision Transformers, 0.001 for models with a ResNet",
    ),
    *defaults.STUDY,
)


@dataclasses.dataclass(frozen=True)
class Config(flags.Study):
    study: str = flags.flag(
        f"studies, separated by commas: {', '.join(STUDIES)}; or all; compute "
        "trains for --steps and for a quarter of them",
        ",".join(FIRST),
        "LIST",
    )

    # Settings of each `Point` that are no flags.
    optimizer: str = "adam"
    warmup: float = 0.1

    defaults = DEFAULTS

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.image_size, tuple) or (self.image_size or 8) % 8:
            raise ValueError(
                "--image-size must be a multiple of 8, for up to 8 patches a "
                f"side. Received: {self.image_size}"
            )
        studies_of(self)


@dataclasses.dataclass(frozen=True)
class Point:
    """A model to train."""

    model: str  # a key of `MODELS`
    steps: int
    fraction: float = 1.0  # of the training images
    # Arguments that replace those of `MODELS`, as pairs; "grid" is the number
    # of patches per side.
    changes: tuple = ()
    rate: float | None = None  # peak learning rate
    optimizer: str = "adam"  # or "sgd"

    @property
    def folder(self):
        parts = [self.model, f"{self.steps}-steps"]
        if self.fraction != 1:
            parts.append(f"{self.fraction:g}-of-the-images")
        parts += [f"{name}-{value}" for name, value in self.changes]
        if self.optimizer != "adam":
            parts.append(self.optimizer)
        if self.rate is not None:
            parts.append(f"rate-{self.rate:g}")
        return "_".join(parts)

    @property
    def family(self):
        return self.model.partition("-")[0]


def studies_of(config):
    """Returns the names of the requested studies."""
    if config.study == "all":
        return STUDIES
    names = tuple(name.strip() for name in config.study.split(","))
    unknown = [name for name in names if name not in STUDIES]
    if unknown:
        raise ValueError(
            f"--study has no {unknown[0]!r}. There are: {', '.join(STUDIES)}, all."
        )
    return tuple(dict.fromkeys(names))


def points_of(study, steps):
    """Returns the models of a study, as a list of `Point`."""
    few, base = max(1, steps // 4), Point("ViT-64x4", steps)
    changes = [x for kind in SHAPES.values() for x in kind.values()]
    return {
        "compute": [Point(name, n) for name in MODELS for n in (few, steps)],
        "data": [
            Point(name, steps, fraction)
            for name in BY_FRACTION
            for fraction in FRACTIONS
        ],
        "shape": [
            base,
            *(
                dataclasses.replace(base, changes=tuple(change.items()))
                for change in changes
            ),
        ],
        "pooling": [
            dataclasses.replace(base, changes=(("pooling", pooling),), rate=rate)
            for pooling in POOLINGS
            for rate in POOLING_RATES
        ],
        "optimizer": [
            Point("BiT-2x0.5", steps, optimizer=optimizer, rate=rate)
            for optimizer, rates in OPTIMIZER_RATES.items()
            for rate in rates
        ],
    }[study]


def main(config):
    started = time.perf_counter()
    with flags.user_errors():
        strategy = studies.begin_study(config)
        data = load(config, 1.0)
        config = flags.fill(config, data)
        output = studies.open_study(config, f"scale-{data.name}", "study")
        if config.overwrite:
            for result in output.glob("models/*/point.json"):
                result.unlink()
    results, rows = {}, {}
    chosen = studies_of(config)
    total = len({p for s in chosen for p in points_of(s, config.steps)})
    for study in chosen:
        points = points_of(study, config.steps)
        for point in points:
            if point not in rows:
                print(f"\n{len(rows) + 1} of {total}: {point.folder}")
                rows[point] = studies.measure_once(
                    output / "models" / point.folder / "point.json",
                    measure,
                    *(config, strategy, output, point),
                )
        found = [rows[point] for point in points]
        results[study] = by_columns(study, config, found)
        text = write_report(output, results, data)
    print(f"\n{text}\n\n{time.perf_counter() - started:.0f} seconds")
    print(f"  {output / 'report.md'}")


def load(config, fraction):
    """Returns the dataset with a fraction of its training images."""
    return keras_vit.data.load_dataset(
        config.dataset,
        holdout=1 - fraction,
        skip_bad_images=config.skip_bad_images,
        test_split=config.test_split,
    )


def measure(config, strategy, output, point):
    """Trains a model, and returns its results."""
    folder = output / "models" / point.folder
    data = load(config, point.fraction)
    default = 0.003 if point.family == "ViT" else 0.001
    is_adam = point.optimizer == "adam"
    config = dataclasses.replace(
        config,
        study=",".join(FIRST),  # a model's run is the same in all studies
        steps=point.steps,
        batch_size=defaults.whole_batch(config, data),
        evaluate_every=min(config.evaluate_every, point.steps),
        learning_rate=point.rate or config.learning_rate or default,
        optimizer=point.optimizer,
        weight_decay=config.weight_decay if is_adam else None,
    )
    trained = studies.train_classifier(
        config,
        data,
        strategy,
        folder,
        lambda: build_model(config, data, point),
        config.warmup,
        point.folder,
    )
    model = keras_vit.load(folder / "model.keras")
    cost = keras_vit.cost(model, config.image_size)
    cost = cost.training(config.batch_size * point.steps)
    # The same images for all models, whatever fraction they trained on.
    few_shot = keras_vit.evaluation.few_shot_of_model(
        model, load(config, 1.0), config.reading, config.shots, seeds=10
    )
    return {
        **dataclasses.asdict(point),
        "folder": point.folder,
        "train_images": data.num_train,
        "learning_rate": config.learning_rate,
        "parameters": model.count_params(),
        "petaflops": 1e3 * cost["exaflops"],
        "accuracy": score(model, *test_images(config, data)),
        "few_shot": few_shot["accuracy"],
        "seconds": trained["seconds"],
    }


def build_model(config, data, point):
    inputs = {
        "input_shape": config.input_shape(data.channels),
        "classes": len(data.class_names),
    }
    arguments = {**MODELS[point.model], **dict(point.changes)}
    grid = arguments.pop("grid", GRID)
    if point.family == "ViT":
        arguments["patch_size"] = config.image_size // grid
    build = {
        "ViT": keras_vit.VisionTransformer,
        "BiT": keras_vit.BiT,
        "hybrid": keras_vit.HybridVisionTransformer,
    }[point.family]
    model = build(**inputs, **arguments)
    building.spread_positions(model, config.seed)
    return model


def test_images(config, data):
    """Returns arrays of the test images and of their labels."""
    parts = [
        map(keras.ops.convert_to_numpy, batch[:2])
        for batch in data.test(**config.reading)
    ]
    images, labels = map(np.concatenate, zip(*parts, strict=True))
    return images, labels


def score(model, images, labels):
    outputs = model.predict(images, batch_size=128, verbose=0)
    return float(np.mean(outputs.argmax(-1) == labels))


def described(row):
    """Returns what tables and plots show of the row of a model, by column."""
    changes = dict(row["changes"])
    changed = [
        (kind, value)
        for kind, values in SHAPES.items()
        for value, shape in values.items()
        if shape == changes
    ]
    kind, value = changed[0] if changed else ("none", "-")
    return {
        "model": row["model"],
        "family": row["model"].partition("-")[0],
        "steps": row["steps"],
        "training images": row["train_images"],
        "teraFLOPs": 1e3 * row["petaflops"],
        "changed": kind,
        "value": value,
        "pooling": POOLINGS.get(changes.get("pooling")),
        "optimizer": row["optimizer"],
        "learning rate": row["learning_rate"],
        "accuracy": row["accuracy"],
        "few-shot": row["few_shot"],
    }


def by_columns(study, config, rows):
    """Returns a table of columns and scores as a list of lists, and a panel for
    each score, a pair of its title and a dict of lines."""
    report, rows = REPORTS[study], [described(row) for row in rows]
    line, x = report.columns[0], report.columns[-1]
    # A model's name begins with its family.
    names = [n for n in (*report.columns, *BOTH) if n != "family"]
    if study == "compute":
        rows.sort(key=lambda row: row["teraFLOPs"])
    # Counts are numbers, in results.json too.
    table = [
        [format(row[n], FORMATS[n]) if n in FORMATS else row[n] for n in names]
        for row in rows
    ]
    panels = []
    for name in report.scores:
        lines = {}
        for row in rows:
            lines.setdefault(row[line], []).append((row[x], row[name]))
        # What all lines begin with, as nothing is changed.
        base = lines.pop("none", [])
        lines = {key: [*base, *points] for key, points in lines.items()}
        what = "test" if name == "accuracy" else f"{config.shots}-shot"
        panels.append((f"{what} accuracy", lines))
    return [names, *table], panels


def plot(study, panels):
    """Plots panels next to each other; of "compute", a line is the best value
    so far."""
    frontier = study == "compute"
    figure = flags.require("matplotlib.figure").Figure(
        figsize=(5 * len(panels), 3.8), dpi=120, layout="constrained"
    )
    for axes, (title, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for name, line in lines.items():
            x, y = map(np.array, zip(*sorted(line), strict=True))
            style = "o" if frontier else "o-"
            (points,) = axes.plot(x, y, style, label=name)
            if frontier:
                axes.step(
                    x,
                    np.maximum.accumulate(y),
                    where="post",
                    color=points.get_color(),
                    linewidth=1,
                )
        ticker = flags.require("matplotlib.ticker")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_title(title)
        axes.set_xlabel(REPORTS[study].axis)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    return figure


def write_report(output, results, data):
    """Writes the plots, report.md and results.json; returns the tables."""
    sections = {}
    for study, (table, panels) in results.items():
        head, *rows = [" | ".join(map(str, row)) for row in table]
        ruler = "|".join(["---"] * len(table[0]))
        lines = [f"| {head} |", f"|{ruler}|", *(f"| {r} |" for r in rows)]
        sections[study] = f"## {REPORTS[study].title}\n\n" + "\n".join(lines)
        plot(study, panels).savefig(output / f"{study}.png")
    report = f"# Studies on {data.name}\n\n" + "\n\n".join(
        f"{section}\n\n![{name}.png]({name}.png)" for name, section in sections.items()
    )
    (output / "report.md").write_text(report + "\n")
    run_folder.save_json(
        {study: table for study, (table, _) in results.items()},
        output / "results.json",
    )
    return "\n\n".join(sections.values())


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
