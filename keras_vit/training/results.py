"""What a training leaves in its output folder."""

import contextlib
import dataclasses
import shlex
import shutil
import sys
import time

import keras

from keras_vit import converters
from keras_vit._logging import logger
from keras_vit._program import UserError
from keras_vit.converters import write_keras
from keras_vit.models import Model
from keras_vit.training.models import layout_of
from keras_vit.training.plots import save_curves
from keras_vit.training.plots import save_predictions
from keras_vit.training.plots import spread_out
from keras_vit.training.run_folder import CHECKPOINTS
from keras_vit.training.run_folder import DONE
from keras_vit.training.run_folder import circumstances
from keras_vit.training.run_folder import replacing
from keras_vit.training.run_folder import save_json
from keras_vit.training.run_folder import versions

FILES = (
    "model.keras",
    "model.npz",
    "metrics.csv",
    "curves.png",
    "predictions.png",
    "config.json",
)
# Some runs have these instead of others.
MORE_FILES = ("encoder.keras", "model.weights.h5")


def save_model(model, output):
    """Writes `model.keras`, and its weights for the next `--weights`."""
    with replacing(output / "model.keras") as temporary:
        # Without its optimizer, `import keras_vit` is enough to read it.
        alone = Model(model.input, model.output, name=model.name)
        write_keras(alone, temporary)
    # What Google's layouts do not tell is in Keras's file: another GELU, ...
    layout = layout_of(model)
    weights = output / ("model.npz" if layout else "model.weights.h5")
    converters.save(model, weights, layout, overwrite=True)


def facts_of(job, model, row, started):
    """Returns what `config.json` holds.

    Args:
        job: `Job`.
        model: Its model.
        row: Dict. The row of `metrics.csv` of the weights that are kept.
        started: Float. When the run began, by `time.perf_counter`.
    """
    metric = f"{job.part}_{job.measure}"
    return {
        "config": {**dataclasses.asdict(job.config), "steps": job.steps},
        "data": job.data.facts(),
        "model": {
            "name": model.name,
            "weights": model.count_params(),
        },
        metric: row[metric],
        "kept": {
            "weights": job.config.keep,
            "step": row["step"],
            "chosen_by": metric if job.config.keep == "best" else None,
        },
        "seconds": round(time.perf_counter() - started, 1),
        "command": shlex.join(sys.argv),
        "versions": versions(),
        **circumstances(),
    }


def headline(job, chosen, output, ready):
    """Returns what a run says before it begins."""
    config, data, model = job.config, job.data, ready.model
    rows, columns, channels = getattr(model, "encoder", model).input_shape[1:]
    patch = config.patch_size
    patches = f", patches {patch} x {patch}" if patch else ""
    if not chosen.first:
        return f"strategy  {chosen.describe()}"
    step = ready.done // config.accumulate
    going_on = f"\ngoing on  from step {step}" if ready.done else ""
    unread = ""
    if data.num_unread:
        interval = config.checkpoint_every or job.interval
        unread = (
            f"images    the ends of {data.num_unread:,} files are whole. One "
            "that is damaged between them would stop the run at its batch, "
            f"up to {interval:,} steps after the last checkpoint: "
            "--skip-bad-images reads all of them first\n"
        )
    return (
        f"data      {data.name}: {data.num_train} training and {job.total} "
        f"{job.part} images, {len(data.class_names)} classes\n"
        f"{unread}"
        f"model     {model.name}: {model.count_params():,} weights, images "
        f"{rows} x {columns} x {channels}{patches}\n"
        f"training  {job.steps} steps of {config.batch_size} images, "
        f"{job.summary}, on {keras.backend.backend()}\n"
        f"strategy  {chosen.describe()}\n"
        f"output    {output}{going_on}"
    )


