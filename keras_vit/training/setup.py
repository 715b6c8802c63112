"""What a training program needs first: devices, data and an output folder."""

import dataclasses
import pathlib

import keras

from keras_vit._program import require
from keras_vit.data.loading import load_dataset
from keras_vit.data.splits import parse_holdout
from keras_vit.distribution import get_strategy
from keras_vit.training.run_folder import check_output


def jit_compile(strategy=None):
    """Returns the argument `jit_compile` of `compile` for this machine.

    Keras's "auto" uses XLA on accelerators, but not for TensorFlow on CPUs,
    where it is quicker too. ViT-S/16 on two cores, best of 6 in turn, without
    and with XLA: inference of 8 images 430 and 407 ms, of one image 72 and 61
    ms, a training step of 8 images 1,409 and 1,298 ms
    (`python tools/benchmark.py models --backend tensorflow --batch 8 1`).

    Args:
        strategy: `keras_vit.distribution.Strategy`, or None for one device.
    """
    if keras.backend.backend() != "tensorflow":
        return "auto"
    import tensorflow as tf

    one_device = strategy is None or strategy.name == "none"
    on_cpu = not tf.config.list_physical_devices("GPU")
    return True if one_device and on_cpu else "auto"


def begin(config, holdout=None):
    """Returns the strategy, the data and the output folder of a config.

    Args:
        config: `TrainingFlags`.
        holdout: What to hold out where the config does not say.

    Raises:
        ValueError: if something is wrong with them; nothing is written yet.
        ImportError: if a package is missing.
    """
    chosen = get_strategy(config.strategy)
    if chosen.name == "model-parallel" and chosen.gather(0) != [0]:
        raise ValueError(
            "Recipes split a model over the devices of one host, as the first "
            "host alone writes it. Use --strategy data-parallel."
        )
    if config.mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    require("matplotlib")
    if config.tensorboard:
        require("tensorflow")
    if config.holdout is not None:
        holdout = config.holdout
    data = data_of(config, holdout)
    if data.multi_label:
        raise ValueError(
            "Recipes train on images of one class each, and images of "
            f"{data.name!r} have several. In Python, train on such data with "
            "`keras_vit.losses.SigmoidCrossentropy()`; see "
            "`keras_vit.data.from_csv`."
        )
    if parse_holdout(data.name, holdout) and not data.num_dev:
        raise ValueError(
            f"--holdout {holdout} of {data.num_train} images is not one image. "
            "Give a larger share."
        )
    output = config.output or pathlib.Path("runs") / data.name
    return chosen, data, check_output(output, config.overwrite)


def data_of(config, holdout):
    """Returns the data of a config.

    Args:
        config: `TrainingFlags`.
        holdout: The share of the training images to evaluate on, or "paper".
            With 0, the model trains on all of them and is evaluated on the
            test set, or on the validation images of a CSV file. With None,
            likewise, except that it does not train on the images that a preset
            leaves out.
    """
    left_out = config.published_holdout() if holdout is None else holdout
    data = load_dataset(
        config.dataset, left_out, config.skip_bad_images, config.test_split
    )
    if left_out and not holdout:
        return dataclasses.replace(data, num_dev=0)
    return data
