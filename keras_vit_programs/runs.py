"""A training run: its output folder, its checkpoints and its results."""

import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import keras

from keras_vit import converters
from keras_vit.converters import write_keras
from keras_vit.data import find_data_error
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import resizing_of
from keras_vit.data.token_budget import TokenBudget
from keras_vit.distribution.sharding import to_tf_dataset
from keras_vit.distribution.strategy import Strategy
from keras_vit.models import mixed_sizes, one_size
from keras_vit.models.keras_file import load_keras_file
from keras_vit.models.model import copy_attributes
from keras_vit.optimizers import inner_optimizer
from keras_vit.training.callbacks import EvaluateAverages
from keras_vit.training.checkpoint import ResumableCheckpoint
from keras_vit.utils import checks
from keras_vit.utils.files import atomic_write
from keras_vit.utils.logging import logger
from keras_vit.utils.types import Array, StrPath
from keras_vit_programs.building import lossless_format
from keras_vit_programs.console import UserError
from keras_vit_programs.curves import (
    plot_learning_curves,
    plot_predictions,
    sample_evenly,
)
from keras_vit_programs.logs import log_file
from keras_vit_programs.rows import (
    Progress,
    Recorder,
    TensorBoard,
    draw_curves,
    no_improvement,
    write_rows,
)
from keras_vit_programs.run_folder import (
    CHECKPOINTS,
    DONE,
    FILES,
    LOG,
    MORE_FILES,
    exclusive_lock,
    prepare_output,
    save_json,
)
from keras_vit_programs.run_report import describe_run, plot_title, run_summary


def save_model(model: keras.Model, output: pathlib.Path) -> None:
    """Writes `model.keras`, and its weights as `model.npz`, or as
    `model.weights.h5` if Google's formats cannot represent the model;
    `--weights` of the recipes takes both."""
    write_model(model, output / "model.keras")
    # Google's formats do not store every option, such as another GELU.
    format = lossless_format(model)
    weights = output / ("model.npz" if format else "model.weights.h5")
    converters.save(model, weights, format, overwrite=True)


def write_model(model: keras.Model, path: StrPath) -> None:
    """Writes a model to a `.keras` file, without its optimizer.

    Such a file can be loaded after `import keras_vit` alone.

    Args:
        model: Functional Keras model.
        path: Path of the file.
    """
    with atomic_write(path) as temporary:
        alone = type(model)(model.input, model.output, name=model.name)
        copy_attributes(model, alone)
        write_keras(alone, temporary)


def write_predictions(run: "Run", model: keras.Model, summary: dict[str, Any]) -> None:
    """Plots the predictions for some of the evaluated images."""
    total = run.data.num_evaluation
    if len(model.inputs) > 1:  # patches of images of several sizes
        return
    size = min(run.batch_size, total)
    batches = run.data.evaluation(**run.reading, batch_size=size)
    images, labels = sample_evenly(batches, total, multi_label=run.data.multi_label)
    logits = keras.ops.convert_to_numpy(model.predict(images, verbose=0))
    draw_predictions(run, logits, images, labels, summary)


def draw_predictions(
    run: "Run", logits: Array, images: Array, labels: Array, summary: dict[str, Any]
) -> None:
    """Plots images with their predicted and true labels as `predictions.png`."""
    title = plot_title(run, summary)
    plot_predictions(
        logits,
        images,
        labels,
        run.data.class_names,
        run.folder / "predictions.png",
        f"{title}, {len(images)} of {run.data.num_evaluation} images are shown",
        mode=run.reading["mode"],
    )


# Settings that may differ when a run resumes. Images that `skip_bad_images` leaves
# out change the number of images, which may not: the order depends on it.
_MAY_CHANGE = (
    *("output", "overwrite", "checkpoint_every", "tensorboard", "show_settings"),
    "no_compile_cache",
    "skip_bad_images",
)


