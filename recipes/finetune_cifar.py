"""Trains a Vision Transformer on a dataset of images, or fine-tunes one.

"An Image is Worth 16x16 Words", Section 4.1 and Table 4
(https://arxiv.org/abs/2010.11929).

  python recipes/finetune_cifar.py
      trains on handwritten digits from scratch, in minutes, without a download
  python recipes/finetune_cifar.py --weights runs/digits/model.npz \\
      --image-size 16 --output runs/digits-16
      fine-tunes that model at twice the image size
  python recipes/finetune_cifar.py --dataset photos --weights ViT-B_16.npz
      fine-tunes on your own images, photos/CLASS/* or photos/train/CLASS/*
  python recipes/finetune_cifar.py --preset vit_jax --dataset cifar100 \\
      --model ViTB16 --weights imagenet21k --accumulate 8 --sweep paper
      fine-tunes downloaded weights as in the paper, with the learning rate
      that is best on a validation split, in 8 micro-batches a step

docs/finetune.md explains more, and docs/reproduce.md the presets, which train
on the same fraction of the training images as their source and evaluate on the
test set. Without one, the settings are for small machines and datasets. With
--holdout 0, and at the end of --sweep, all training images are used.
An interrupted run resumes bit for bit with the same command. recipes/README.md
lists the files in the output folder. KERAS_BACKEND selects the backend.
"""

import dataclasses
import math
import os

# TensorFlow's start-up messages would hide the output of this program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# By default, PyTorch's threads spin while they wait. On a CPU that other
# programs use too, a step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit import training
from keras_vit_programs import (
    building,
    class_results,
    flags,
    presets,
    runs,
    setup,
    sizes,
    studies,
    teacher,
)

# For --weights without --preset, as measured in docs/transfer.md: AdamW's peak
# learning rate for batches of 32 images, by --train. It is proportional to the
# square root of the batch size.
LEARNING_RATES = {"all": 7e-4, "lora": 1e-3, "head": 3e-3}
LAYER_DECAY = 0.5  # with --train all
# With --train all and another layer decay, or none, as for a BiT: 7e-4 with a
# layer decay of 0.75 destroys the encoder of docs/transfer.md.
LOW_LEARNING_RATE = 3e-4


