r"""A program for the tests: trains a tiny model on some of this machine's
logical devices, and writes losses and weights.

    LOGICAL_DEVICES=4 KERAS_BACKEND=tensorflow python -m \
        tests.distribution.small_run OUTPUT.npz RUN ...

A run is `strategy:devices:model_devices:optimizer`, or with "dino" or "mocov3"
as the last part; 0 stands for None. JAX's devices are made by
XLA_FLAGS=--xla_force_host_platform_device_count=4.
"""

import functools
import os
import sys

import keras
import numpy as np

import keras_vit
from keras_vit import pretraining
from tests.small import vit

STEPS, BATCH, CLASSES = 5, 16, 8


def optimizer(kind):
    rate = keras_vit.schedules.warmup_cosine(0.05, STEPS, warmup=0.4)
    if kind == "adamw":
        rate = keras_vit.schedules.warmup_cosine(0.003, STEPS, warmup=0.4)
        return keras_vit.optimizers.PublishedAdamW(
            rate,
            1 / 3,
            epsilon=1e-4,
            global_clipnorm=1.0,
            average_from=2,  # `fit` ends with the averages in the model
            decay_kernels_only=True,
        )
    accumulate = {"sgd-accumulate": 2}.get(kind)
    return keras_vit.optimizers.PublishedSGD(
        rate,
        0.9,
        global_clipnorm=1.0,
        gradient_accumulation_steps=accumulate,
        decay_kernels_only=True,
    )


class Train(keras.utils.PyDataset):
    """This process's shard of batches that are the same for all strategies."""

    def __init__(self, shard, num_shards, accumulate):
        super().__init__()
        self.shard, self.num_shards = shard, num_shards
        self.accumulate = accumulate

    def __len__(self):
        return 2 * STEPS * self.accumulate

    def __getitem__(self, index):
        step, part = divmod(index, self.accumulate)
        rng = np.random.default_rng(step)
        images = rng.normal(size=(BATCH, 8, 8, 3)).astype("float32")
        labels = rng.integers(0, CLASSES, BATCH)
        # The gradients of the devices differ in size, so that it matters
        # where they are clipped.
        sizes = np.linspace(0.1, 3, BATCH, dtype="float32")
        images *= sizes.reshape(BATCH, 1, 1, 1)
        length = BATCH // self.accumulate // self.num_shards
        start = (part * self.num_shards + self.shard) * length
        chosen = slice(start, start + length)
        return images[chosen], labels[chosen]


class Test(keras.utils.PyDataset):
    """11 images: a batch of 8 and, in one process, one of 3. Several processes
    get padded batches of equal size."""

    def __init__(self, shard, num_shards):
        super().__init__()
        self.shard, self.num_shards = shard, num_shards

    def __len__(self):
        return 2

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        images = rng.normal(size=(8, 8, 8, 3)).astype("float32")
        labels = rng.integers(0, CLASSES, 8)
        weights = np.ones(8, "float32")
        weights[8 - 5 * index :] = 0
        if index and self.num_shards == 1:
            return images[:3], labels[:3], weights[:3]
        length = 8 // self.num_shards
        rows = slice(self.shard * length, (self.shard + 1) * length)
        return images[rows], labels[rows], weights[rows]


@functools.cache  # TensorFlow numbers the reductions of each strategy from 100
def strategy(name, devices, model_devices):
    names = None
    if int(devices):
        names = [f"cpu:{i}" for i in range(int(devices))]
    chosen = keras_vit.distribution.get_strategy(
        name, devices=names, model_devices=int(model_devices) or None
    )
    print(chosen.describe(), flush=True)
    return chosen


def train(run):
    *which, kind = run.split(":")
    chosen = strategy(*which)
    if kind in SELF_DISTILLED:
        return pretrain(chosen, kind)
    accumulate = 2 if kind.endswith("accumulate") else 1
    keras.utils.set_random_seed(1)
    with chosen.scope():
        model = vit(num_heads=4, classes=CLASSES)
        head = model.get_layer("head").kernel
        head.assign(keras.random.normal(head.shape, seed=1))
        if kind == "sgd-distill":
            teacher = keras_vit.VisionTransformer(
                input_shape=(8, 8, 3),
                patch_size=8,
                hidden_size=24,
                num_layers=1,
                num_heads=4,
                include_top=False,
                pooling="token",
            )
            model = keras_vit.distillation.Distillation(
                model, teacher, "features", alpha=0.9
            )
        model.compile(
            optimizer(kind),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # The loss would differ: Keras divides it by the number of all
            # images, including those of weight 0.
            weighted_metrics=[
                "accuracy",
                keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
            ],
        )
        chosen.process_batch_size(BATCH)
        history = model.fit(
            chosen.distribute(Train(*chosen.process, accumulate)),
            epochs=STEPS,
            steps_per_epoch=accumulate,
            shuffle=False,
            verbose=0,
        ).history["loss"]
        tested = model.evaluate(chosen.distribute(Test(*chosen.process)), verbose=0)
        shards = [
            len({str(shard.index) for shard in v.value.addressable_shards})
            for v in model.variables
            if keras.backend.backend() == "jax"
        ]
        weights = np.concatenate(
            [keras.ops.convert_to_numpy(w).ravel() for w in model.weights]
        )
    return {
        "losses": np.array(history),
        "tested": np.array(tested[1:]),
        "weights": weights,
        "shards": np.array(shards),
    }


HEADS = {"output_dim": 6, "hidden_dim": 10}
SELF_DISTILLED = {
    "dino": lambda e: pretraining.DINO(e, bottleneck_dim=5, **HEADS),
    "mocov3": lambda e: pretraining.MoCoV3(e, **HEADS),
}


def pretrain(chosen, kind):
    """Trains without labels for two steps.

    `scale` is the largest change of any weight: some gradients, such as those
    of biases before a batch norm, are sums that cancel, so that their rounding
    errors are relative to the terms.
    """
    import tensorflow as tf

    crops = np.random.default_rng(0).normal(size=(16, 2, 8, 8, 3))
    pair = {"global": crops.astype("float32")}, np.zeros(16, "int32")
    batches = tf.data.Dataset.from_tensor_slices(pair)
    batches = batches.batch(8, drop_remainder=True)

    def weights():
        return np.concatenate(
            [
                keras.ops.convert_to_numpy(w).ravel()
                for w in model.weights
                if "int" not in str(w.dtype)
            ]
        )

    keras.utils.set_random_seed(0)
    with chosen.scope():
        model = SELF_DISTILLED[kind](vit(include_top=False))
        # Gradients of a head's first layers are large at first, and a large
        # step multiplies the differences of the losses after it.
        model.compile(keras.optimizers.SGD(1e-3), jit_compile=False)
        before = weights()
        history = model.fit(
            chosen.distribute(batches),
            steps_per_epoch=1,
            epochs=2,
            verbose=0,
            shuffle=False,
        ).history
        return {
            "losses": np.array(history["loss"]),
            "tested": keras.ops.convert_to_numpy(getattr(model, "center", np.zeros(1))),
            "weights": weights(),
            "scale": np.abs(weights() - before).max(),
        }


def main(output, *runs):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Replicas wait for each other, which needs a thread for each of them.
        tf.config.threading.set_inter_op_parallelism_threads(4)
        count = int(os.environ["LOGICAL_DEVICES"])
        if count > 1:
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * count,
            )
    found = {}
    for run in runs:
        results = train(run)
        found.update({f"{run}/{key}": v for key, v in results.items()})
    np.savez(output, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
