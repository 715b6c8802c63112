r"""A program for the tests: runs a recipe's job on some of this machine's
logical devices, once without and once with a crash.

    LOGICAL_DEVICES=4 KERAS_BACKEND=tensorflow python -m \
        tests.distribution.small_resume FOLDER mirrored:0

JAX's devices are made by XLA_FLAGS=--xla_force_host_platform_device_count=4.
"""

import os
import pathlib
import sys

import keras

import keras_vit
from keras_vit_programs import logs, setup
from tests.recipes import programs, runs
from tests.small import vit


def train(config, data, strategy, output):
    with setup.open_run(config, data, strategy, output) as run:

        def train_batches(start):
            return data.train(
                batch_size=config.batch_size,
                start=start,
                shard=strategy.process,
                **config.batches(),
            )

        test = data.evaluation(
            batch_size=config.batch_size,
            shard=strategy.process,
            **config.batches(),
        )
        model = vit(
            input_shape=(8, 8, 1),
            num_heads=4,
            dropout=0.1,  # its random state has to be restored too
            classes=10,
        )
        schedule = keras_vit.schedules.warmup_cosine(0.05, config.steps, warmup=0.3)
        model.compile(
            keras_vit.optimizers.PublishedSGD(schedule, 0.9, global_clipnorm=1.0),
            keras_vit.losses.get_loss("softmax", False),
            weighted_metrics=["accuracy"],
        )
        model.fit(**run.resume(model, schedule, train_batches, test))
        run.save(model)


def main(folder, which):
    logs.show()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()]
            * int(os.environ["LOGICAL_DEVICES"]),
        )
    name, model_devices = which.split(":")
    chosen = keras_vit.distribution.get_strategy(
        name, model_devices=int(model_devices) or None
    )
    config = programs.Settings(
        steps=9,
        batch_size=16,
        image_size=8,
        mode="tf",
        evaluate_every=4,
        checkpoint_every=1,
    )
    folder, data = pathlib.Path(folder), keras_vit.data.load_dataset("digits")
    with runs.few_files():
        train(config, data, chosen, folder / "straight")
        with programs.interrupted(6):
            train(config, data, chosen, folder / "crashed")
        print("It crashed.")
        train(config, data, chosen, folder / "crashed")


if __name__ == "__main__":
    main(*sys.argv[1:])
