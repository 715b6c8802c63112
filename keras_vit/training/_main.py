"""A recipe's main function: what is there, then its job."""

import dataclasses
import pathlib

import keras

from keras_vit._logging import show
from keras_vit.training._find_data import find_data
from keras_vit.training._find_data import share_of
from keras_vit.training._flags import before_training
from keras_vit.training._flags import require
from keras_vit.training._job import train
from keras_vit.training._output import check_output
from keras_vit.training._results import print_results
from keras_vit.training._strategy import strategy


def main_of(plan):
    """Returns a recipe's `main(config)`.

    Args:
        plan: Function of the config and a `Data` that returns a `Job`.
    """

    def main(config):
        show()
        with before_training():
            chosen, data, output = begin(config)
            job = plan(config, data)
        facts = train(job, chosen, output)
        if chosen.first:
            print_results(facts, output)

    return main


def begin(config, holdout=None):
    """Returns the strategy, the data and the output folder of a config.

    Args:
        config: `TrainingFlags`.
        holdout: What to hold out where the config does not say.

    Raises:
        ValueError: if something is wrong with them; nothing is written yet.
        ImportError: if a package is missing.
    """
    chosen = strategy(config.strategy)
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
    if share_of(data.name, holdout) and not data.num_dev:
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
            test set. With None, likewise, except that it does not train on
            the images that a preset leaves out.
    """
    left_out = config.published_holdout() if holdout is None else holdout
    data = find_data(
        config.dataset, left_out, config.skip_bad_images, config.test_split
    )
    return data if holdout else dataclasses.replace(data, num_dev=0)
