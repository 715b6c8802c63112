"""Trains a Vision Transformer on a dataset of images, or fine-tunes one.

"An Image is Worth 16x16 Words", Section 4.1 and Table 4
(https://arxiv.org/abs/2010.11929).

  python recipes/finetune_cifar.py
      handwritten digits from scratch: no download, minutes on 2 CPU cores
  python recipes/finetune_cifar.py --weights runs/digits/model.npz \\
      --image-size 16 --output runs/digits-16
      fine-tunes the result at twice the size
  python recipes/finetune_cifar.py --dataset cifar10 --model ViTB16 \\
      --weights imagenet21k --image-size 384 --batch-size 512 \\
      --learning-rate 0.01 --protocol vit_jax
      the paper's fine-tuning, weights downloaded: for a GPU, or several
  python recipes/finetune_cifar.py --dataset photos --weights ViT-B_16.npz
      your own images, in photos/CLASS/* or photos/{train,test}/CLASS/*
  python recipes/finetune_cifar.py --dataset cifar10 --model BiT_R50x1 \\
      --weights BiT-M-R50x1.npz --batch-size 512 --protocol bit-hyperrule
      BiT's fine-tuning: its rule chooses sizes, steps, rate and mixup

A run that was interrupted goes on where it was, bit for bit, with the same
command.

The output folder gets model.keras, model.npz (for the next --weights),
metrics.csv, curves.png, predictions.png and config.json. KERAS_BACKEND
chooses jax, tensorflow or torch.

Measured 2026-11-21 on 2 CPU cores that ran tests too, digits with the defaults:
test accuracy 0.9861 in 92 s on JAX, 0.9833 in 105 s on TensorFlow, 0.9833 in
134 s on PyTorch. Expected of ViT-B/16 on CIFAR, and not run here: CIFAR-10
0.9859 and CIFAR-100 0.8917 after 500 steps (google-research/vision_transformer,
README).
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import shlex
import shutil
import sys
import time

# TensorFlow's greetings would hide what this program says.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# PyTorch's threads spin while they wait: on a CPU that others use too, a step
# then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras

import keras_vit
from keras_vit import training

FILES = (
    "model.keras",
    "model.npz",
    "metrics.csv",
    "curves.png",
    "predictions.png",
    "config.json",
)


@dataclasses.dataclass(frozen=True)
class Config:
    dataset: str = training.flag(
        "digits",
        "'digits' (in scikit-learn), a name in TFDS such as cifar10 or "
        "cifar100, or a folder: FOLDER/train/CLASS/* with "
        "FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of which 20% is the test set",
        "NAME|FOLDER",
    )
    model: str | None = training.flag(
        None,
        f"one of {', '.join(training.MODEL_NAMES)}; without it, what "
        "--weights holds, else compact-vit, of 4 layers of width 64",
        "NAME",
    )
    weights: str | None = training.flag(
        None,
        "what to fine-tune: a checkpoint of Google's, timm's, ..., its "
        "address, or with --model a name such as imagenet21k (see "
        "keras_vit.list_weights()); its head is replaced",
        "FILE|NAME",
    )
    image_size: int | None = training.flag(
        None,
        "images are resized to N x N; without it, the size --weights were "
        "made for, 224 with --model, else the dataset's own, or 64 where its "
        "images differ",
    )
    patch_size: int | None = training.flag(
        None,
        "without it, that of --weights or --model, else the one that gives "
        "about 8 x 8 patches",
    )
    # 64 digits: more updates in the same time than the paper's 512, which is
    # for 8 accelerators.
    batch_size: int = training.flag(64, "images a step")
    steps: int | None = training.flag(
        None,
        "training steps; without it and --epochs, 2400 or 30 epochs from "
        "scratch, whichever is more; with --weights 500, or 10000 from 20000 "
        "images on, as the paper for Pets and for CIFAR",
    )
    epochs: int | None = training.flag(
        None, "passes over the images, instead of --steps"
    )
    learning_rate: float | None = training.flag(
        None,
        "peak; without it, 0.003 from scratch and 0.03 with --weights",
        "X",
    )
    accumulate: int = training.flag(
        1, "parts in which a batch is computed, for less memory"
    )
    average: float = training.flag(
        0.0,
        "decay of an average of the weights, which is then evaluated and "
        "saved: 0.9999 in the paper's Table 2",
        "X",
    )
    # Decay as for the paper's ImageNet models is for runs of 300 epochs.
    weight_decay: float = training.flag(
        0.05, "of AdamW; there is none with --weights", "X"
    )
    # The paper: 10,000 of its longest and 500 of 10,000 fine-tuning steps.
    warmup: float = training.flag(
        0.1, "share of the steps with a rising rate", "X"
    )
    mode: str | None = training.flag(
        None,
        "pixels: tf for [-1, 1], torch for ImageNet's mean and deviation; "
        "without it, what weights by name were trained with, else tf",
        "NAME",
    )
    protocol: str = training.flag(
        "simple",
        f"how images are cut and resized: {', '.join(training.PROTOCOLS)}; "
        "simple moves whole images a little, vit_jax is the paper's code",
        "NAME",
    )
    augment: str = training.flag(
        "none",
        "RandAugment as in 'How to train your ViT?': "
        f"{', '.join(training.AUGREG)}",
        "LEVEL",
    )
    mixup: float | None = training.flag(
        None,
        "p of mixup's Beta(p, p), such as 0.2; none without it, and 0.1 from "
        "20000 images on with --protocol bit-hyperrule",
        "P",
    )
    no_flip: bool = training.flag(
        False, "do not mirror images (text, left and right hands)"
    )
    skip_bad_images: bool = training.flag(
        False,
        "read every image of a folder first, and leave out with a warning "
        "what cannot be read; otherwise that is an error",
    )
    strategy: str = training.flag(
        "auto",
        "how several devices share a batch: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none, or auto, which says "
        "what it takes",
        "NAME",
    )
    remat: bool = training.flag(
        False, "compute blocks twice instead of keeping them: less memory"
    )
    mixed_precision: bool = training.flag(
        False, "compute in bfloat16 (TPUs and newer GPUs)"
    )
    seed: int = training.flag(
        0, "of weights, order and augmentation, not of the split"
    )
    checkpoint_every: int | None = training.flag(
        None, "steps between two checkpoints; default: between evaluations"
    )
    output: str | None = training.flag(
        None, "default: runs/ and the dataset's name", "DIR"
    )
    overwrite: bool = training.flag(
        False, "replace an earlier run's files in --output"
    )

    def __post_init__(self):
        sizes = ("image_size", "patch_size", "batch_size", "steps", "epochs")
        counts = (*sizes, "accumulate", "checkpoint_every")
        training.check_numbers(self, *counts, minimum=1)
        training.check_numbers(self, "average", minimum=0, below=1)
        training.check_numbers(self, "learning_rate", above=0)
        training.check_numbers(self, "weight_decay", minimum=0)
        training.check_numbers(self, "warmup", minimum=0, below=1)
        training.check_numbers(self, "mixup", minimum=0)
        training.check_numbers(self, "seed", minimum=0, below=2**32)
        if self.steps and self.epochs:
            raise ValueError("Give --steps or --epochs, not both.")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} must divide --batch-size "
                f"{self.batch_size}."
            )


def main(config):
    started = time.perf_counter()
    scope = contextlib.ExitStack()
    with training.before_training():
        chosen = training.strategy(config.strategy)
        if chosen.host[1] > 1:
            raise ValueError("This recipe reads its images on one host.")
        if config.mixed_precision:
            keras.config.set_dtype_policy("mixed_bfloat16")
        training.require("matplotlib")
        data = training.find_data(
            config.dataset, skip_bad_images=config.skip_bad_images
        )
        output = training.check_output(
            config.output or pathlib.Path("runs") / data.name, config.overwrite
        )
        config = complete(config, data)
        parts = config.accumulate
        part_size = config.batch_size // parts
        chosen.host_batch_size(part_size)
        steps, interval = count_steps(config, data)
        keras.utils.set_random_seed(config.seed)
        scope.enter_context(chosen.scope())
        model = training.build_model(
            config.model,
            config.weights,
            config.patch_size,
            config.seed,
            input_shape=(config.image_size, config.image_size, data.channels),
            classes=len(data.class_names),
            remat=config.remat,
        )
        # Grey images are mostly signs, whose mirror images mean nothing.
        flip = data.channels == 3 and not config.no_flip
        options = dict(
            image_size=config.image_size,
            batch_size=part_size,
            protocol=config.protocol,
            mode=config.mode,
            # Mixed labels are no integers.
            one_hot=config.mixup > 0,
        )

        def train(start):
            batches = data.train(
                seed=config.seed,
                augment=config.augment,
                mixup=config.mixup,
                flip=flip,
                start=start,
                **options,
            )
            return chosen.distribute(batches)

        train(0)  # what is wrong with it is said now
        test = data.test(**options)
        optimizer, rate = optimizer_of(config, steps)
        loss = (
            keras.losses.CategoricalCrossentropy
            if config.mixup
            else keras.losses.SparseCategoricalCrossentropy
        )
        model.compile(
            optimizer=optimizer,
            loss=loss(from_logits=True),
            # Weighted: the padding of the last test batch has weight 0.
            weighted_metrics=["accuracy"],
        )
        folder = output / training.CHECKPOINTS
        if config.overwrite:
            shutil.rmtree(folder, ignore_errors=True)
        facts = dataclasses.asdict(config) | {"steps": steps}
        facts["backend"] = keras.backend.backend()
        # What may differ when a run goes on.
        for name in ("output", "overwrite", "checkpoint_every"):
            del facts[name]
        every = parts * (config.checkpoint_every or interval)
        checkpoints = training.Checkpoints(
            folder, every, facts, seed=config.seed
        )
        done = checkpoints.restore(model)
        # Only now: before, an error could still have left all as it was.
        training.open_output(output, FILES)
    print(
        f"data      {data.name}: {data.num_train} training and "
        f"{data.num_test} test images, {len(data.class_names)} classes\n"
        f"model     {model.name}: {model.count_params():,} weights, images "
        f"{config.image_size} x {config.image_size} x {data.channels}, "
        f"patches {config.patch_size} x {config.patch_size}\n"
        f"training  {steps} steps of {config.batch_size} images, "
        f"{'fine-tuning' if config.weights else 'from scratch'}, on "
        f"{keras.backend.backend()}\n"
        f"strategy  {chosen.describe()}\n"
        f"output    {output}"
        + (f"\ngoing on  from step {done // parts}" if done else ""),
        flush=True,
    )

    metrics = training.MetricsFile(
        output / "metrics.csv",
        config.batch_size,
        rate,
        checkpoints.rows,
        done,
        parts,
    )
    training.fit(
        model,
        train,
        chosen.distribute(test),
        steps=steps * parts,
        interval=interval * parts,
        callbacks=[metrics],
        checkpoints=checkpoints,
        done=done,
    )
    accuracy = metrics.rows[-1]["test_accuracy"]
    if config.average:
        scope.enter_context(training.averaged(model))
        results = model.evaluate(
            chosen.distribute(test), return_dict=True, verbose=0
        )
        accuracy = float(results["accuracy"])
        print(f"with averaged weights: {accuracy:.4f}")

    with training.replacing(output / "model.keras") as temporary:
        model.save(temporary)
    # What Google's layouts do not tell is in Keras's file: another GELU, ...
    layout = training.layout_of(model)
    weights = output / ("model.npz" if layout else "model.weights.h5")
    keras_vit.converters.save(model, weights, layout, overwrite=True)
    title = f"{model.name} on {data.name}: test accuracy {accuracy:.2%}"
    training.save_curves(metrics.rows, output / "curves.png", title)
    images, labels = training.spread_out(test, data.num_test)
    training.save_predictions(
        model,
        images,
        labels,
        data.class_names,
        output / "predictions.png",
        f"{title}, {len(images)} of {data.num_test} images",
    )
    scope.close()
    shutil.rmtree(folder)  # of no use to a run that is done
    seconds = round(time.perf_counter() - started, 1)
    facts = {
        "config": {**dataclasses.asdict(config), "steps": steps},
        "data": data.facts(),
        "model": {"name": model.name, "weights": model.count_params()},
        "test_accuracy": accuracy,
        "seconds": seconds,
        "command": shlex.join(sys.argv),
        "versions": training.versions(),
    }
    training.save_json(facts, output / "config.json")
    print(f"\ntest accuracy {accuracy:.4f} after {seconds:.0f} seconds")
    for name in (*FILES, "model.weights.h5"):
        if (output / name).exists():
            print(f"  {output / name}")
    print(
        "To use it in Python, for logits, on images after "
        f"keras_vit.preprocess_input(images, mode={config.mode!r}):\n"
        "  import keras, keras_vit\n"
        f"  model = keras.models.load_model({str(output / 'model.keras')!r})"
    )


def complete(config, data):
    """Returns the config with its sizes and its learning rate filled in."""
    if data.num_train < config.accumulate:
        raise ValueError(
            f"--accumulate {config.accumulate} is more than the "
            f"{data.num_train} training images."
        )
    facts = training.model_facts(
        config.model, config.weights, config.patch_size
    )
    bit = config.protocol == "bit-hyperrule"
    small = data.image_size is not None and data.image_size < 96
    sizes = (
        config.image_size,
        (128 if small else 480) if bit else facts["image_size"],
        data.image_size,
        64,
    )
    image_size = next(size for size in sizes if size)
    patch_size = facts["patch_size"]
    if facts["stride"]:
        if patch_size is None:
            patch_size = training.choose_patch_size(image_size)
        training.check_patch_size(image_size, patch_size * facts["stride"])
    mixup = config.mixup
    if mixup is None:
        mixup = 0.1 if bit and data.num_train >= 20_000 else 0.0
    rate = 0.03 if config.weights and not bit else 0.003
    return dataclasses.replace(
        config,
        image_size=image_size,
        patch_size=patch_size,
        # Few images are one batch, of whole parts.
        batch_size=min(
            config.batch_size,
            data.num_train // config.accumulate * config.accumulate,
        ),
        learning_rate=config.learning_rate or rate,
        mixup=mixup,
        mode=config.mode or facts["mode"],
    )


def optimizer_of(config, steps):
    """Returns the optimizer and its schedule, a function of the step."""
    common = {
        "gradient_accumulation_steps": (
            config.accumulate if config.accumulate > 1 else None
        ),
        "use_ema": config.average > 0,
        "ema_momentum": config.average or 0.99,
    }
    peak = config.learning_rate
    if config.protocol == "bit-hyperrule":
        rate = training.HyperRule(peak, steps)
        return training.SGD(rate, momentum=0.9, **common), rate
    rate = training.warmup_cosine(peak, steps, config.warmup)
    common["global_clipnorm"] = 1.0
    if config.weights:  # Table 4
        return training.SGD(rate, momentum=0.9, **common), rate
    decay = config.weight_decay * peak
    return training.AdamW(rate, decay, peak, **common), rate


def count_steps(config, data):
    """Returns the number of steps, and that between two evaluations."""
    steps_per_epoch = math.ceil(data.num_train / config.batch_size)
    if config.epochs:
        return config.epochs * steps_per_epoch, steps_per_epoch
    steps = config.steps
    if steps is None and config.protocol == "bit-hyperrule":
        limits = ((20_000, 500), (500_000, 10_000), (math.inf, 20_000))
        steps = next(n for limit, n in limits if data.num_train < limit)
    elif steps is None and config.weights:
        steps = 500 if data.num_train < 20_000 else 10_000
    elif steps is None:
        steps = max(2400, 30 * steps_per_epoch)
    return steps, max(1, steps // 10)


if __name__ == "__main__":
    training.run(main, Config, __doc__)
