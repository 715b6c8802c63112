"""A training run: its output folder, its checkpoints and its results."""

import contextlib
import dataclasses
import pathlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import keras

from keras_vit import converters
from keras_vit.converters import write_keras
from keras_vit.data import find_data_error
from keras_vit.data.protocols import height_and_width
from keras_vit.distribution.sharding import to_tf_dataset
from keras_vit.distribution.strategy import Strategy
from keras_vit.models import copy_labels, load_keras_file, mixed_sizes, one_size
from keras_vit.training.callbacks import EvaluateAverages, score_name
from keras_vit.training.checkpoint import ResumableCheckpoint
from keras_vit.utils import checks
from keras_vit.utils.files import atomic_write
from keras_vit.utils.logging import log_file, logger
from keras_vit.utils.types import StrPath
from keras_vit.utils.warnings import warn
from keras_vit_programs.building import lossless_layout
from keras_vit_programs.console import UserError, fill
from keras_vit_programs.curves import (
    plot_learning_curves,
    plot_predictions,
    sample_evenly,
)
from keras_vit_programs.rows import (
    Progress,
    Recorder,
    draw_curves,
    is_over,
    stop_early,
    write_rows,
)
from keras_vit_programs.run_folder import (
    CHECKPOINTS,
    DONE,
    environment_info,
    exclusive_lock,
    prepare_output,
    program_info,
    save_json,
)