def title_of(job, facts):
    """Returns what the pictures of a run are headed with."""
    name = facts["model"]["name"]
    value = facts[f"{job.part}_{job.measure}"]
    text = f"{value:.2%}" if job.measure == "accuracy" else f"{value:.4f}"
    return f"{name} on {job.data.name}: {job.part} {job.measure} {text}"


def save_predictions_of(job, model, facts, output):
    """Draws predictions for some of the images that were evaluated on."""
    batches = job.evaluation(batch_size=min(job.config.batch_size, job.total))
    images, labels = spread_out(batches, job.total)
    save_predictions(
        model,
        images,
        labels,
        job.data.class_names,
        output / "predictions.png",
        f"{title_of(job, facts)}, {len(images)} of {job.total} images",
        mode=job.config.mode,
    )


def write_last(job, chosen, output, facts, rows, keep):
    """Writes what is left when nothing has to be computed by all hosts."""
    if keep and chosen.num_devices > 1 and not job.save:
        # The trained one takes only what its devices can share, and asks
        # all hosts, which wait.
        model = keras.saving.load_model(output / "model.keras")
        save_predictions_of(job, model, facts, output)
    save_curves(rows, output / "curves.png", title_of(job, facts))
    save_json(facts, output / DONE)
    # Of no use to a run that is done.
    shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)


@contextlib.contextmanager
def writing(output, checkpoints):
    """Turns a full disk, in its body, into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The results cannot be written to {str(output)!r}: {error}. "
            f"{checkpoints.last}"
        ) from error


# What TensorFlow and JAX say of a host that is gone.
_LOST = ("unhealthy", "heartbeat", "UNAVAILABLE", "Connection", "Broken pipe")


@contextlib.contextmanager
def losing_hosts(chosen, checkpoints):
    """Turns the loss of another host, in its body, into a `UserError`.

    JAX may end the process before it gets here, and says why.
    """
    try:
        yield
    except Exception as error:
        hosts, said = chosen.host[1], str(error)
        if hosts == 1 or not any(word in said for word in _LOST):
            raise
        # Only the first host writes checkpoints, and knows of them.
        last = checkpoints.last if chosen.first else "The same commands go on."
        raise UserError(
            f"Another of the {hosts} hosts is lost, or cannot be reached. "
            f"Start all of them again. {last}"
        ) from error


def print_results(facts, output):
    """Says how well it went, where the files are, and how to use them."""
    score = next(
        f"{part}_{measure}"
        for measure in ("accuracy", "loss")
        for part in ("dev", "test")
        if f"{part}_{measure}" in facts
    )
    named = score.replace("_", " ")
    logger.info(
        f"\n{named} {facts[score]:.4f} after {facts['seconds']:.0f} seconds"
    )
    kept = facts["kept"]
    if kept["chosen_by"]:
        optimistic = (
            ", which is optimistic, as the step was chosen by it: --holdout "
            "chooses on held-out images"
            if score.startswith("test_")
            else ""
        )
        logger.info(
            f"weights of step {kept['step']} of {facts['config']['steps']}, "
            f"with the best {named}{optimistic}"
        )
    for name in (*FILES, *MORE_FILES):
        if (output / name).exists():
            logger.info(f"  {output / name}")
    config, data = facts["config"], facts["data"]
    size, channels = config["image_size"], data["channels"]
    scale = f"keras_vit.preprocess_input(images, mode={config['mode']!r})"
    values = "0 to 255"
    # Those of scikit-learn, which are not bytes; not a folder of that name.
    if data["name"] == "digits" and data["image_size"] == 8:
        scale, values = "images / 8 - 1", "0 to 16"
    logger.info(
        f"To use it in Python on images of {size} x {size} x {channels} with "
        f"values from {values}:\n"
        "  import keras, keras_vit\n"
        f"  model = keras.models.load_model({str(output / 'model.keras')!r})\n"
        f"  images = {scale}"
        + ("\n  logits = model.predict(images)" * score.endswith("accuracy"))
    )