@dataclasses.dataclass(frozen=True)
class Config(flags.ModelFlags, flags.SweepFlags):
    preset: str | None = flags.preset_flag(presets.FINE_TUNING)
    keep_head: bool = flags.flag(
        "do not replace the classification head of --weights, to train further "
        "on the same classes, such as those of a finished run",
        False,
    )
    image_size: int | str | None = flags.flag(
        "images are resized to N x N, or to height x width, such as 64x48; "
        "default: that of the dataset, its median if images differ in size, in "
        "whole patches; with --weights at most their image size and at least "
        "4 x 4 patches, from scratch at most 64; with --model 224",
        metavar="N|HxW",
    )
    max_tokens: int | None = flags.flag(
        "resize images to at most N patches and keep their aspect",
        minimum=1,
    )
    steps: int | None = flags.flag(
        "training steps; default: 30 epochs, but from scratch at least 2400 "
        "(half of both for compact-hybrid on images above 40 pixels) and at "
        "most 300 epochs, and with --weights at least 100 and at most 500, or "
        "10000 for 20000 images or more, or 20000 for 500000 images or more",
        minimum=1,
    )
    learning_rate: float | None = flags.flag(
        "peak learning rate; default: that of --preset, else 0.003 from "
        "scratch (0.001 with a ResNet), and with --weights 0.03 for sgd and, "
        "for adamw, "
        + ", ".join(f"{x} ({name})" for name, x in LEARNING_RATES.items())
        + f" by --train, or {LOW_LEARNING_RATE} with another layer decay, "
        "times the square root of the batch size / 32",
        above=0,
    )
    warmup: float | None = flags.flag(
        "fraction of the steps in which the learning rate is warmed up, unless "
        "--warmup-steps is given; default: 0.1",
        minimum=0,
        below=1,
    )
    optimizer: str | None = flags.flag(
        "sgd (momentum 0.9, by default without weight decay) or adamw; "
        "default: that of --preset, sgd for --weights with --sweep paper, "
        "whose learning rates are for it, else adamw",
        choices=("sgd", "adamw"),
    )
    class_weights: str | None = flags.flag(
        "balanced: each class has the same part in the training loss, however "
        "many images it has; default: each image has the same",
        choices=("balanced",),
    )
    train: str = flags.flag(
        "trainable weights: all; head, only the new head; or lora, the head "
        "and low-rank updates of the query and value kernels",
        "all",
        choices=tuple(LEARNING_RATES),
    )
    lora_rank: int = flags.flag("rank of --train lora", 8, minimum=1)
    pooling: str | None = flags.flag(
        "gap: the head reads the mean of the patches, after a new layer norm, "
        "as in the fine-tuning of MAE; default: what the head of --weights "
        "reads",
        choices=("gap",),
    )
    layer_decay: float | None = flags.flag(
        "layer-wise learning rate decay: the learning rate of each layer is "
        "this times that of the layer above; default: that of --preset, "
        f"{LAYER_DECAY} for --weights of a Vision Transformer with adamw and "
        "--train all, else 1",
        above=0,
        maximum=1,
    )

    presets = presets.FINE_TUNING

    def __post_init__(self):
        super().__post_init__()
        published = self.published.settings.get("optimizer")
        if published and self.optimizer not in (None, published):
            raise ValueError(
                f"--preset {self.preset} has the learning rates of {published}"
                ": leave out --optimizer or --preset. Received: --optimizer "
                f"{self.optimizer}"
            )
        # The learning rates of the paper's sweep are SGD's. It stays when the
        # sweep has chosen one of them.
        own = "sgd" if self.sweep == "paper" and self.weights else "adamw"
        optimizer = self.optimizer or published or own
        object.__setattr__(self, "optimizer", optimizer)
        for name in ("preset", "keep_head", "pooling", "train"):
            value = getattr(self, name)
            if self.weights is None and value not in (None, False, "all"):
                raise ValueError(
                    f"--{name.replace('_', '-')} is for fine-tuning: give "
                    "--weights. To train from scratch as published, use "
                    "recipes/pretrain.py."
                )


def main(config):
    with flags.user_errors():
        strategy, data, output = setup.begin(config)
    if config.sweep:
        functions = train, resolve_config, setup.load_run_data
        config, data = studies.sweep(*functions, config, data, strategy, output)
    with flags.user_errors():
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        runs.print_results(results, output)


