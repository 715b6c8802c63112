"""Several trainings of one program: studies, and sweeps of learning rates."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras

from keras_vit import losses
from keras_vit.data.dataset import ImageDataset
from keras_vit.distribution.strategy import Strategy
from keras_vit.schedules import warmup_cosine
from keras_vit.training.callbacks import score_name, selection_score
from keras_vit.training.compiling import jit_compile
from keras_vit.training.state_files import Diverged, check_same_run
from keras_vit.utils.logging import logger
from keras_vit_programs import defaults
from keras_vit_programs.console import user_errors
from keras_vit_programs.curves import plot_sweep
from keras_vit_programs.flags import (
    Study,
    Sweep,
    Training,
    filled,
    parse_learning_rates,
)
from keras_vit_programs.run_folder import (
    DONE,
    SWEEP,
    check_output,
    program_info,
    save_json,
)
from keras_vit_programs.runs import fingerprint
from keras_vit_programs.setup import build_optimizer, open_run, set_up

FILES = ("sweep.json", "sweep.png")
C = TypeVar("C", bound=Sweep)


def sweep(
    train: Callable[..., dict[str, Any]],
    resolve_config: Callable[[C, ImageDataset], C],
    load: Callable[[C], ImageDataset],
    config: C,
    data: ImageDataset,
    strategy: Strategy,
    output: pathlib.Path,
) -> tuple[C, ImageDataset]:
    """Trains with every learning rate of a grid, and returns the best.

    Each learning rate trains without the validation images and is evaluated on
    them. A sweep that was interrupted resumes with the same command.

    Args:
        train: Function of a config, data, a strategy, an output folder and
            the keyword `keep`, which trains and returns the content of
            `config.json`.
        resolve_config: Function of a config and data that fills in all
            settings.
        load: Function of a config that returns the data.
        config: `flags.Sweep`.
        data: `ImageDataset` with a validation split.
        strategy: `keras_vit.distribution.Strategy`.
        output: Path of the output folder.

    Returns:
        The config with the best learning rate, and the data with all training
        images: what to train with now.
    """
    config = dataclasses.replace(config, output=str(output))
    with user_errors():
        configs = {
            rate: dataclasses.replace(
                resolve_config(dataclasses.replace(config, learning_rate=rate), data),
                sweep=None,
            )
            for rate in parse_learning_rates(config.sweep or "", config.dataset)
        }
        if config.overwrite and strategy.is_main:
            shutil.rmtree(output / SWEEP, ignore_errors=True)
            for name in (*FILES, DONE):
                (output / name).unlink(missing_ok=True)
        strategy.gather(0)  # waits until they are removed
        results = {
            rate: read_finished(one, _folder(output, rate), data)
            for rate, one in configs.items()
        }
        strategy.gather(0)
    for rate, one in configs.items():
        if results[rate] is None:
            if strategy.is_main:
                logger.info(f"\nsweep     learning rate {rate:g}")
            folder = _folder(output, rate)
            try:
                results[rate] = train(one, data, strategy, folder, keep=False)
            except Diverged as error:  # the learning rate is too high
                info = program_info(dataclasses.asdict(one))
                info["data"] = data.metadata()
                results[rate] = info | {"diverged": str(error)}
                if strategy.is_main:
                    logger.info(error)
                    save_json(results[rate], folder / DONE)
    best = _summarize(results, data, config, output, strategy)
    # These defaults depend on --sweep.
    own = {name: getattr(configs[best], name) for name in ("optimizer", "keep")}
    # The holdout is 0, so that a preset holds out no images either.
    config = dataclasses.replace(
        config, holdout=0.0, sweep=None, overwrite=False, learning_rate=best, **own
    )
    with user_errors():
        return config, load(config)


def _folder(output: pathlib.Path, rate: float) -> pathlib.Path:
    return output / SWEEP / f"lr-{rate:g}"


def read_finished(
    config: Training, folder: pathlib.Path, data: ImageDataset
) -> dict[str, Any] | None:
    """Returns the `config.json` of a training that is finished, or None; raises
    a `ValueError` if it is of other settings than those of `config`, or of other
    images."""
    path = folder / DONE
    if not path.exists():
        return None
    summary = json.loads(path.read_text())
    found = fingerprint(summary["config"], summary["data"])
    found["backend"] = summary["versions"]["backend"]
    expected = fingerprint(dataclasses.asdict(config), data.metadata())
    known = {k: found[k] for k in expected if k in found}
    check_same_run(path, known, expected)
    return summary


def _summarize(
    results: Mapping[float, Any],
    data: ImageDataset,
    config: Sweep,
    output: pathlib.Path,
    strategy: Strategy,
) -> float:
    """Logs and writes the scores; returns the best learning rate."""
    good = {r: x for r, x in results.items() if "diverged" not in x}
    if not good:
        raise Diverged(
            "Training diverged with every learning rate of the sweep. Give "
            f"lower ones. Received: --sweep {config.sweep}"
        )
    score = score_name(next(iter(good.values())))
    # The lowest learning rate wins if scores are equal.
    best = max(good, key=lambda rate: selection_score(good[rate]))
    if not strategy.is_main:
        return best
    label = score.replace("_", " ")
    name = label.removeprefix("validation ")
    found = {rate: x.get(score) for rate, x in results.items()}
    logger.info(f"\nlearning rate  {name} on {data.num_validation} validation images")
    for rate, value in found.items():
        text = "diverged" if value is None else f"{value:.4f}"
        if rate == best:
            equal = list(found.values()).count(value) > 1
            text += "  best" + ", the lowest of equals" * equal
        logger.info(f"{rate:<13g}  {text}")
    logger.info(f"\ntraining on all images with {best:g}")
    summary = {
        "rates": [
            {"learning_rate": rate, score: value} for rate, value in found.items()
        ],
        "best": best,
        "holdout": defaults.holdout(config),
        "num_validation": data.num_validation,
    }
    save_json(summary, output / "sweep.json")
    plot_sweep(found, output / "sweep.png", f"{data.name}: sweep", label)
    return best


def begin_study(config: Study) -> Strategy:
    """Returns the strategy of a study, and sets the dtype policy."""
    strategy = set_up(config)
    if strategy.process[1] > 1:
        raise ValueError("This recipe reads its images in one process.")
    return strategy


def open_study(config: Study, name: str, chosen: str) -> pathlib.Path:
    """Creates or reopens the folder of a study of several runs, by default
    `runs/{name}`; raises a `ValueError` if it is of other settings than those
    of `config`, of which `chosen`, the runs of the study, may differ."""
    output = pathlib.Path(config.output or f"runs/{name}").expanduser()
    settings = fingerprint(dataclasses.asdict(config))
    del settings[chosen]
    path = output / "flags.json"
    if path.exists() and not config.overwrite:
        check_same_run(path, json.loads(path.read_text()), settings)
    elif not path.exists():
        check_output(output, config.overwrite)
    output.mkdir(parents=True, exist_ok=True)
    save_json(settings, path)
    return output


def measure_once(
    path: pathlib.Path, measure: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any]:
    """Returns what `measure` returns for arguments, which is kept in a JSON
    file, so that a study which resumes does not repeat it."""
    if path.exists():
        logger.info(f"done before: {path}")
        return json.loads(path.read_text())
    row = measure(*arguments)
    save_json(row, path)
    return row


def train_classifier(
    config: Training,
    data: ImageDataset,
    strategy: Strategy,
    output: pathlib.Path,
    build_model: Callable[[], keras.Model],
    warmup: float,
    summary: str = "",
) -> dict[str, Any]:
    """Trains a model with a warm-up, a cosine and the optimizer of a config,
    unless it is trained already; returns the content of `config.json`."""
    with user_errors():
        done = None if config.overwrite else read_finished(config, output, data)
    if done is not None:
        return done
    with open_run(config, data, strategy, output, summary) as run:
        model = build_model()
        peak, steps = filled(config.learning_rate), filled(config.steps)
        schedule = warmup_cosine(peak, steps, warmup)
        model.compile(
            optimizer=build_optimizer(config, schedule),
            loss=losses.get_loss("softmax", config.one_hot),
            weighted_metrics=["accuracy"],
            jit_compile=jit_compile(strategy),
        )
        test = run.evaluation_batches()
        model.fit(**run.resume(model, schedule, run.train_batches(), test))
        return run.save(model)
