r"""A program for the tests: a recipe's job on some of this machine's logical
devices, once straight and once with a crash in it, for each strategy.

    LOGICAL_DEVICES=4 KERAS_BACKEND=tensorflow python -m \
        tests.distribution.small_resume FOLDER mirrored:0 ...

JAX's devices are made by XLA_FLAGS=--xla_force_host_platform_device_count=4.
"""

import dataclasses
import os
import pathlib
import sys

import keras

import keras_vit
from keras_vit import _logging
from keras_vit import training
from keras_vit.training import _job
from tests.training.test_checkpoints import Crash


def plan(config, data):
    rate = training.warmup_cosine(0.05, config.steps, warmup=0.3)

    def build():
        return keras_vit.VisionTransformer(
            input_shape=(8, 8, 1),
            patch_size=4,
            hidden_size=16,
            num_layers=1,
            num_heads=4,
            dropout=0.1,  # whose random state goes on too
            classes=10,
        )

    return training.Job(
        config=dataclasses.replace(config, image_size=8, mode="tf"),
        data=data,
        steps=config.steps,
        interval=4,
        build=build,
        optimizer=lambda: (training.SGD(rate, 0.9, global_clipnorm=1.0), rate),
        batches={"image_size": 8},
        augment={},
    )


def crashing(fit):
    def fit_a_little(*arguments, callbacks, **keywords):
        return fit(*arguments, callbacks=[*callbacks, Crash(6)], **keywords)

    return fit_a_little


def main(folder, *names):
    _logging.show()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()]
            * int(os.environ["LOGICAL_DEVICES"]),
        )
    for name in names:
        run(pathlib.Path(folder) / name, *name.split(":"))


def run(folder, name, model_devices):
    chosen = training.strategy(name, model_devices=int(model_devices) or None)
    config = training.TrainingFlags(steps=9, batch_size=16, checkpoint_every=1)
    job = plan(config, training.find_data("digits"))
    training.train(job, chosen, folder / "straight")
    fit = _job.fit
    _job.fit = crashing(fit)
    try:
        training.train(job, chosen, folder / "crashed")
    except KeyboardInterrupt:
        print("It crashed.")
    _job.fit = fit
    training.train(job, chosen, folder / "crashed")


if __name__ == "__main__":
    main(*sys.argv[1:])
