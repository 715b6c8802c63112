"""Files that a training run writes to its output folder."""

import pathlib
import shutil
from typing import Any

import keras

from keras_vit import converters
from keras_vit._logging import logger
from keras_vit._types import StrPath
from keras_vit.converters import write_keras
from keras_vit.data.protocols import height_and_width
from keras_vit.models import load_keras_file
from keras_vit.training.callbacks import score_name
from keras_vit.training.models import lossless_layout
from keras_vit.training.plots import plot_learning_curves
from keras_vit.training.plots import plot_predictions
from keras_vit.training.plots import sample_evenly
from keras_vit.training.run_folder import CHECKPOINTS
from keras_vit.training.run_folder import DONE
from keras_vit.training.run_folder import atomic_write
from keras_vit.training.run_folder import environment_info
from keras_vit.training.run_folder import program_info
from keras_vit.training.run_folder import save_json

FILES = (
    *("model.keras", "model.npz", "metrics.csv"),
    *("curves.png", "predictions.png", "config.json"),
)
# Some runs write these instead of others of `FILES`.
MORE_FILES = (
    *("encoder.keras", "encoder.npz", "model.weights.h5"),
    *("segmentation.png", "iou.csv"),
    *("detection.png", "coco.json"),
)

# The scores of models that do not compute logits.
_PRETRAINING = ("loss", "knn_accuracy")


def save_model(model: keras.Model, output: pathlib.Path) -> None:
    """Writes `model.keras`, and its weights as `model.npz`, or as
    `model.weights.h5` if Google's layouts cannot represent the model;
    `--weights` of the recipes takes both."""
    write_model(model, output / "model.keras")
    if any("lora" in variable.path for variable in model.variables):
        # Keras merges the low-rank updates into the kernels when it saves.
        model = load_keras_file(output / "model.keras")
    # Google's layouts do not store every option, such as another GELU.
    layout = lossless_layout(model)
    weights = output / ("model.npz" if layout else "model.weights.h5")
    converters.save(model, weights, layout, overwrite=True)


def write_model(model: keras.Model, path: StrPath) -> None:
    """Writes a model to a `.keras` file, without its optimizer.

    Such a file can be loaded after `import keras_vit` alone.

    Args:
        model: Functional Keras model.
        path: Path of the file.
    """
    with atomic_write(path) as temporary:
        alone = type(model)(model.input, model.output, name=model.name)
        write_keras(alone, temporary)


def run_summary(
    run: Any, model: keras.Model, row: dict[str, Any]
) -> dict[str, Any]:
    """Returns the content of `config.json`, with the row of `metrics.csv` of
    the weights that are saved."""
    metric = f"{run.data.evaluation_split}_{run.metric}"
    return {
        **program_info(run.config),
        "data": run.data.metadata(),
        "model": {
            "name": model.name,
            "weights": model.count_params(),
        },
        metric: row[metric],
        "kept": {
            "weights": run.config.keep,
            "step": row["step"],
            "chosen_by": metric if run.config.keep == "best" else None,
        },
        "seconds": run.seconds,
        **environment_info(),
    }


def describe_run(run: Any, model: keras.Model, done: int) -> str:
    """Returns the summary, of several lines, that is logged before training
    from micro-batch `done` on."""
    config, data = run.config, run.data
    if not run.strategy.is_main:
        return f"strategy  {run.strategy.describe()}"
    rows, columns, channels = getattr(model, "encoder", model).input_shape[1:]
    if rows is None or columns is None:
        rows, columns = height_and_width(config.image_size)
    patch = config.patch_size
    patches = f", patches {patch} x {patch}" if patch else ""
    step = done // config.accumulate
    resuming = f"\nresuming  from step {step}" if done else ""
    epochs = round(config.steps * config.batch_size / data.num_train)
    unverified = ""
    if data.num_unverified:
        unverified = (
            f"images    only headers and trailers of {data.num_unverified:,} "
            "files were read, and a damaged image stops the run at its batch: "
            "--skip-bad-images decodes all of them first\n"
        )
    return (
        f"data      {data.name}: {data.num_train} training and "
        f"{data.num_evaluation} {data.evaluation_split} images, "
        f"{len(data.class_names)} classes\n"
        f"{unverified}"
        f"model     {model.name}: {model.count_params():,} parameters, images "
        f"{rows} x {columns} x {channels}{patches}\n"
        f"training  {config.steps} steps of {config.batch_size} images "
        f"({epochs} epochs), {run.summary}, on {keras.backend.backend()}\n"
        f"strategy  {run.strategy.describe()}\n"
        f"output    {run.output}{resuming}"
    )


def plot_title(run: Any, summary: dict[str, Any]) -> str:
    """Returns the title of the plots of a run, for its `run_summary`."""
    name, split = summary["model"]["name"], run.data.evaluation_split
    value = summary[f"{split}_{run.metric}"]
    text = f"{value:.2%}" if run.metric == "accuracy" else f"{value:.4f}"
    metric = run.metric.replace("_", " ")
    return f"{name} on {run.data.name}: {split} {metric} {text}"


def write_predictions(
    run: Any, model: keras.Model, summary: dict[str, Any]
) -> None:
    """Plots the predictions for some of the evaluated images."""
    config, total = run.config, run.data.num_evaluation
    batches = run.data.evaluation(
        **config.batches(), batch_size=min(config.batch_size, total)
    )
    images, labels = sample_evenly(
        batches, total, multi_label=run.data.multi_label
    )
    plot_predictions(
        model,
        images,
        labels,
        run.data.class_names,
        run.output / "predictions.png",
        f"{plot_title(run, summary)}, {len(images)} of {total} images",
        mode=config.mode,
    )


def write_last(
    run: Any, summary: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    """Writes the learning curves and `config.json`, and removes checkpoints."""
    plot_learning_curves(
        rows, run.output / "curves.png", plot_title(run, summary)
    )
    save_json(summary, run.output / DONE)
    # A finished run does not resume.
    shutil.rmtree(run.output / CHECKPOINTS, ignore_errors=True)


def print_results(summary: dict[str, Any], output: pathlib.Path) -> None:
    """Logs the score, the files in the output folder and how to use them.

    Args:
        summary: Dict. The content of `config.json`.
        output: Path of the output folder.
    """
    score = score_name(summary)
    named = score.replace("_", " ")
    logger.info(
        f"\n{named} {summary[score]:.4f} after {summary['seconds']:.0f} seconds"
    )
    kept = summary["kept"]
    if kept["chosen_by"]:
        logger.info(
            f"weights of step {kept['step']} of {summary['config']['steps']}, "
            f"with the best {named}"
            + ", which is optimistic: --holdout chooses by a validation split"
            * score.startswith("test_")
        )
    for name in (*FILES, *MORE_FILES):
        if (output / name).exists():
            logger.info(f"  {output / name}")
    config, data = summary["config"], summary["data"]
    height, width = height_and_width(config["image_size"])
    scale = f"keras_vit.preprocess_input(images, mode={config['mode']!r})"
    values = "0 to 255"
    # Earlier runs have not stored it.
    if (most := data.get("max_value", 255)) != 255:
        scale, values = f"images / {most / 2:g} - 1", f"0 to {most}"
    logger.info(
        f"To use it in Python on images of {height} x {width} x "
        f"{data['channels']} with values from {values}:\n"
        "  import keras, keras_vit\n"
        f"  model = keras.models.load_model({str(output / 'model.keras')!r})\n"
        f"  images = {scale}"
        + (
            "\n  logits = model.predict(images)"
            * (score.partition("_")[2] not in _PRETRAINING)
        )
    )
