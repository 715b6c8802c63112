"""The reports of a run: its beginning, its results, `config.json`."""

import math
import pathlib
import shlex
import time
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.data.protocols import height_and_width
from keras_vit.distribution import bytes_per_device
from keras_vit.training.callbacks import Row, score_name
from keras_vit.utils.logging import logger
from keras_vit_programs.console import counted, wrap_lines
from keras_vit_programs.run_folder import (
    FILES,
    LOG,
    MORE_FILES,
    environment_info,
    program_info,
)

if TYPE_CHECKING:
    from keras_vit_programs.runs import Run


def describe_run(run: "Run", model: keras.Model, done: int) -> str:
    """Returns the summary, of several lines, that is logged before training
    from step `done` on."""
    strategy = f"strategy  {run.strategy.describe()}"
    if not run.strategy.is_main:
        return strategy
    if run.strategy.name == "model-parallel":
        split = keras.distribution.distribution()
        size, whole = (bytes_per_device(model, x) / 1e6 for x in (split, None))
        strategy += f", with {size:.1f} of {whole:.1f} MB of weights on each device"
    data, settings = run.data, run.settings
    height, width, channels = getattr(model, "encoder", model).input_shape[1:]
    if height is None or width is None:
        height, width = height_and_width(settings["image_size"])
    patches = ""
    if patch := settings.get("patch_size"):
        config = getattr(getattr(model, "encoder", model), "config", None)
        patch *= getattr(config, "stride", 1)  # of the ResNet of a hybrid
        patches = f", patches {patch} x {patch}"
    epochs = run.steps / math.ceil(data.num_train / run.batch_size)
    digits = 0 if epochs >= 10 else 1
    summary = f", {run.summary}" if run.summary else ""
    lines = [
        f"data      {data.name}: {data.num_train} training and "
        f"{counted(data.num_evaluation, f'{data.evaluation_split} image')}, "
        f"{len(data.class_names)} classes"
    ]
    if data.num_unverified:
        place = pathlib.Path(settings.get("dataset", data.name)).expanduser()
        lines.append(
            f"images    {data.num_unverified:,} files of {place.resolve()}, decoded "
            "during training; --skip-bad-images decodes them first"
        )
    lines.append(
        f"model     {model.name}: {model.count_params():,} parameters, images "
        f"{height} x {width} x {channels}{patches}"
    )
    if settings.get("weights"):
        model_name = f"{settings['model']}, " if settings.get("model") else ""
        lines.append(f"weights   {model_name}{settings['weights']}")
    elif settings.get("weights", "") is None and channels == 3:
        lines.append(
            "weights   none: trained from scratch. With released weights, the "
            "accuracy is usually higher: --model ViTB16 --weights imagenet21k, or, "
            "without a GPU, --model ViTS14 --weights dinov2 --train head"
        )
    lines += [
        f"training  {counted(run.steps, 'step')} of {counted(run.batch_size, 'image')} "
        f"({epochs:.{digits}f} epochs){summary}, on {keras.backend.backend()}"
        + (", in bfloat16" if settings.get("mixed_precision") else ""),
        strategy,
        f"output    {run.folder}",
    ]
    compiles = "; the first step also compiles the model"
    lines.append(
        f"rows      one after every {counted(run.evaluate_every, 'step')}"
        + (compiles if keras.backend.backend() != "torch" else "")
    )
    if done:
        lines.append(f"resuming  from step {done}")
    return wrap_lines("\n".join(lines))


def run_summary(run: "Run", model: keras.Model, row: Row) -> dict[str, Any]:
    """Returns the content of `config.json`, with the row of `metrics.csv` of
    the weights that are saved."""
    metric = score_name(row)
    return {
        **program_info(run.settings),
        "data": run.data.metadata(),
        "model": {"name": model.name, "weights": model.count_params()},
        metric: row[metric],
        "kept": {
            "weights": run.keep,
            "step": row["step"],
            "chosen_by": metric if run.keep == "best" else None,
        },
        "resumed_from": run.resumed_from,
        "seconds": round(time.perf_counter() - run.started, 1),  # of this process
        **environment_info(),
    }


def plot_title(run: "Run", summary: dict[str, Any]) -> str:
    """Returns the title of the plots of a run, for its `run_summary`."""
    name, score = summary["model"]["name"], score_name(summary)
    digits = ".2%" if score.partition("_")[2] == "accuracy" else ".4f"
    value = format(summary[score], digits)
    return f"{name} on {run.data.name}: {score.replace('_', ' ')} {value}"


def print_results(summary: dict[str, Any], folder: pathlib.Path) -> None:
    """Logs the score, the files in the output folder and how to use them, for
    the content of `config.json`."""
    config, data, kept = summary["config"], summary["data"], summary["kept"]
    score = score_name(summary)
    split, _, kind = score.partition("_")
    named = score.replace("_", " ")
    lines = [f"\n{named} {summary[score]:.4f} after {summary['seconds']:.0f} seconds"]
    if summary["resumed_from"]:
        lines[0] += f", from step {summary['resumed_from']} on"
    if kept["chosen_by"]:
        chosen = f"weights of step {kept['step']} of {config['steps']}, with the best "
        chosen += named
        if split == "test":
            chosen += ", which is optimistic: these images chose the weights"
        lines.append(chosen)
    paths = [folder / name for name in (*FILES, *MORE_FILES, LOG)]
    lines += [f"  {path}" for path in paths if path.exists()]
    if kind in ("accuracy", "mean_average_precision"):
        shown = shlex.quote(str(folder))
        lines += [
            "To predict, and to see why:",
            f"  keras-vit predict {shown} IMAGES",
            f"  keras-vit explain {shown} IMAGES",
        ]
    most = data["max_value"]
    if kind in ("accuracy", "mean_average_precision") and most == 255:
        lines += [
            "To use it in Python on files, as keras-vit predict does:",
            "  import keras_vit",
            f"  classifier = keras_vit.evaluation.load_classifier({str(folder)!r})",
            "  classifier.predict('photo.jpg')",
        ]
    height, width = height_and_width(config["image_size"])
    factor = "" if most == 255 else f" * {255 / most:g}"
    scale = f"keras_vit.preprocess_input(images{factor}, mode={config['mode']!r})"
    lines += [
        f"To use it in Python on arrays of {height} x {width} x "
        f"{data['channels']} with values from 0 to {most}:",
        "  import keras, keras_vit",
        f"  model = keras.models.load_model({str(folder / 'model.keras')!r})",
        f"  images = {scale}",
    ]
    if kind == "AP":
        lines.append(
            "  boxes = keras_vit.detection.decode(model.predict(images), "
            f"{height}, {width})"
        )
    elif kind not in (
        "loss",
        "knn_accuracy",
        "zero_shot_accuracy",
    ):  # of models that compute no logits
        lines.append("  logits = model.predict(images)")
    if kind == "accuracy" and config.get("loss") != "sigmoid":
        lines.append("  keras_vit.decode_predictions(logits, model=model)")
    for line in lines:
        logger.info(line)
