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
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit import evaluation
from keras_vit import training
from keras_vit.optimizers import PublishedAdamW
from keras_vit.optimizers import PublishedSGD
from keras_vit.training import command_line as cli
from keras_vit.training import run_folder
from keras_vit.training.models import spread_positions

# Arguments of the model functions. Patches of a Vision Transformer are a
# quarter of the image's height and width by default.
VIT = {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "pooling": "gap"}
MODELS = {
    "ViT-32x2": {**VIT, "hidden_size": 32, "num_layers": 2},
    "ViT-64x2": {**VIT, "num_layers": 2},
    "ViT-64x4": VIT,
    "ViT-96x6": {**VIT, "hidden_size": 96, "num_layers": 6},
    "BiT-1x0.5": {"resnet_layers": (1,), "width_factor": 0.5},
    "BiT-2x0.5": {"resnet_layers": (1, 1), "width_factor": 0.5},
    "BiT-2x1": {"resnet_layers": (1, 1), "width_factor": 1.0},
    "hybrid-32x2": {
        **VIT,
        "resnet_layers": (1,),
        "width_factor": 0.5,
        "patch_size": 1,
        "hidden_size": 32,
        "num_layers": 2,
    },
    "hybrid-64x2": {
        **VIT,
        "resnet_layers": (1, 1),
        "width_factor": 0.5,
        "patch_size": 1,
        "num_layers": 2,
    },
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
class Config(cli.TrainingFlags):
    study: str = cli.arg(
        ",".join(FIRST),
        f"studies, separated by commas: {', '.join(STUDIES)}; or all",
        "LIST",
    )
    image_size: int | None = cli.arg(
        32, "images are resized to N x N, a multiple of 8", minimum=8
    )
    steps: int = cli.arg(
        400,
        "training steps of each model; compute also has a quarter of them",
        minimum=1,
    )
    shots: int = cli.arg(
        5, "training images per class in the few-shot evaluation", minimum=1
    )
    learning_rate: float | None = cli.arg(
        None,
        "peak learning rate; default: 0.003 for Vision Transformers, 0.001 for "
        "models with a ResNet",
        "X",
        above=0,
    )
    weight_decay: float = cli.arg(0.05, "weight decay of AdamW", "X", minimum=0)
    output: str | None = cli.arg(
        None,
        "output folder; default: runs/scale- followed by the name of the "
        "dataset",
        "DIR",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.image_size % 8:
            raise ValueError(
                "--image-size must be a multiple of 8, for up to 8 patches a "
                f"side. Received: {self.image_size}"
            )
        if self.keep != "last" or self.holdout is not None:
            raise ValueError(
                "Models are compared on the test images after their last step: "
                "leave out --keep best and --holdout."
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
        chosen = training.begin_study(config)
        data = load(config, 1.0)
        config = resolve_config(config, data)
        output = open_folder(config, data)
    results, rows = {}, {}
    studies = studies_of(config)
    total = len({p for s in studies for p in points_of(s, config.steps)})
    for study in studies:
        points = points_of(study, config.steps)
        for point in points:
            if point not in rows:
                print(f"\n{len(rows) + 1} of {total}: {point.folder}")
                rows[point] = measured(config, chosen, output, point)
        results[study] = REPORTS[study](
            config, data, output, [rows[point] for point in points]
        )
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


def resolve_config(config, data):
    """Returns the config with values for all settings that are None."""
    return dataclasses.replace(
        config,
        batch_size=config.whole_batch(config.batch_size, data.num_train),
        mode=config.mode or "tf",
        evaluate_every=config.evaluate_every or config.steps,
    )


def open_folder(config, data):
    """Creates or reopens the output folder, and returns its path."""
    output = pathlib.Path(config.output or f"runs/scale-{data.name}")
    output = training.open_study(config, output, "study")
    if config.overwrite:
        for result in output.glob("models/*/point.json"):
            result.unlink()
    return output


def measured(config, strategy, output, point):
    """Returns the results of a model, which is trained if necessary."""
    folder = output / "models" / point.folder
    result = folder / "point.json"
    if result.exists():
        print(f"done before: {result}")
        return json.loads(result.read_text())
    data = load(config, point.fraction)
    config = dataclasses.replace(
        config,
        study=",".join(FIRST),  # a model's run is the same in all studies
        image_size=int(config.image_size * point.size),
        steps=point.steps,
        batch_size=config.whole_batch(config.batch_size, data.num_train),
        evaluate_every=min(config.evaluate_every, point.steps),
        learning_rate=learning_rate(config, point),
    )
    if not (folder / "config.json").exists() or config.overwrite:
        train(config, data, strategy, folder, output, point)
    summary = json.loads((folder / "config.json").read_text())
    model = keras_vit.models.load_keras_file(folder / "model.keras")
    images, labels = test_images(config, data)
    row = {
        **dataclasses.asdict(point),
        "folder": point.folder,
        "train_images": data.num_train,
        "learning_rate": config.learning_rate,
        "parameters": model.count_params(),
        "petaflops": 1e3
        * cost_of(config, point, data).training(
            config.batch_size * point.steps
        )["exaflops"],
        "accuracy": score(model, images, labels),
        # The same images for all models, whatever fraction they trained on
        "few_shot": few_shot(config, load(config, 1.0), model),
        "seconds": summary["seconds"],
    }
    run_folder.save_json(row, result)
    return row


def learning_rate(config, point):
    default = 0.003 if point.family == "ViT" else 0.001
    return point.rate or config.learning_rate or default


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


def train(config, data, strategy, folder, output, point):
    """Trains a model and writes the results to its folder."""
    with training.Run(config, data, strategy, folder, point.folder) as run:
        # 1. Data.
        train_batches = run.train_batches()
        test = run.evaluation_batches()

        # 2. Model.
        model = build_model(config, data, output, point)

        # 3. Optimizer, loss and metrics.
        schedule = keras_vit.schedules.warmup_cosine(
            config.learning_rate, config.steps, 0.1
        )
        options = {"global_clipnorm": 1.0, **config.optimizer_options()}
        if point.optimizer == "sgd":
            optimizer = PublishedSGD(schedule, momentum=0.9, **options)
        else:
            optimizer = PublishedAdamW(schedule, config.weight_decay, **options)
        model.compile(
            optimizer=optimizer,
            loss=keras_vit.losses.get_loss("softmax", config.one_hot),
            weighted_metrics=["accuracy"],
            jit_compile=training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        model.fit(**run.resume(model, schedule, train_batches, test))
        run.save(model)


def build_model(config, data, output, point):
    inputs = {
        "input_shape": (config.image_size, config.image_size, data.channels),
        "classes": len(data.class_names),
    }
    if point.pretrained is not None:
        weights = str(output / "models" / point.pretrained / "model.keras")
        return training.build_model(
            None, weights, None, config.seed, keep_head=True, **inputs
        )
    name, arguments = arguments_of(point, config.image_size)
    model = getattr(keras_vit, name)(**inputs, **arguments)
    spread_positions(model, config.seed)
    return model


def test_images(config, data):
    """Returns arrays of the test images and of their labels."""
    batches = data.test(
        **{**config.batches(), "one_hot": False}, batch_size=config.batch_size
    )
    parts = [map(keras.ops.convert_to_numpy, batch[:2]) for batch in batches]
    images, labels = map(np.concatenate, zip(*parts, strict=True))
    return images, labels


def score(model, images, labels):
    outputs = model.predict(images, batch_size=128, verbose=0)
    return float(np.mean(outputs.argmax(-1) == labels))


def few_shot(config, data, model):
    """Returns the few-shot accuracy of a model's features."""
    features = evaluation.feature_model(model)
    options = {**config.batches(), "one_hot": False}
    options["batch_size"] = config.batch_size
    x, y = evaluation.predict_dataset(
        features, data.batches("train", **options), data.num_train
    )
    test_x, test_y = evaluation.predict_dataset(
        features, data.test(**options), data.num_test
    )
    (found,) = evaluation.few_shot(
        x,
        y,
        config.shots,
        10,
        test_features=test_x,
        test_labels=test_y,
        class_names=data.class_names,
    )
    return found["accuracy"]


# Reports: each returns a title, a table as a list of lists, and the picture.


def teraflops(row):
    return 1e3 * row["petaflops"]


def table_of(rows, **columns):
    """Returns a table with the scores of rows after `columns`, functions of a
    row by title."""
    columns |= {
        "accuracy": lambda row: f"{row['accuracy']:.4f}",
        "few-shot": lambda row: f"{row['few_shot']:.4f}",
    }
    head = [name.replace("_", " ") for name in columns]
    return [head, *([text(row) for text in columns.values()] for row in rows)]


def panels_of(config, rows, name, x):
    """Returns two panels, of both scores by `x`, with a line for each `name`;
    both are functions of a row."""
    titles = {
        "accuracy": "test accuracy",
        "few_shot": f"{config.shots}-shot accuracy",
    }
    panels = []
    for key, title in titles.items():
        lines = {}
        for row in rows:
            lines.setdefault(name(row), []).append((x(row), row[key]))
        panels.append((title, lines))
    return panels


def report_compute(config, data, output, rows):
    rows = sorted(rows, key=teraflops)
    table = table_of(
        rows,
        model=lambda row: row["model"],
        steps=lambda row: row["steps"],
        teraFLOPs=lambda row: f"{teraflops(row):.3g}",
    )
    panels = panels_of(
        config, rows, lambda row: row["model"].partition("-")[0], teraflops
    )
    label = "teraFLOPs of training"
    path = plot(output / "compute.png", panels, label, True, frontier=True)
    return "Computation (Figure 5)", table, path


def report_data(config, data, output, rows):
    def model(row):
        return row["model"]

    def images(row):
        return row["train_images"]

    table = table_of(rows, model=model, training_images=images)
    panels = panels_of(config, rows, model, images)
    path = plot(output / "data.png", panels, "training images", True)
    return "Data (Figures 3 and 4)", table, path


def report_shape(config, data, output, rows):
    base, *rows = rows
    kinds = [
        (kind, value) for kind, values in SHAPES.items() for value in values
    ]
    named = [{**base, "changed": "none", "value": "-"}]
    lines = {kind: [(teraflops(base), base["few_shot"])] for kind in SHAPES}
    for (kind, value), row in zip(kinds, rows, strict=True):
        named.append({**row, "changed": kind, "value": value})
        lines[kind].append((teraflops(row), row["few_shot"]))
    table = table_of(
        named,
        changed=lambda row: row["changed"],
        value=lambda row: row["value"],
        teraFLOPs=lambda row: f"{teraflops(row):.3g}",
    )
    panels = [(f"{config.shots}-shot accuracy of ViT-64x4, changed", lines)]
    path = plot(output / "shape.png", panels, "teraFLOPs of training", True)
    return "Shape (Figure 8)", table, path


def report_pooling(config, data, output, rows):
    names = {"token": "class token", "gap": "mean of the patches"}

    def pooling(row):
        return names[dict(row["changes"])["pooling"]]

    path = output / "pooling.png"
    table, path = _sweep(config, path, rows, pooling=pooling)
    return "Class token and mean (Figure 9)", table, path


def report_optimizer(config, data, output, rows):
    path = output / "optimizer.png"
    table, path = _sweep(
        config, path, rows, optimizer=lambda row: row["optimizer"]
    )
    return "Adam and SGD for a ResNet (Table 7)", table, path


def _sweep(config, path, rows, **column):
    (name,) = column.values()
    table = table_of(
        rows, **column, learning_rate=lambda row: f"{row['learning_rate']:g}"
    )
    panels = panels_of(config, rows, name, lambda row: row["learning_rate"])
    return table, plot(path, panels[:1], "peak learning rate", True)


def trained(output, row):
    path = output / "models" / row["folder"] / "model.keras"
    return keras_vit.models.load_keras_file(path)


def report_resolution(config, data, output, rows):
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
    path = output / "resolution.png"
    panels = [("test accuracy", lines)]
    return "Resolution (FixRes)", table, plot(path, panels, "test image, px")


def report_robustness(config, data, output, rows):
    images, labels = test_images(config, data)
    models = {row["model"]: trained(output, row) for row in rows}
    table, panels = [["test images", *models]], []

    def measure(title, changes):
        lines = {name: [] for name in models}
        for x, text, changed in changes:
            for name, model in models.items():
                lines[name].append((x, score(model, changed, labels)))
            found = [f"{line[-1][1]:.4f}" for line in lines.values()]
            table.append([text, *found])
        panels.append((f"test accuracy, {title}", lines))

    measure(
        "patches removed",
        (
            (
                fraction,
                f"{fraction:.1%} of the patches removed",
                remove_patches(images, fraction, 2 * GRID, config.seed),
            )
            for fraction in REMOVED
        ),
    )
    measure(
        "parts shuffled",
        (
            (
                grid**2,
                f"{grid} x {grid} parts shuffled",
                shuffle_patches(images, grid, config.seed),
            )
            for grid in SHUFFLES
        ),
    )
    label = "fraction removed / number of parts"
    path = plot(output / "robustness.png", panels, label)
    return "Occlusion and shuffling (Naseer et al.)", table, path


def remove_patches(images, fraction, grid, seed):
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


REPORTS = {
    "compute": report_compute,
    "data": report_data,
    "shape": report_shape,
    "pooling": report_pooling,
    "optimizer": report_optimizer,
    "resolution": report_resolution,
    "robustness": report_robustness,
}


def plot(path, panels, label, logarithmic=False, frontier=False):
    """Plots panels, pairs of a title and a dict of lines, next to each other;
    with `frontier`, a line is the best value so far."""
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
    return path


def write_report(output, results, data):
    """Writes report.md and results.json, and returns the tables as text."""
    sections = []
    for title, table, path in results.values():
        head, *rows = [" | ".join(map(str, row)) for row in table]
        ruler = "|".join(["---"] * len(table[0]))
        lines = [f"| {head} |", f"|{ruler}|", *(f"| {r} |" for r in rows)]
        sections.append((f"## {title}\n\n" + "\n".join(lines), path.name))
    text = "\n\n".join(section for section, _ in sections)
    report = f"# Studies on {data.name}\n\n" + "\n\n".join(
        f"{section}\n\n![{name}]({name})" for section, name in sections
    )
    (output / "report.md").write_text(report + "\n")
    run_folder.save_json(
        {name: table for name, (_, table, _) in results.items()},
        output / "results.json",
    )
    return text


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