FILES = (
    *("model.keras", "model.npz", "metrics.csv"),
    *("curves.png", "predictions.png", "config.json"),
)
# Some runs write these instead of others of `FILES`.
MORE_FILES = (
    *("encoder.keras", "encoder.npz", "model.weights.h5"),
    *("per_class.csv", "confusion.png", "mistakes.png"),
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
        copy_labels(model, alone)
        write_keras(alone, temporary)


def run_summary(run: Any, model: keras.Model, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of `config.json`, with the row of `metrics.csv` of
    the weights that are saved."""
    metric = score_name(row)
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
        "seconds": round(time.perf_counter() - run.started, 1),
        **environment_info(),
    }


def describe_run(run: Any, model: keras.Model, done: int) -> str:
    """Returns the summary, of several lines, that is logged before training
    from step `done` on."""
    config, data = run.config, run.data
    if not run.strategy.is_main:
        return f"strategy  {run.strategy.describe()}"
    rows, columns, channels = getattr(model, "encoder", model).input_shape[1:]
    if rows is None or columns is None:
        rows, columns = height_and_width(config.image_size)
    patch = config.patch_size
    patches = f", patches {patch} x {patch}" if patch else ""
    resuming = f"\nresuming  from step {done}" if done else ""
    epochs = round(config.steps * config.batch_size / data.num_train)
    unverified = ""
    if data.num_unverified:
        unverified = (
            f"images    {data.num_unverified:,} files are not decoded yet, and "
            "a damaged one stops the run: --skip-bad-images decodes them "
            "first\n"
        )
    hint = ""
    if getattr(config, "weights", "") is None and channels == 3:
        hint = (
            "weights   none: trained from scratch. With released weights, the "
            "accuracy is usually higher: --model ViTB16 --weights imagenet21k\n"
        )
    return fill(
        f"data      {data.name}: {data.num_train} training and "
        f"{data.num_evaluation} {data.evaluation_split} images, "
        f"{len(data.class_names)} classes\n"
        f"{unverified}"
        f"model     {model.name}: {model.count_params():,} parameters, images "
        f"{rows} x {columns} x {channels}{patches}\n"
        f"{hint}"
        f"training  {config.steps} steps of {config.batch_size} images "
        f"({epochs} epochs), {run.summary}, on {keras.backend.backend()}\n"
        f"strategy  {run.strategy.describe()}\n"
        f"output    {run.output}{resuming}"
    )


def plot_title(run: Any, summary: dict[str, Any]) -> str:
    """Returns the title of the plots of a run, for its `run_summary`."""
    name, score = summary["model"]["name"], score_name(summary)
    digits = ".2%" if score.partition("_")[2] == "accuracy" else ".4f"
    value = format(summary[score], digits)
    return f"{name} on {run.data.name}: {score.replace('_', ' ')} {value}"


def write_predictions(run: Any, model: keras.Model, summary: dict[str, Any]) -> None:
    """Plots the predictions for some of the evaluated images."""
    config, total = run.config, run.data.num_evaluation
    if len(model.inputs) > 1:  # patches of images of several sizes
        return
    batches = run.data.evaluation(
        **config.batches(), batch_size=min(config.batch_size, total)
    )
    images, labels = sample_evenly(batches, total, multi_label=run.data.multi_label)
    plot_predictions(
        model,
        images,
        labels,
        run.data.class_names,
        run.output / "predictions.png",
        f"{plot_title(run, summary)}, {len(images)} of {total} images",
        mode=config.mode,
    )


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
            + ", which is optimistic: these images chose the weights"
            * score.startswith("test_")
        )
    for name in (*FILES, *MORE_FILES):
        if (output / name).exists():
            logger.info(f"  {output / name}")
    config, data = summary["config"], summary["data"]
    height, width = height_and_width(config["image_size"])
    most = data["max_value"]
    factor = "" if most == 255 else f" * {255 / most:g}"
    scale = f"keras_vit.preprocess_input(images{factor}, mode={config['mode']!r})"
    call = "logits = model.predict(images)"
    if score.endswith("_AP"):
        call = "boxes = keras_vit.detection.decode(model.predict(images), "
        call += f"{height}, {width})"
    if score.partition("_")[2] in ("accuracy", "mean_average_precision"):
        folder = shlex.quote(str(output))
        logger.info(
            "To predict, and to see why:\n"
            f"  keras-vit predict {folder} IMAGES\n"
            f"  keras-vit explain {folder} IMAGES"
        )
    has_softmax = score.partition("_")[2] == "accuracy"
    has_softmax &= summary["config"].get("loss") != "sigmoid"
    logger.info(
        f"To use it in Python on images of {height} x {width} x "
        f"{data['channels']} with values from 0 to {most}:\n"
        "  import keras, keras_vit\n"
        f"  model = keras.models.load_model({str(output / 'model.keras')!r})\n"
        f"  images = {scale}"
        + (f"\n  {call}" * (score.partition("_")[2] not in _PRETRAINING))
        + "\n  keras_vit.decode_predictions(logits, model=model)" * has_softmax
    )


# Settings that may differ when a run resumes.
_MAY_CHANGE = (
    *("output", "overwrite", "checkpoint_every", "tensorboard", "show_settings"),
    "skip_bad_images",  # which a run may need that met one
)
TENSORBOARD = "tensorboard"
LOG = "log.txt"
# Parts of the messages of TensorFlow and JAX about a lost process.
_LOST = ("unhealthy", "heartbeat", "UNAVAILABLE", "Connection", "Broken pipe")


class Run:
    """A training run with an output folder, which resumes where it stopped.

    Use it as a context manager around the code that builds, compiles and
    trains a model:

    ```python
    with training.Run(config, data, strategy, output) as run:
        model = ...
        model.compile(...)
        test = run.evaluation_batches()
        model.fit(**run.resume(model, schedule, run.train_batches(), test))
        run.save(model)
    ```

    The body runs in the scope of the strategy, after the random seed was set.
    The folder is locked, so that no other process trains there. A mistake of
    the user that is found before training, an image that cannot be read, a full
    disk and the loss of another process become a `UserError`; other errors keep
    their traceback. SIGTERM saves a checkpoint after the current step and
    raises `Preempted`. With several processes, all of them run the same code,
    and the first one writes.

    A run resumes only with the settings of `config` that it began with. What
    else changed, such as the loss in the code, is not noticed: begin a new run
    with `--overwrite`, or in another folder. Checkpoints hold no state of
    further callbacks.

    Args:
        config: `flags.Training` with every setting filled in, also `steps`,
            `evaluate_every` and `batch_size`.
        data: `keras_vit.data.ImageDataset`.
        strategy: `keras_vit.distribution.Strategy`.
        output: Path of the output folder, from `check_output`.
        summary: String. How the model is trained, in a few words.

    Attributes:
        callbacks: List of Keras callbacks. `resume` adds those of the run, of
            which the last writes `metrics.csv`, reports progress and saves
            checkpoints, after others that were appended before.
        checkpoints: `rows.Recorder`, to whose `sinks` and `watchers` functions
            of the run's evaluations and steps can be appended.
    """

    def __init__(
        self,
        config: Any,
        data: Any,
        strategy: Strategy,
        output: pathlib.Path,
        summary: str = "",
    ) -> None:
        self.config, self.data, self.strategy = config, data, strategy
        self.output, self.summary = output, summary
        self.callbacks = []
        self.checkpoints = Recorder(
            output / CHECKPOINTS,
            config.checkpoint_every or config.evaluate_every,
            fingerprint(config),
            config.batch_size,
            seed=config.seed,
            strategy=strategy,
            keep_best=config.keep == "best",
            steps=config.steps,
            split=data.evaluation_split,
        )
        self._training = self._saving = False

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._user_errors())
            stack.enter_context(exclusive_lock(self.output, self.strategy))
            self.strategy.process_batch_size(self.micro_batch_size)
            if self.strategy.is_main:
                warn_of_average(self.config)
            keras.utils.set_random_seed(self.config.seed)
            stack.enter_context(self.checkpoints.watching())
            self._scope = stack.enter_context(contextlib.ExitStack())
            self._scope.enter_context(self.strategy.scope())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    @property
    def micro_batch_size(self) -> int:
        """Images of a step that are computed together, of all processes."""
        return self.config.batch_size // self.config.accumulate

    def distribute(self, batches: Any) -> Any:
        """Returns batches of this process as `model.fit` takes them."""
        if self.strategy.name == "none":
            if keras.backend.backend() == "tensorflow":
                return to_tf_dataset(batches)
            return batches
        return self.strategy.distribute(batches)

    def train_batches(self, **options: Any) -> Callable[[int], Any]:
        """Returns a function of a step that returns the endless batches from
        there; `options` are further arguments of `data.train`."""
        config = self.config
        return lambda start: self.data.train(
            batch_size=config.batch_size,
            micro_batches=config.accumulate,
            seed=config.seed,
            start=start,
            shard=self.strategy.process,
            **config.batches(),
            **config.augmentation(self.data.channels),
            **options,
        )

    def evaluation_batches(self) -> Any:
        """Returns the batches to evaluate on, for `model.fit`. Images that only
        fill up a batch have the weight 0."""
        return self.data.evaluation(
            batch_size=self.micro_batch_size,
            shard=self.strategy.process,
            pad=True,
            **self.config.batches(),
        )

    def resume(
        self,
        model: keras.Model,
        schedule: Callable[[int], Any],
        train_batches: Callable[[int], Any],
        validation_data: Any,
    ) -> dict[str, Any]:
        """Restores the newest checkpoint, if there is one.

        Args:
            model: Compiled model.
            schedule: Function of the step that returns the learning rate.
            train_batches: Function of a step that returns the endless batches
                from there.
            validation_data: Batches to evaluate on, of this process.

        Returns:
            Dict. The arguments of `model.fit`, of which an epoch ends with an
            evaluation and a step is a micro-batch. If the checkpoint is of a
            step between two evaluations, the rest of that epoch is trained
            here.
        """
        config = self.config

        def batches(start: int) -> Any:
            return self.distribute(train_batches(start))

        validation_data = self.distribute(validation_data)
        # Wrong options raise before the folder is opened.
        checks.averages_fit_norms(model)
        train_batches(0)
        if hasattr(model, "teacher_digest"):
            digest = model.teacher_digest()
            self.checkpoints.fingerprint["teacher_digest"] = digest
        done = self._restore(model)
        logger.info(describe_run(self, one_size(_trained(model)), done))
        self.checkpoints.learning_rate = schedule
        self._add_callbacks()
        self._training = True
        rows, interval = self.checkpoints.rows, config.evaluate_every
        first = epochs = -(-config.steps // interval)
        if not is_over(rows, config.patience):
            first = self.checkpoints.finish_interval(
                model, batches, interval, validation_data, self.callbacks
            )
        return {
            "x": batches(self.checkpoints.step),
            "steps_per_epoch": interval * config.accumulate,
            "initial_epoch": epochs if is_over(rows, config.patience) else first,
            "epochs": epochs,
            "validation_data": validation_data,
            "callbacks": self.callbacks,
            "shuffle": False,  # the batches are shuffled already
            "verbose": 0,  # a callback prints a line for each evaluation
        }

    def _restore(self, model: keras.Model) -> int:
        """Opens the output folder; returns the step to resume from."""
        folder, strategy = self.output / CHECKPOINTS, self.strategy
        if self.config.overwrite and strategy.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        strategy.gather(0)  # waits until the folder is removed
        done = self.checkpoints.restore(model)
        if len(set(strategy.gather(done))) > 1:
            raise ValueError(
                "The processes find different checkpoints in "
                f"{str(self.output)!r}: --output must be a folder that they "
                "share."
            )
        # Files are removed last: an error above leaves the folder as it was.
        if strategy.is_main:
            prepare_output(self.output, (*FILES, *MORE_FILES))
            folder.mkdir(exist_ok=True)
            if not done:
                tensorboard = self.output / TENSORBOARD
                shutil.rmtree(tensorboard, ignore_errors=True)
                (self.output / LOG).unlink(missing_ok=True)
            self._stack.enter_context(log_file(self.output / LOG))
        return done

    def _add_callbacks(self) -> None:
        config, sinks = self.config, self.checkpoints.sinks
        if config.patience:
            sinks.append(stop_early(config.patience))
        if config.uses_averages:
            self.callbacks.append(EvaluateAverages())
        if self.strategy.is_main:
            path = self.output / "metrics.csv"
            write_rows(self.checkpoints.rows, path)
            sinks.insert(0, lambda recorder, _: write_rows(recorder.rows, path))
            progress = Progress(config.steps)
            self.checkpoints.watchers.append(progress.watch)
            curves = draw_curves(self.output / "curves.png", self.data.name)
            sinks += [progress, curves]
            if config.tensorboard:
                folder = self.output / TENSORBOARD
                tensorboard = keras.callbacks.TensorBoard(folder, write_graph=False)
                self.callbacks.append(tensorboard)
        self.callbacks.append(self.checkpoints)

    def save(
        self,
        model: keras.Model,
        write: Callable[..., Any] | None = None,
        keep: bool = True,
        more: Callable[..., Any] | None = None,
    ) -> dict[str, Any]:
        """Writes the results of the run, and removes its checkpoints.

        Args:
            model: The trained model.
            write: Function of the model and the output folder that writes
                the model. Without it, `model.keras`, weights for the next
                `--weights` and `predictions.png` are written.
            keep: Boolean. Whether to write the model at all.
            more: Function of the run and the model that writes further results
                of a classifier, such as `evaluation.write_class_results`.

        Returns:
            Dict. The content of `config.json`.
        """
        self._saving = True
        strategy, output = self.strategy, self.output
        row = self.checkpoints.rows[-1]
        if self.config.keep == "best":
            strategy.gather(0)  # waits until the first process has saved it
            row = self.checkpoints.restore_best(model)
        model = _trained(model)
        summary = run_summary(self, model, row)
        if strategy.is_main and keep:
            saved = one_size(model)
            saved.class_names = self.data.class_names
            saved.preprocess_mode = self.config.mode
            (write or save_model)(saved, output)
        # What follows needs no other process: one that waits in vain for the
        # first would not end.
        self._scope.close()
        if strategy.is_main:
            if keep and write is None:
                # One device needs no copy, which keras_vit could not load if
                # the model has layers of a program's own. With several, the
                # trained model takes only batches that they share.
                if strategy.num_devices > 1:
                    is_mixed = len(model.inputs) > 1
                    model = load_keras_file(output / "model.keras")
                    model = mixed_sizes(model) if is_mixed else model
                write_predictions(self, model, summary)
                if more:
                    more(self, model)
            plot_learning_curves(
                self.checkpoints.rows,
                output / "curves.png",
                plot_title(self, summary),
            )
            save_json(summary, output / DONE)
            # A finished run does not resume.
            shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)
        strategy.gather(0)  # no process ends before the first
        return summary

    @contextlib.contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if not self._training:
                expected = isinstance(error, (ValueError, OSError, ImportError))
                message = str(error) if expected else None
            elif self._saving and isinstance(error, OSError):
                message = (
                    "The results cannot be written to "
                    f"{str(self.output)!r}: {error}. {self.checkpoints.last}"
                )
            else:
                message = explain_error(error, self.strategy, self.checkpoints)
            if message is None:
                raise
            raise UserError(message) from error


def _trained(model: Any) -> keras.Model:
    """Returns the student of a `Distillation`, or any other model itself."""
    return getattr(model, "student", model)


def explain_error(
    error: Exception, strategy: Strategy, checkpoints: ResumableCheckpoint
) -> str | None:
    """Returns a message for an error in training that the user can correct, or
    None for any other error."""
    # Each backend wraps TensorFlow's error in one of its own.
    if found := find_data_error(error):
        return f"{found} This was after step {checkpoints.step}. {checkpoints.last}"
    count = strategy.process[1]
    if count > 1 and any(word in str(error) for word in _LOST):
        return (
            f"Another of the {count} processes is lost, or cannot be reached. "
            "Start all of them again: the same commands resume the run."
        )
    return None


def fingerprint(config: Any) -> dict[str, Any]:
    """Returns the settings that must be equal for a run to resume."""
    settings = dataclasses.asdict(config) | {"backend": keras.backend.backend()}
    return {k: v for k, v in settings.items() if k not in _MAY_CHANGE}


def warn_of_average(config: Any) -> None:
    """Warns if an average of the weights contains much of the first ones."""
    decay, steps = config.average, config.steps
    if decay**steps > 0.1:
        warn(
            f"--average {decay} over {steps} steps is {decay**steps:.0%} the "
            "weights that training starts with: give a lower one."
        )