def fingerprint(
    settings: dict[str, Any], data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns what must be equal for a run to resume: its settings, and of the
    metadata of its dataset what decides on the order of images and on labels."""
    found = {k: v for k, v in settings.items() if k not in _MAY_CHANGE}
    if data:
        split = "validation" if data["num_validation"] else "test"
        found |= {
            "number of training images": data["num_train"],
            f"number of {split} images": data[f"num_{split}"],
            "list of class names": list(data["class_names"]),
        }
    return found | {"backend": keras.backend.backend()}


TENSORBOARD = "tensorboard"
# Parts of the messages of TensorFlow and JAX about a lost process.
_LOST = ("unhealthy", "heartbeat", "UNAVAILABLE", "Connection", "Broken pipe")


@dataclasses.dataclass(eq=False)
class Run:
    """A training run with an output folder, which resumes where it stopped.

    Use it as a context manager around the code that builds, compiles and
    trains a model; `setup.open_run` makes it of a recipe's settings:

    ```python
    reading = {"image_size": 8, "mode": "tf"}
    settings = {"learning_rate": 0.001, **reading}
    with Run(folder, data, strategy, 500, 64, 100, reading, settings) as run:
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
    their traceback. SIGTERM and the first Ctrl-C save a checkpoint after the
    current step and raise `Preempted`. With several processes, all of them run
    the same code, and the first one writes.

    `resume` describes what happens when the same command is run again. What is not
    in the settings, such as the content of a file, may change without being noticed:
    begin a new run with `overwrite`, or in another folder.

    Args:
        folder: Path of the output folder, from `check_output`.
        data: `keras_vit.data.ImageDataset`.
        strategy: `keras_vit.distribution.Strategy`.
        steps: Integer. Updates of the weights.
        batch_size: Integer. Images per step.
        evaluate_every: Integer. Steps between two evaluations.
        reading: Dict. The arguments that `data.train` and `data.evaluation`
            share, with `image_size` and `mode`.
        settings: Dict. What `config.json` records, and a run that resumes
            compares, with `image_size` and `mode` too.
        checkpoint_every: Integer. Steps between two checkpoints; None for
            `evaluate_every`.
        accumulate: Integer. Micro-batches per step, which the optimizer of the
            model accumulates: its `gradient_accumulation_steps`.
        seed: Integer. The random seed.
        keep: String. The weights to save: "last", or "best" for those of the
            best evaluation.
        patience: Integer. Evaluations without a better score after which
            training stops; None for no early stopping.
        overwrite: Boolean. Whether to begin a new run where one was interrupted.
        tensorboard: Boolean. Whether to write files for TensorBoard.
        augmentation: Dict. Further arguments of `data.train`.
        summary: String. How the model is trained, in a few words.

    Attributes:
        callbacks: List of Keras callbacks. `resume` adds those of the run, of
            which the last is `checkpoints`, after others that were appended.
        checkpoints: `rows.Recorder`, to whose `sinks` and `watchers` functions
            of the run's evaluations and steps can be appended.
    """

    folder: pathlib.Path
    data: ImageDataset
    strategy: Strategy
    steps: int
    batch_size: int
    evaluate_every: int
    reading: dict[str, Any]
    settings: dict[str, Any]
    checkpoint_every: int | None = None
    accumulate: int = 1
    seed: int = 0
    keep: str = "last"
    patience: int | None = None
    overwrite: bool = False
    tensorboard: bool = False
    augmentation: dict[str, Any] = dataclasses.field(default_factory=dict)
    summary: str = ""

    def __post_init__(self) -> None:
        for name in ("reading", "settings"):
            found = getattr(self, name)
            if not {"image_size", "mode"} <= found.keys():
                raise ValueError(
                    f"The `{name}` of a run need 'image_size' and 'mode', which its "
                    f"files record. Received: {found}"
                )
        self.callbacks: list[keras.callbacks.Callback] = []
        self.checkpoints = Recorder(
            self.folder / CHECKPOINTS,
            self.checkpoint_every or self.evaluate_every,
            fingerprint(self.settings, self.data.metadata()),
            self.batch_size,
            seed=self.seed,
            strategy=self.strategy,
            keep_best=self.keep == "best",
            steps=self.steps,
            split=self.data.evaluation_split,
        )
        if self.patience:
            self.checkpoints.stops.append(no_improvement(self.patience))
        self._training = self._saving = False
        self.resumed_from = 0

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._user_errors())
            stack.enter_context(exclusive_lock(self.folder, self.strategy))
            images, devices = self.micro_batch_size, self.strategy.num_replicas
            if self.accumulate > 1 and images % devices:
                raise ValueError(
                    f"A micro-batch of {images} images cannot be split evenly over "
                    f"{devices} devices: give a `batch_size` divided by `accumulate` "
                    f"that is a multiple of {devices}. Received: "
                    f"batch_size={self.batch_size}, accumulate={self.accumulate}"
                )
            self.strategy.process_batch_size(images)
            keras.utils.set_random_seed(self.seed)
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
        return self.batch_size // self.accumulate

    def distribute(self, batches: Any) -> Any:
        """Returns batches of this process as `model.fit` takes them."""
        if self.strategy.name == "none":
            if keras.backend.backend() == "tensorflow":
                return to_tf_dataset(batches)
            return batches
        return self.strategy.distribute(batches)

    def train_batches(
        self, data: ImageDataset | None = None, **options: Any
    ) -> Callable[[int], Any]:
        """Returns a function of a step that returns the endless batches from
        there, of the run's data or of their features; `options` are further
        arguments of `data.train`."""
        source = data or self.data
        return lambda start: source.train(
            batch_size=self.batch_size,
            micro_batches=self.accumulate,
            seed=self.seed,
            start=start,
            shard=self.strategy.process,
            **(self.reading | self.augmentation | options),
        )

    def evaluation_batches(self, data: ImageDataset | None = None) -> Any:
        """Returns the batches to evaluate on, for `model.fit`, of the run's data or
        of their features. Images that only fill up a batch have the weight 0."""
        return (data or self.data).evaluation(
            batch_size=self.micro_batch_size,
            shard=self.strategy.process,
            pad=True,
            **self.reading,
        )

    def resume(
        self,
        model: keras.Model,
        schedule: Callable[[int], Any],
        train_batches: Callable[[int], Any],
        validation_data: Any,
        saved: keras.Model | None = None,
    ) -> dict[str, Any]:
        """Restores the newest checkpoint, if there is one, in this order:

        1. Wrong options raise an error before the folder is changed.
        2. `ResumableCheckpoint.restore` takes the newest checkpoint that can be read,
           or, if none can, begins at step 0, and compares its `fingerprint` with that
           of this run: all settings but `_MAY_CHANGE`, the numbers of images to train
           and to evaluate on, the class names, the backend and the teacher's file. If a
           value differs, an error names it; a setting that is new and off does not
           count. Then it assigns weights, optimizer, random states and, within an
           interval, metrics, and takes the rows of all evaluations.
        3. `metrics.csv` is written again from these rows, and plots and results of the
           interrupted run are removed.
        4. Batches begin at the step of the checkpoint: batch k follows from the seed
           and k alone. If the step is between two evaluations, the steps up to the next
           one are trained here.
        5. If one of `checkpoints.stops` has ended the run, no step is trained.

        The result equals that of an uninterrupted run bit for bit. The folder of a run
        that has ended, which has a config.json, is refused before by `check_output`,
        unless `overwrite` begins a new one there.

        Args:
            model: Compiled model.
            schedule: Function of the step that returns the learning rate.
            train_batches: Function of a step that returns the endless batches
                from there.
            validation_data: Batches to evaluate on, of this process.
            saved: The model that `save` is given, if the compiled one is only its
                head.

        Returns:
            Dict. The arguments of `model.fit`; an epoch ends with an evaluation, and a
            step is a micro-batch.
        """

        def batches(start: int) -> Any:
            return self.distribute(train_batches(start))

        validation_data = self.distribute(validation_data)
        # Wrong options raise before the folder is opened.
        checks.averages_fit_norms(model)
        model.optimizer.build(model.trainable_variables)
        train_batches(0)
        if hasattr(model, "teacher_digest"):
            digest = model.teacher_digest()
            self.checkpoints.fingerprint["teacher_digest"] = digest
        done = self.resumed_from = self._restore(model)
        logger.info(describe_run(self, one_size(_trained(saved or model)), done))
        self.checkpoints.learning_rate = schedule
        self._add_callbacks(model)
        self._training = True
        interval = self.evaluate_every
        first = epochs = -(-self.steps // interval)
        if not self.checkpoints.reason_to_stop():
            first = self.checkpoints.finish_interval(
                model, batches, interval, validation_data, self.callbacks
            )
        return {
            "x": batches(self.checkpoints.step),
            "steps_per_epoch": interval * self.accumulate,
            "initial_epoch": epochs if self.checkpoints.reason_to_stop() else first,
            "epochs": epochs,
            "validation_data": validation_data,
            "callbacks": self.callbacks,
            "shuffle": False,  # the batches are shuffled already
            "verbose": 0,  # a callback prints a line for each evaluation
        }

    def _restore(self, model: keras.Model) -> int:
        """Opens the output folder; returns the step to resume from."""
        folder, strategy = self.folder / CHECKPOINTS, self.strategy
        if self.overwrite and strategy.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        strategy.gather(0)  # waits until the folder is removed
        done = self.checkpoints.restore(model)
        if len(set(strategy.gather(done))) > 1:
            raise ValueError(
                "The processes find different checkpoints in "
                f"{str(self.folder)!r}: --output must be a folder that they "
                "share."
            )
        # Files are removed last: an error above leaves the folder as it was.
        if strategy.is_main:
            prepare_output(self.folder, (*FILES, *MORE_FILES))
            folder.mkdir(exist_ok=True)
            if not done:
                tensorboard = self.folder / TENSORBOARD
                shutil.rmtree(tensorboard, ignore_errors=True)
                (self.folder / LOG).unlink(missing_ok=True)
            self._stack.enter_context(log_file(self.folder / LOG))
        return done

    def _add_callbacks(self, model: keras.Model) -> None:
        sinks = self.checkpoints.sinks
        if getattr(inner_optimizer(model), "use_ema", False):
            self.callbacks.append(EvaluateAverages())
        if self.strategy.is_main:
            path, rows = self.folder / "metrics.csv", self.checkpoints.rows
            if rows:
                write_rows(rows, path)
            progress = Progress(self.steps)
            self.checkpoints.watchers.append(progress.watch)
            curves = draw_curves(self.folder / "curves.png", self.data.name)
            sinks[:0] = [lambda *_: write_rows(rows, path), progress, curves]
            if self.tensorboard:
                folder = self.folder / TENSORBOARD
                self.callbacks.append(TensorBoard(folder, write_graph=False))
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
            more: Function of the run, the model and the result that writes
                `predictions.png` and further results of a classifier, such as
                `class_results.write_class_results`.

        Returns:
            Dict. The content of `config.json`.
        """
        self._saving = True
        strategy, folder = self.strategy, self.folder
        row = self.checkpoints.rows[-1]
        if self.keep == "best":
            strategy.gather(0)  # waits until the first process has saved it
            # The compiled model, which shares the weights of `model`.
            row = self.checkpoints.restore_best(self.checkpoints.model)
        model = _trained(model)
        summary = run_summary(self, model, row)
        if strategy.is_main and keep:
            saved = one_size(model)
            saved.class_names = self.data.class_names
            saved.preprocess_mode = self.reading["mode"]
            # This replaces the resizing of the weights that were trained further.
            size, saved.resizing = self.reading["image_size"], None
            if not isinstance(size, TokenBudget):
                saved.resizing = resizing_of(self.reading.get("protocol", ""), size)
            (write or save_model)(saved, folder)
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
                    model = load_keras_file(folder / "model.keras")
                    model = mixed_sizes(model) if is_mixed else model
                (more or write_predictions)(self, model, summary)
            plot_learning_curves(
                self.checkpoints.rows,
                folder / "curves.png",
                plot_title(self, summary),
            )
            save_json(summary, folder / DONE)
            # A finished run does not resume.
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
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
                    f"{str(self.folder)!r}: {error}. {self.checkpoints.last}"
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
        return (
            f"{found} This was after step {checkpoints.step}. {checkpoints.last} A "
            "run resumes with as many images as it began with: replace a damaged "
            "file by a readable image, such as a copy of another."
        )
    count = strategy.process[1]
    if count > 1 and any(word in str(error) for word in _LOST):
        return (
            f"Another of the {count} processes is lost, or cannot be reached. "
            "Start all of them again: the same commands resume the run."
        )
    return None
