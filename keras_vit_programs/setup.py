"""Setup of a training program: strategy, dataset and output folder."""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.sources import load_dataset
from keras_vit.data.splits import parse_holdout
from keras_vit.distribution import get_strategy
from keras_vit.distribution.strategy import Strategy
from keras_vit.optimizers import PublishedAdamW, PublishedSGD
from keras_vit.utils.downloads import cache_dir
from keras_vit.utils.logging import logger
from keras_vit.utils.optional import require
from keras_vit.utils.warnings import warn
from keras_vit_programs import defaults
from keras_vit_programs.console import user_errors
from keras_vit_programs.flags import Dataset, Training, filled
from keras_vit_programs.logs import show as show_log
from keras_vit_programs.run_folder import check_output
from keras_vit_programs.run_report import print_results
from keras_vit_programs.runs import Run

C = TypeVar("C", bound=Training)


def cache_compilations() -> None:
    """Makes JAX keep compiled programs in the folder of downloads, so that the same
    command starts sooner the next time. Folders that JAX's variables of the environment
    name come first."""
    if keras.config.backend() != "jax":
        return
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore
        options = {
            "compilation_cache_dir": str(cache_dir() / "jax"),
            "persistent_cache_min_compile_time_secs": 0,
            "persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in options.items():
            jax.config.update(f"jax_{name}", value)


def build_optimizer(
    config: Training, schedule: Callable[..., Any], **options: Any
) -> PublishedSGD | PublishedAdamW:
    """Returns the optimizer of a `flags.Training` whose `steps` are filled in:
    SGD with momentum 0.9, or AdamW; `options` replace arguments."""
    average_from = config.average_from
    if average_from is not None:
        average_from = math.floor(average_from * filled(config.steps))
    options = {
        "weight_decay": config.weight_decay,
        "layer_decay": config.layer_decay,
        "momentum_dtype": config.momentum_dtype,
        "global_clipnorm": config.clip or None,
        "decay_kernels_only": True,
        "gradient_accumulation_steps": (
            config.accumulate if config.accumulate > 1 else None
        ),
        "use_ema": config.average > 0,
        "ema_momentum": config.average or 0.99,
        "average_from": average_from,
        **options,
    }
    if config.optimizer == "sgd":
        return PublishedSGD(schedule, momentum=0.9, **options)
    return PublishedAdamW(schedule, **options)


def load_run_data(config: Dataset) -> ImageDataset:
    """Returns the dataset of a config. The fraction `holdout` of its training images,
    or that of "paper", is evaluated on instead.

    With 0, the model trains on all training images and is evaluated on the test
    set, or on the validation images of a CSV file. None is like 0, except that
    the model does not train on the images that a preset leaves out.
    """
    holdout = left_out = defaults.holdout(config)
    if left_out is None:
        name = config.dataset.partition(":")[0]
        left_out = config.published.left_out.get(name, 0.0)
    data = load_dataset(
        config.dataset, left_out, config.skip_bad_images, config.test_split
    )
    if left_out and not holdout:
        logger.info(
            f"--preset {config.preset} trains without the last {left_out:.0%} of the "
            "training images, as published; --holdout 0 trains on all"
        )
        return dataclasses.replace(data, num_validation=0)
    if parse_holdout(data.name, holdout) and not data.num_validation:
        raise ValueError(
            f"--holdout {holdout} of {data.num_train} images is less than one image. "
            "Give a larger share."
        )
    return data


def begin(
    config: Training, load: Callable[..., ImageDataset] = load_run_data
) -> tuple[Strategy, ImageDataset, pathlib.Path]:
    """Returns the strategy, the dataset and the output folder of a config.

    It also sets the dtype policy and shows the log. No files are written.

    Args:
        config: `flags.Training`.
        load: Function of a config that returns the dataset.

    Returns:
        The strategy, the dataset and the path of the output folder.

    Raises:
        ValueError: if the strategy, the dataset or the output folder cannot
            be used.
        ImportError: if a package is missing.
    """
    strategy = set_up(config)
    if strategy.name == "model-parallel" and strategy.gather(0) != [0]:
        raise ValueError(
            "Recipes split a model over the devices of one process only, since "
            "the first process writes it. Use --strategy data-parallel."
        )
    if strategy.name in ("mirrored", "tpu") and config.accumulate > 1:
        raise ValueError(
            f"--accumulate {config.accumulate} is not possible with --strategy "
            f"{strategy.name}, in which Keras does not accumulate gradients. Leave it "
            "out and give --remat to save memory, or use KERAS_BACKEND=jax."
        )
    if getattr(config, "sweep", None) and config.learning_rate is not None:
        raise ValueError(
            "--sweep finds the learning rate: leave out --learning-rate. Received: "
            f"--learning-rate {config.learning_rate:g}"
        )
    # `--show-settings` ends before the folder is used.
    is_free = config.overwrite or config.show_settings
    # Before the data is read: most datasets have the name of their folder.
    named = pathlib.Path(getattr(config, "dataset", "digits")).expanduser().resolve()
    check_output(config.output or pathlib.Path("runs") / named.name, is_free)
    data = load(config)
    if data.multi_label and getattr(config, "loss", None) != "sigmoid":
        raise ValueError(
            f"Images of {data.name!r} have several classes each: train with "
            "--loss sigmoid, a loss for each class. Recipes without this flag "
            "train on images of one class each."
        )
    output = config.output or pathlib.Path("runs") / data.name
    return strategy, data, check_output(output, is_free)


def open_run(
    config: Training,
    data: ImageDataset,
    strategy: Strategy,
    output: pathlib.Path,
    summary: str = "",
) -> Run:
    """Returns the `Run` of a config whose values are all filled in."""
    steps = filled(config.steps)
    if strategy.is_main and (first := config.average**steps) > 0.1:
        warn(
            f"--average {config.average} over {steps} steps is {first:.0%} the "
            "weights that training starts with: give a lower one."
        )
    return Run(
        output,
        data,
        strategy,
        steps=steps,
        batch_size=filled(config.batch_size),
        evaluate_every=filled(config.evaluate_every),
        checkpoint_every=config.checkpoint_every,
        accumulate=config.accumulate,
        seed=config.seed,
        keep=config.keep,
        patience=config.patience,
        overwrite=config.overwrite,
        tensorboard=config.tensorboard,
        reading=config.batches(),
        augmentation=config.augmentation(data.channels),
        settings=dataclasses.asdict(config),
        summary=summary,
    )


def launch(
    config: C,
    resolve_config: Callable[[C, ImageDataset], C],
    train: Callable[[C, ImageDataset, Strategy, pathlib.Path], dict[str, Any]],
    load: Callable[..., ImageDataset] = load_run_data,
) -> None:
    """Trains with a config whose missing values `resolve_config` fills in, and
    logs the results; see `begin`."""
    with user_errors():
        strategy, data, output = begin(config, load)
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        print_results(results, output)


def set_up(config: Training) -> Strategy:
    """Returns the strategy of a config, and sets the dtype policy."""
    show_log()
    strategy = get_strategy(config.strategy)
    if config.mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    require("matplotlib")
    if config.tensorboard:
        require("tensorboard")
        require("tensorflow")  # which writes the files, under every backend
    return strategy
