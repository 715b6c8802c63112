"""Setup of a training program: strategy, dataset and output folder."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._program import require
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.loading import load_dataset
from keras_vit.data.splits import parse_holdout
from keras_vit.distribution import get_strategy
from keras_vit.distribution.strategy import Strategy
from keras_vit.training.run_folder import check_output


def jit_compile(strategy: Strategy | None = None) -> bool | str:
    """Returns the argument `jit_compile` of `model.compile` for this machine.

    Keras's "auto" uses XLA on accelerators, but not for TensorFlow on CPUs,
    where XLA is faster too: a training step of ViT-S/16 takes 1,298 instead of
    1,409 ms.

    Args:
        strategy: `keras_vit.distribution.Strategy`, or None for one device.

    Returns:
        True or "auto".
    """
    if keras.backend.backend() != "tensorflow":
        return "auto"
    import tensorflow as tf

    one_device = strategy is None or strategy.name == "none"
    on_cpu = not tf.config.list_physical_devices("GPU")
    return True if one_device and on_cpu else "auto"


def begin(
    config: Any,
    holdout: float | str | None = None,
    load: Callable[..., Any] | None = None,
) -> tuple[Strategy, Any, pathlib.Path]:
    """Returns the strategy, the dataset and the output folder of a config.

    It also sets the dtype policy. No files are written.

    Args:
        config: `TrainingFlags`.
        holdout: Float, string or None. The validation split, as for
            `load_run_data`, if `config.holdout` is None.
        load: Function of a config and of `holdout` that returns the dataset;
            None for `load_run_data`.

    Returns:
        Tuple of a `keras_vit.distribution.Strategy`, a
        `keras_vit.data.ImageDataset` and a path.

    Raises:
        ValueError: if the strategy, the dataset or the output folder cannot
            be used.
        ImportError: if a package is missing.
    """
    chosen = get_strategy(config.strategy)
    if chosen.name == "model-parallel" and chosen.gather(0) != [0]:
        raise ValueError(
            "Recipes split a model over the devices of one process only, since "
            "the first process writes it. Use --strategy data-parallel."
        )
    _set_up(config)
    if config.holdout is not None:
        holdout = config.holdout
    data = (load or load_run_data)(config, holdout)
    if data.multi_label and getattr(config, "loss", None) != "sigmoid":
        raise ValueError(
            f"Images of {data.name!r} have several classes each: train with "
            "--loss sigmoid, a loss for each class. Recipes without this flag "
            "train on images of one class each."
        )
    if parse_holdout(data.name, holdout) and not data.num_validation:
        raise ValueError(
            f"--holdout {holdout} of {data.num_train} images is not one image. "
            "Give a larger share."
        )
    output = config.output or pathlib.Path("runs") / data.name
    return chosen, data, check_output(output, config.overwrite)


def begin_study(config: Any) -> Strategy:
    """Returns the strategy of a study of several runs, and sets the dtype
    policy."""
    chosen = get_strategy(config.strategy)
    if chosen.process[1] > 1:
        raise ValueError("This recipe reads its images in one process.")
    _set_up(config)
    return chosen


def _set_up(config: Any) -> None:
    if config.mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    require("matplotlib")
    if config.tensorboard:
        require("tensorflow")


def load_run_data(config: Any, holdout: float | str | None) -> ImageDataset:
    """Returns the dataset of a config, of whose training images a fraction, or
    that of "paper", is evaluated on instead.

    With 0, the model trains on all training images and is evaluated on the test
    set, or on the validation images of a CSV file. None is like 0, except that
    the model does not train on the images that a preset leaves out.
    """
    left_out = config.published_holdout() if holdout is None else holdout
    data = load_dataset(
        config.dataset, left_out, config.skip_bad_images, config.test_split
    )
    if left_out and not holdout:
        return dataclasses.replace(data, num_validation=0)
    return data
