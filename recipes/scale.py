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
  resolution   "Fixing the train-test resolution discrepancy"
               (https://arxiv.org/abs/1906.06423): test images of other sizes,
               without and with a short fine-tuning
  robustness   "Intriguing Properties of Vision Transformers"
               (https://arxiv.org/abs/2105.10497): test images with patches
               removed, or shuffled

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
multiply-adds x images. Few-shot accuracy is that of ridge regression on the
features of 5 images per class, sampled from all training images.

docs/scaling.md has the results of all studies on digits, which take 28 minutes
of one CPU core.
"""

import dataclasses
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit import evaluation
from keras_vit import training
from keras_vit.training import command_line as cli

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
SIZES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the training images' size
TUNED_SIZE = 1.5
REMOVED = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
SHUFFLES = (1, 2, 4)
ROBUST = ("ViT-64x4", "BiT-2x0.5", "hybrid-64x2")

FIRST = ("compute", "data", "shape")
STUDIES = (*FIRST, "pooling", "optimizer", "resolution", "robustness")
GRID = 4


@dataclasses.dataclass(frozen=True)
class Config(cli.StudyFlags):
    study: str = cli.flag(
        f"studies, separated by commas: {', '.join(STUDIES)}; or all",
        ",".join(FIRST),
        "LIST",
    )
    image_size: int | None = cli.flag(
        "images are resized to N x N, a multiple of 8", 32, minimum=8
    )
    steps: int = cli.flag(
        "training steps of each model; compute also has a quarter of them",
        400,
        minimum=1,
    )
    learning_rate: float | None = cli.flag(
        "peak learning rate; default: 0.003 for Vision Transformers, 0.001 for "
        "models with a ResNet",
        above=0,
    )

    optimizer: str = "adam"  # a setting of each `Point`

    def __post_init__(self):
        super().__post_init__()
        if self.image_size % 8:
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
    size: float = 1.0  # of the images, as a multiple of --image-size
    pretrained: str | None = None  # folder of the model to fine-tune

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
        if self.size != 1:
            parts.append(f"size-{self.size:g}")
        return "_".join(parts + ["tuned"] * (self.pretrained is not None))

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
            f"--study has no {unknown[0]!r}. There are: {', '.join(STUDIES)}, "
            "all."
        )
    return tuple(dict.fromkeys(names))


def points_of(study, steps):
    """Returns the models of a study, as a list of `Point`."""
    if study == "compute":
        few = max(1, steps // 4)
        return [Point(name, n) for name in MODELS for n in (few, steps)]
    if study == "data":
        return [
            Point(name, steps, fraction)
            for name in BY_FRACTION
            for fraction in FRACTIONS
        ]
    if study == "shape":
        changed = [
            Point("ViT-64x4", steps, changes=tuple(change.items()))
            for changes in SHAPES.values()
            for change in changes.values()
        ]
        return [Point("ViT-64x4", steps), *changed]
    if study == "pooling":
        return [
            Point("ViT-64x4", steps, changes=(("pooling", pooling),), rate=rate)
            for pooling in ("token", "gap")
            for rate in POOLING_RATES
        ]
    if study == "optimizer":
        return [
            Point("BiT-2x0.5", steps, optimizer=optimizer, rate=rate)
            for optimizer, rates in OPTIMIZER_RATES.items()
            for rate in rates
        ]
    if study == "resolution":
        base = Point("ViT-64x4", steps)
        tuned = Point(
            "ViT-64x4",
            max(1, steps // 4),
            rate=0.0003,
            size=TUNED_SIZE,
            pretrained=base.folder,
        )
        return [base, tuned]
    return [Point(name, steps) for name in ROBUST]


def main(config):
    started = time.perf_counter()
    with cli.user_errors():
        strategy = training.begin_study(config)
        data = load(config, 1.0)
        config = dataclasses.replace(
            config,
            batch_size=config.whole_batch(config.batch_size, data.num_train),
            mode=config.mode or "tf",
            evaluate_every=config.evaluate_every or config.steps,
        )
        output = open_folder(config, data)
    results, rows = {}, {}
    studies = studies_of(config)
    total = len({p for s in studies for p in points_of(s, config.steps)})
    for study in studies:
        points = points_of(study, config.steps)
        for point in points:
            if point not in rows:
                print(f"\n{len(rows) + 1} of {total}: {point.folder}")
                rows[point] = training.measure_once(
                    output / "models" / point.folder / "point.json",
                    measure,
                    *(config, strategy, output, point),
                )
        found = [rows[point] for point in points]
        title, report, axis = REPORTS[study]
        results[study] = title, *report(config, data, output, found), axis
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


def open_folder(config, data):
    """Creates or reopens the output folder, and returns its path."""
    output = training.open_study(config, f"scale-{data.name}", "study")
    if config.overwrite:
        for result in output.glob("models/*/point.json"):
            result.unlink()
    return output


def measure(config, strategy, output, point):
    """Trains a model, and returns its results."""
    folder = output / "models" / point.folder
    data = load(config, point.fraction)
    default = 0.003 if point.family == "ViT" else 0.001
    is_adam = point.optimizer == "adam"
    config = dataclasses.replace(
        config,
        study=",".join(FIRST),  # a model's run is the same in all studies
        image_size=int(config.image_size * point.size),
        steps=point.steps,
        batch_size=config.whole_batch(config.batch_size, data.num_train),
        evaluate_every=min(config.evaluate_every, point.steps),
        learning_rate=point.rate or config.learning_rate or default,
        optimizer=point.optimizer,
        weight_decay=config.weight_decay if is_adam else None,
    )
    trained = training.train_classifier(
        config,
        data,
        strategy,
        folder,
        lambda: build_model(config, data, output, point),
        point.folder,
    )
    model = keras_vit.models.load_keras_file(folder / "model.keras")
    cost = cost_of(config, point, data).training(
        config.batch_size * point.steps
    )
    # The same images for all models, whatever fraction they trained on.
    few_shot = evaluation.few_shot_of_model(
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


def arguments_of(point, image_size):
    """Returns the name of the model function, and its arguments."""
    arguments = {**MODELS[point.model], **dict(point.changes)}
    grid = arguments.pop("grid", GRID)
    if point.family == "ViT":
        arguments["patch_size"] = int(image_size / point.size) // grid
    name = {"ViT": "VisionTransformer", "BiT": "BiT"}
    return name.get(point.family, "HybridVisionTransformer"), arguments


def cost_of(config, point, data):
    name, arguments = arguments_of(point, config.image_size)
    return keras_vit.cost(
        name,
        config.image_size,
        classes=len(data.class_names),
        channels=data.channels,
        **arguments,
    )


def build_model(config, data, output, point):
    inputs = {
        "input_shape": config.input_shape(data.channels),
        "classes": len(data.class_names),
    }
    if point.pretrained is not None:
        weights = str(output / "models" / point.pretrained / "model.keras")
        return training.build_model(
            None, weights, None, config.seed, keep_head=True, **inputs
        )
    name, arguments = arguments_of(point, config.image_size)
    model = getattr(keras_vit, name)(**inputs, **arguments)
    training.models.spread_positions(model, config.seed)
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


# Columns of the tables, lines and axes of the plots: what they show of the row
# of a model, and its format.


def teraflops(row):
    return 1e3 * row["petaflops"]


def changed(row):
    """Returns what `SHAPES` changes in a row, and its value."""
    for kind, values in SHAPES.items():
        for value, changes in values.items():
            if changes == dict(row["changes"]):
                return kind, value
    return "none", "-"


POOLINGS = {"token": "class token", "gap": "mean of the patches"}
COLUMNS = {
    "model": (lambda row: row["model"], ""),
    "family": (lambda row: row["model"].partition("-")[0], ""),
    "steps": (lambda row: row["steps"], ""),
    "training images": (lambda row: row["train_images"], ""),
    "teraFLOPs": (teraflops, ".3g"),
    "changed": (lambda row: changed(row)[0], ""),
    "value": (lambda row: changed(row)[1], ""),
    "pooling": (lambda row: POOLINGS[dict(row["changes"])["pooling"]], ""),
    "optimizer": (lambda row: row["optimizer"], ""),
    "learning rate": (lambda row: row["learning_rate"], "g"),
    "accuracy": (lambda row: row["accuracy"], ".4f"),
    "few-shot": (lambda row: row["few_shot"], ".4f"),
}


# Reports: each returns a table as a list of lists, and the panels of a plot,
# pairs of a title and a dict of lines.


def by_columns(*columns, line, x, scores=("accuracy", "few-shot")):
    """Returns a report with a table of `columns` and the scores, and with a
    panel for each of `scores` by `x`, with a line for each `line`."""

    def value(row, name):
        return COLUMNS[name][0](row)

    def cell(row, name):
        # Counts are numbers, in results.json too.
        text_format = COLUMNS[name][1]
        found = value(row, name)
        return format(found, text_format) if text_format else found

    def report(config, data, output, rows):
        names = (*columns, "accuracy", "few-shot")
        cells = [[cell(row, name) for name in names] for row in rows]
        titles = {
            "accuracy": "test accuracy",
            "few-shot": f"{config.shots}-shot accuracy",
        }
        panels = []
        for score in scores:
            lines = {}
            for row in rows:
                point = value(row, x), value(row, score)
                lines.setdefault(value(row, line), []).append(point)
            # What all lines begin with, as nothing is changed.
            base = lines.pop("none", [])
            lines = {name: [*base, *points] for name, points in lines.items()}
            panels.append((titles[score], lines))
        return [list(names), *cells], panels

    return report


def by_teraflops(config, data, output, rows):
    columns = ("model", "steps", "teraFLOPs")
    report = by_columns(*columns, line="family", x="teraFLOPs")
    return report(config, data, output, sorted(rows, key=teraflops))


def trained(output, row):
    path = output / "models" / row["folder"] / "model.keras"
    return keras_vit.models.load_keras_file(path)


def by_test_size(config, data, output, rows):
    lines = {}
    # Whole patches: `GRID` of them are a side of the training images.
    sizes = [round(GRID * n) * (config.image_size // GRID) for n in SIZES]
    for row in rows:
        model = keras_vit.models.with_any_size(trained(output, row))
        name = f"trained on {config.image_size} px"
        if row["pretrained"]:
            name += f", fine-tuned on {int(config.image_size * row['size'])} px"
        configs = [dataclasses.replace(config, image_size=n) for n in sizes]
        lines[name] = [
            (at.image_size, score(model, *test_images(at, data)))
            for at in configs
        ]
    table = [["test image", *(row["folder"] for row in rows)]]
    for i, size in enumerate(sizes):
        found = [f"{line[i][1]:.4f}" for line in lines.values()]
        table.append([f"{size} px", *found])
    return table, [("test accuracy", lines)]


def by_damage(config, data, output, rows):
    images, labels = test_images(config, data)
    models = {row["model"]: trained(output, row) for row in rows}
    table, panels = [["test images", *models]], []
    for title, text, change, amounts, amount_of in (
        (
            "patches removed",
            "{:.1%} of the patches removed",
            remove_patches,
            REMOVED,
            lambda fraction: fraction,
        ),
        (
            "parts shuffled",
            "{0} x {0} parts shuffled",
            shuffle_patches,
            SHUFFLES,
            lambda grid: grid**2,
        ),
    ):
        lines = {name: [] for name in models}
        for amount in amounts:
            damaged = change(images, amount, seed=config.seed)
            found = [score(x, damaged, labels) for x in models.values()]
            for line, accuracy in zip(lines.values(), found, strict=True):
                line.append((amount_of(amount), accuracy))
            table.append([text.format(amount), *(f"{x:.4f}" for x in found)])
        panels.append((f"test accuracy, {title}", lines))
    return table, panels


def remove_patches(images, fraction, grid=2 * GRID, seed=0):
    """Sets a fraction of the `grid` x `grid` patches of each image to zero."""
    count = round(fraction * grid**2)
    order = np.random.default_rng(seed).random((len(images), grid**2))
    kept = order.argsort(-1).argsort(-1) >= count
    kept = kept.reshape(-1, grid, grid, 1)
    for axis, size in ((1, images.shape[1]), (2, images.shape[2])):
        kept = kept.repeat(size // grid, axis)
    return images * kept


def shuffle_patches(images, grid, seed):
    """Permutes the `grid` x `grid` parts of each image at random."""
    count, height, width, channels = images.shape
    p, q = height // grid, width // grid
    parts = images.reshape(count, grid, p, grid, q, channels)
    parts = parts.transpose(0, 1, 3, 2, 4, 5).reshape(count, grid**2, -1)
    order = np.random.default_rng(seed).random((count, grid**2)).argsort(-1)
    parts = np.take_along_axis(parts, order[:, :, None], 1)
    parts = parts.reshape(count, grid, grid, p, q, channels)
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)


by_learning_rate = functools.partial(
    by_columns, x="learning rate", scores=("accuracy",)
)
# By study: its title, its report and the label of the plots' axis.
REPORTS = {
    "compute": (
        "Computation (Figure 5)",
        by_teraflops,
        "teraFLOPs of training",
    ),
    "data": (
        "Data (Figures 3 and 4)",
        by_columns(
            "model", "training images", line="model", x="training images"
        ),
        "training images",
    ),
    "shape": (
        "Shape (Figure 8)",
        by_columns(
            *("changed", "value", "teraFLOPs"),
            line="changed",
            x="teraFLOPs",
            scores=("few-shot",),
        ),
        "teraFLOPs of training",
    ),
    "pooling": (
        "Class token and mean (Figure 9)",
        by_learning_rate("pooling", "learning rate", line="pooling"),
        "peak learning rate",
    ),
    "optimizer": (
        "Adam and SGD for a ResNet (Table 7)",
        by_learning_rate("optimizer", "learning rate", line="optimizer"),
        "peak learning rate",
    ),
    "resolution": ("Resolution (FixRes)", by_test_size, "test image, px"),
    "robustness": (
        "Occlusion and shuffling (Naseer et al.)",
        by_damage,
        "fraction removed / number of parts",
    ),
}


def plot(path, panels, label, logarithmic, frontier):
    """Plots panels next to each other; with `frontier`, a line is the best
    value so far."""
    figure = cli.require("matplotlib.figure").Figure(
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
        if logarithmic:
            ticker = cli.require("matplotlib.ticker")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_title(title)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def write_report(output, results, data):
    """Writes the plots, report.md and results.json; returns the tables."""
    sections = {}
    for study, (title, table, panels, axis) in results.items():
        head, *rows = [" | ".join(map(str, row)) for row in table]
        ruler = "|".join(["---"] * len(table[0]))
        lines = [f"| {head} |", f"|{ruler}|", *(f"| {r} |" for r in rows)]
        sections[study] = f"## {title}\n\n" + "\n".join(lines)
        plot(
            output / f"{study}.png",
            panels,
            axis,
            logarithmic=study not in ("resolution", "robustness"),
            frontier=study == "compute",
        )
    report = f"# Studies on {data.name}\n\n" + "\n\n".join(
        f"{section}\n\n![{name}.png]({name}.png)"
        for name, section in sections.items()
    )
    (output / "report.md").write_text(report + "\n")
    training.save_json(
        {study: table for study, (_, table, *_) in results.items()},
        output / "results.json",
    )
    return "\n\n".join(sections.values())


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