def train(config, data, strategy, output, keep=True):
    """Trains with the settings of `resolve_config`, and saves the results."""
    summary = "fine-tuning" if config.weights else "from scratch"
    with runs.Run(config, data, strategy, output, summary) as run:
        # 1. Data: a function of the step to resume from, which returns endless
        # batches of (images, labels), and the batches of an evaluation.
        train_batches = run.train_batches(**training_options(config, data))
        test = run.evaluation_batches()

        # 2. Model: the given weights, with a new head of zeros unless
        # --keep-head is given, or a new model; with --teacher, a model that
        # trains it.
        model = build_model(config, data)

        # 3. Optimizer, loss and metrics.
        schedule = learning_rate_schedule(config)
        classes = len(data.class_names)
        metric = keras_vit.metrics.get_metric(data.multi_label, classes)
        model.compile(
            optimizer=setup.build_optimizer(config, schedule),
            loss=keras_vit.losses.get_loss(
                config.loss, config.one_hot, config.label_smoothing
            ),
            # Weighted: images that only fill up a batch have the weight 0.
            weighted_metrics=[metric],
            jit_compile=training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: the model, metrics, plots and settings.
        return run.save(model, keep=keep, more=class_results.write_class_results)


def training_options(config, data):
    options = {}
    if config.class_weights:
        counts = data.class_counts()
        options["class_weights"] = keras_vit.data.balanced_class_weights(counts)
    return options


def build_model(config, data):
    model = building.build_model(
        config.model,
        config.weights,
        config.patch_size,
        config.seed,
        config.pooling == "gap",
        config.keep_head,
        input_shape=config.input_shape(data.channels),
        classes=len(data.class_names),
        **config.encoder_arguments(),
    )
    training.set_trainable(model, config.train, config.lora_rank)
    model = keras_vit.mixed_sizes(model) if config.max_tokens else model
    return teacher.distill(model, config, data)


def learning_rate_schedule(config):
    peak, steps = config.learning_rate, config.steps
    if config.preset == "bit-hyperrule":
        return keras_vit.schedules.BiTHyperRule(peak, steps)
    if config.warmup_steps is not None:
        return keras_vit.schedules.WarmupDecay(peak, steps, config.warmup_steps)
    return keras_vit.schedules.warmup_cosine(peak, steps, config.warmup)


def resolve_config(given, data):
    """Fills in all settings that are None, as published or by the images."""
    config, side = given, data.image_size or data.median_side
    if not config.weights and config.model in (None, "compact-vit"):
        model, image_size = sizes.choose_model_and_size(
            config.model, config.image_size, config.patch_size, side
        )
        config = dataclasses.replace(config, model=model, image_size=image_size)
    spec = sizes.resolve_model_spec(config.model, config.weights, config.patch_size)
    if config.keep_head:
        building.check_classes(config.weights, data)
    config = config.published.fill(config)
    if config.preset == "bit-hyperrule":
        small = data.image_size is not None and data.image_size < 96
        config = config.with_defaults(
            image_size=128 if small else 480,
            mixup=0.1 if data.num_train >= 20_000 else 0.0,
        )
    default_size = spec["image_size"]
    if config.weights:
        default_size = sizes.fine_tuning_size(spec, side)
    config = config.with_sizes(spec, default_size, data.image_size, 64)
    if config.max_tokens and spec["stride"] != 1:
        raise ValueError(
            "--max-tokens is for Vision Transformers, whose patches are cut from "
            "the image: leave it out, or give another --model, such as compact-vit."
        )
    # At least one image per micro-batch, and at most the whole dataset. The
    # published batch size, 512, is for several accelerators. A smaller one
    # gives more updates of the weights in the same time.
    batch_size = config.batch_size or max(64, config.accumulate)
    batch_size = config.whole_batch(batch_size, data.num_train)
    steps, evaluate_every = count_steps(config, batch_size, data)
    rate, decay = own_learning_rate(config, spec["stride"], batch_size)
    if config.learning_rate:
        rate = config.learning_rate
        if given.learning_rate is None:
            rate = config.scaled_rate(rate, batch_size)
    config = dataclasses.replace(
        config,
        batch_size=batch_size,
        learning_rate=rate,
        steps=steps,
        epochs=None,  # converted to steps
        evaluate_every=evaluate_every,
    )
    return config.with_defaults(
        weight_decay=0.05 if config.optimizer == "adamw" else None,
        mode=spec["mode"],
        layer_decay=decay,
        keep="best" if data.num_validation and not config.preset else "last",
    )


def own_learning_rate(config, stride, batch_size):
    """Returns this recipe's own learning rate and layer decay."""
    if config.weights is None:
        return 0.003 if stride == 1 else 0.001, None
    if config.optimizer == "sgd":
        return 0.03, None
    rate, decay = LEARNING_RATES[config.train], None
    if config.train == "all":
        decay = LAYER_DECAY if stride else None
        if not decay or config.layer_decay not in (None, decay):
            rate = LOW_LEARNING_RATE
    return rate * math.sqrt(batch_size / 32), decay


def count_steps(config, batch_size, data):
    """Returns the number of steps, and the steps between two evaluations."""
    epoch = math.ceil(data.num_train / batch_size)
    if config.epochs:
        return config.epochs * epoch, config.evaluate_every or epoch
    steps = config.steps
    if steps is None and config.weights:
        # For Pets, CIFAR and ImageNet these are also the steps of the paper's
        # Table 4, which has batches of 512 images.
        steps = keras_vit.schedules.BiTHyperRule.steps_for(data.num_train)
        if not config.preset:
            steps = min(steps, max(100, 30 * epoch))
    elif steps is None:
        steps = max(2400, 30 * epoch)
        # A step on images of 64 pixels takes four times as long as on 32.
        is_hybrid = config.model == "compact-hybrid"
        if is_hybrid and math.prod(config.input_shape(1)) > 40**2:
            steps //= 2
        steps = min(steps, 300 * epoch)  # which a few images learn by heart
    return steps, config.evaluate_every or max(1, steps // 10)


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
