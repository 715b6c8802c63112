"""Trains a Vision Transformer on a dataset of images, or fine-tunes one.

"An Image is Worth 16x16 Words", Section 4.1 and Table 4
(https://arxiv.org/abs/2010.11929).

  python recipes/finetune_cifar.py
      trains on handwritten digits from scratch, in minutes on 2 CPU cores,
      without a download
  python recipes/finetune_cifar.py --weights runs/digits/model.npz \\
      --image-size 16 --output runs/digits-16
      fine-tunes that model at twice the image size
  python recipes/finetune_cifar.py --preset vit_jax --dataset cifar10 \\
      --model ViTB16 --weights imagenet21k --accumulate 8
      fine-tunes downloaded weights as in the paper, on one or more GPUs; each
      batch of 512 images of 384 pixels is split into 8 micro-batches
  python recipes/finetune_cifar.py --preset vit_jax --dataset cifar100 \\
      --model ViTB16 --weights imagenet21k --accumulate 8 --sweep paper
      the same, with the learning rate that is best on a validation split
  python recipes/finetune_cifar.py --dataset photos --weights ViT-B_16.npz
      fine-tunes on your own images, in photos/CLASS/* or
      photos/{train,test}/CLASS/*
  python recipes/finetune_cifar.py --image-size 24 --patch-size 6 \\
      --patch-sizes 4 6 8 12
      trains one model for several patch sizes (FlexiViT)
  python recipes/finetune_cifar.py --preset bit-hyperrule \\
      --dataset cifar10 --weights BiT-M-R50x1.npz
      fine-tunes a BiT: BiT-HyperRule chooses image size, number of steps,
      learning rate and mixup

Without --preset, the settings are this recipe's own, for small machines and
datasets; docs/transfer.md measures those for --weights. The values and sources
of the presets are in keras_vit/training/presets.py. Presets train on the same
fraction of the training images as their source, and evaluate on the test set.
With --holdout 0, and in the last training of --sweep, the model trains on all
training images.

An interrupted run resumes bit for bit with the same command. The output folder
contains model.keras, model.npz (weights to fine-tune again with --weights),
metrics.csv, curves.png, predictions.png and config.json. The environment
variable KERAS_BACKEND selects jax, tensorflow or torch.

Measured on 2026-11-21 on 2 CPU cores that also ran tests: digits with the
default settings, test accuracy 0.9861 in 92 s on JAX, 0.9833 in 105 s on
TensorFlow, 0.9833 in 134 s on PyTorch. Published, but not reproduced here, for
`--preset vit_jax --model ViTB16 --weights imagenet21k --steps 500
--warmup-steps 50`: 0.9859 on CIFAR-10 and 0.8917 on CIFAR-100
(google-research/vision_transformer, README).
"""

import dataclasses
import logging
import math
import os

# TensorFlow's start-up messages would hide the output of this program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# By default, PyTorch's threads spin while they wait. On a CPU that other
# programs use too, a step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit import training
from keras_vit.data import RandomPatchSizes
from keras_vit.data import balanced_class_weights
from keras_vit.data import height_and_width
from keras_vit.optimizers import PublishedAdamW
from keras_vit.optimizers import PublishedSGD
from keras_vit.schedules import BiTHyperRule
from keras_vit.schedules import WarmupDecay
from keras_vit.schedules import warmup_cosine
from keras_vit.training import command_line as cli
from keras_vit.training.models import check_classes
from keras_vit.training.models import check_patch_size

# The published batch size, 512, is for several accelerators. A smaller one
# gives more updates of the weights in the same time.
BATCH_SIZE = 64
# For --weights without --preset, as measured in docs/transfer.md: AdamW's peak
# learning rate for batches of 32 images, by --train. It is proportional to the
# square root of the batch size.
LEARNING_RATES = {"all": 7e-4, "lora": 1e-3, "head": 3e-3}
LAYER_DECAY = 0.5  # with --train all
# With --train all and another layer decay, or none, as for a BiT: 7e-4 with a
# layer decay of 0.75 destroys the encoder of docs/transfer.md.
LOW_LEARNING_RATE = 3e-4
PRESETS = tuple(filter(None, training.FINE_TUNING))


@dataclasses.dataclass(frozen=True)
class Config(cli.SupervisedFlags):
    model: str | None = cli.arg(
        None,
        f"one of {', '.join(training.MODEL_NAMES)}; default: the architecture "
        "of --weights, or without them compact-hybrid, a ResNet of 2 units "
        "and 2 layers of width 64, and for images below 24 pixels compact-vit, "
        "of 4 layers",
        "NAME",
    )
    weights: str | None = cli.arg(
        None,
        "weights to fine-tune: the path or URL of a checkpoint of Google, "
        "timm or another library, or, with --model, the name of released "
        "weights, such as imagenet21k (see keras_vit.list_weights()); the "
        "classification head is replaced, unless --keep-head is given",
        "FILE|NAME",
    )
    keep_head: bool = cli.arg(
        False,
        "keep the classification head of --weights, to train further on the "
        "same classes, such as those of a finished run",
    )
    image_size: int | str | None = cli.arg(
        None,
        "images are resized to N x N, or to height x width, such as 64x48; "
        "default: that of the dataset, its median if images differ in size, in "
        "whole patches; with --weights at most their image size and at least "
        "4 x 4 patches, from scratch at most 64; with --model 224",
        "N|HxW",
    )
    patch_sizes: tuple[int, ...] = cli.arg(
        (),
        "patch sizes to train for, such as 8 10 12 16: each step uses one of "
        "them at random, to which the kernel of the patch embedding and the "
        "position embeddings are resized (FlexiViT); the model itself, its "
        "evaluations and its files have --patch-size",
    )
    preset: str | None = cli.arg(
        None,
        "published settings for all flags that are not given; requires "
        f"--weights: {', '.join(PRESETS)}",
        "NAME",
        choices=PRESETS,
    )
    steps: int | None = cli.arg(
        None,
        "training steps; default without --epochs: from scratch, 2400 or 30 "
        "epochs, whichever is more, and half of that for compact-hybrid on "
        "images above 40 pixels; with --weights, 100 or 30 epochs, whichever "
        "is more, at most 500, or 10000 for 20000 images or more, or 20000 for "
        "500000 images or more",
        minimum=1,
    )
    learning_rate: float | None = cli.arg(
        None,
        "peak learning rate; default: that of --preset, else 0.003 from "
        "scratch (0.001 with a ResNet), and with --weights 0.03 for sgd and, "
        "for adamw, "
        + ", ".join(f"{x:g} ({name})" for name, x in LEARNING_RATES.items())
        + f" by --train, or {LOW_LEARNING_RATE:g} with another layer decay, "
        "times the square root of the batch size / 32",
        "X",
        above=0,
    )
    warmup: float | None = cli.arg(
        None,
        "fraction of the steps in which the learning rate is warmed up, unless "
        "--warmup-steps is given; default: 0.1",
        "X",
        minimum=0,
        below=1,
    )
    optimizer: str | None = cli.arg(
        None,
        "sgd (momentum 0.9, without weight decay) or adamw; default: that of "
        "--preset, sgd for --weights with --sweep paper, whose learning rates "
        "are for it, else adamw",
        "NAME",
        choices=("sgd", "adamw"),
    )
    class_weights: str | None = cli.arg(
        None,
        "balanced: each class has the same part in the training loss, however "
        "many images it has; default: each image has the same",
        "balanced",
        choices=("balanced",),
    )
    label_smoothing: float | None = cli.arg(
        None,
        "label smoothing of --loss softmax: the fraction of the probability "
        "that is distributed evenly over all classes; default: 0",
        "P",
        minimum=0,
        below=1,
    )
    train: str = cli.arg(
        "all",
        "trainable weights: all; head, only the new head; or lora, the head "
        "and low-rank updates of the query and value kernels",
        "all|head|lora",
        choices=tuple(LEARNING_RATES),
    )
    lora_rank: int = cli.arg(
        8, "rank of the updates of --train lora", minimum=1
    )
    pooling: str | None = cli.arg(
        None,
        "gap: the head reads the mean of the patches, after a new layer norm, "
        "as in the fine-tuning of MAE; default: what the head of --weights "
        "reads",
        "gap",
        choices=("gap",),
    )
    layer_decay: float | None = cli.arg(
        None,
        "layer-wise learning rate decay: the learning rate of each layer is "
        "this times that of the layer above, 1 for no decay; default: that of "
        f"--preset, {LAYER_DECAY} for --weights of a Vision Transformer with "
        "adamw and --train all, else no decay",
        "X",
        above=0,
        maximum=1,
    )
    sweep: str | None = cli.arg(
        None,
        "learning rates to compare, such as 0.003,0.01,0.03, or 'paper' for "
        "those of the paper's Table 4; each trains without the images of "
        "--holdout (default here: paper) and is evaluated on them; the best "
        "one then trains on all images",
        "X,Y,...",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.sweep is not None:
            training.parse_learning_rates(self.sweep)
            if self.holdout == 0:
                raise ValueError(
                    "--sweep measures learning rates on a validation split: "
                    "give --holdout a fraction above 0, or leave it out."
                )
        if self.sweep == "paper" and self.weights and not self.preset:
            # It stays when the sweep has chosen one of SGD's learning rates.
            optimizer = self.optimizer or "sgd"
            object.__setattr__(self, "optimizer", optimizer)
        needing = {
            "preset": self.preset,
            "keep-head": self.keep_head,
            "pooling": self.pooling,
            "train": self.train != "all",
        }
        given = [name for name, value in needing.items() if value]
        if given and self.weights is None:
            raise ValueError(
                f"--{given[0]} is for fine-tuning: give --weights. To train "
                "from scratch as published, use recipes/pretrain.py."
            )
        published = self.published.settings.get("optimizer")
        if published and self.optimizer not in (None, published):
            raise ValueError(
                f"--preset {self.preset} has the learning rates of {published}"
                ": leave out --optimizer or --preset. Received: --optimizer "
                f"{self.optimizer}"
            )

    @property
    def optimizer_name(self):
        published = self.published.settings.get("optimizer")
        return self.optimizer or published or "adamw"

    @property
    def one_hot(self):
        return super().one_hot or bool(self.label_smoothing)

    @property
    def published(self):
        return training.FINE_TUNING[self.preset]


def main(config):
    cli.show_log()
    with cli.user_errors():
        held_out = "paper" if config.sweep else None
        strategy, data, output = training.begin(config, held_out)
    if config.sweep:
        config, data = training.sweep(
            train, resolve_config, config, data, strategy, output
        )
    with cli.user_errors():
        config = resolve_config(config, data)
    if strategy.is_main and config.weights is None and data.channels == 3:
        logging.getLogger("keras_vit").info(
            "weights   none: trained from scratch. With released weights, the "
            "accuracy is usually higher: --model ViTB16 --weights imagenet21k"
        )
    results = train(config, data, strategy, output)
    if strategy.is_main:
        training.print_results(results, output)


def train(config, data, strategy, output, keep=True):
    """Trains with the settings of `resolve_config`, and saves the results."""
    summary = "fine-tuning" if config.weights else "from scratch"
    with training.Run(config, data, strategy, output, summary) as run:
        # 1. Data: a function of the step to resume from, which returns endless
        # batches of (images, labels), and the batches of an evaluation.
        weights, sizes = None, None
        if config.class_weights:
            weights = balanced_class_weights(data.class_counts())
        if config.patch_sizes:
            sizes = RandomPatchSizes(config.patch_sizes, config.patch_size)
        train_batches = run.train_batches(
            class_weights=weights, patch_sizes=sizes
        )
        test = run.evaluation_batches()

        # 2. Model: the given weights, with a new head of zeros unless
        # --keep-head is given, or a new model.
        model = build_model(config, data)

        # 3. Optimizer, loss and metrics.
        schedule = learning_rate_schedule(config)
        classes = len(data.class_names)
        metric = keras_vit.metrics.get_metric(data.multi_label, classes)
        model.compile(
            optimizer=build_optimizer(config, schedule),
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
        return run.save(model, keep=keep)


def build_model(config, data):
    height, width = height_and_width(config.image_size)
    inputs = {"input_shape": (height, width, data.channels)}
    if config.patch_sizes:
        # The grid of patches, and so the image, differs from step to step.
        grid = height // config.patch_size, width // config.patch_size
        inputs = {"input_shape": (None, None, data.channels), "grid_size": grid}
    model = training.build_model(
        config.model,
        config.weights,
        config.patch_size,
        config.seed,
        config.pooling == "gap",
        config.keep_head,
        **inputs,
        classes=len(data.class_names),
        **config.encoder_arguments(),
    )
    training.set_trainable(model, config.train, config.lora_rank)
    return model


def learning_rate_schedule(config):
    peak, steps = config.learning_rate, config.steps
    if config.preset == "bit-hyperrule":
        return BiTHyperRule(peak, steps)
    if config.warmup_steps is not None:
        return WarmupDecay(peak, steps, config.warmup_steps)
    return warmup_cosine(peak, steps, config.warmup)


def build_optimizer(config, schedule):
    options = {
        **config.optimizer_options(),
        "layer_decay": config.layer_decay,
        "global_clipnorm": config.clip or None,
        "momentum_dtype": config.momentum_dtype,
    }
    if config.optimizer_name == "sgd":
        return PublishedSGD(schedule, momentum=0.9, **options)
    return PublishedAdamW(schedule, config.weight_decay, **options)


def resolve_config(given, data):
    """Returns the config with values for all settings that are None: published
    ones, and those that depend on the model and the images."""
    config = choose_model(given, data)
    spec = training.resolve_model_spec(
        config.model, config.weights, config.patch_size
    )
    if config.patch_sizes and spec["stride"] != 1:
        raise ValueError(
            "--patch-sizes is for Vision Transformers, whose patches are cut "
            "from the image: leave it out, or give another --model, such as "
            "compact-vit."
        )
    if config.keep_head:
        check_classes(config.weights, data)
    config = config.published.fill(config)
    if config.preset == "bit-hyperrule":
        small = data.image_size is not None and data.image_size < 96
        config = config.with_defaults(
            image_size=128 if small else 480,
            mixup=0.1 if data.num_train >= 20_000 else 0.0,
        )
    default_size = spec["image_size"]
    if config.weights and not config.patch_sizes:
        side = data.image_size or data.median_side
        default_size = training.models.fine_tuning_size(spec, side)
    image_size, patch_size = training.resolve_sizes(
        (config.image_size, default_size, data.image_size, 64),
        spec["patch_size"],
        spec["stride"],
    )
    for size in config.patch_sizes:
        check_patch_size(image_size, size)
    # At least one image per micro-batch, and at most the whole dataset.
    batch_size = config.batch_size or max(BATCH_SIZE, config.accumulate)
    batch_size = config.whole_batch(batch_size, data.num_train)
    steps, evaluate_every = count_steps(config, batch_size, data)
    learning_rate = config.learning_rate
    if given.learning_rate is None and learning_rate:
        learning_rate = config.scaled_rate(learning_rate, batch_size)
    config = dataclasses.replace(
        config,
        image_size=image_size,
        patch_size=patch_size,
        batch_size=batch_size,
        learning_rate=learning_rate,
        steps=steps,
        epochs=None,  # converted to steps
        evaluate_every=evaluate_every,
    )
    return config.with_defaults(
        optimizer=config.optimizer_name,
        weight_decay=0.05 if config.optimizer_name == "adamw" else None,
        mode=spec["mode"],
        **learning_rates(config, spec["stride"]),
    )


def learning_rates(config, stride):
    """Returns a learning rate, and its decay by layer, that were chosen for
    this recipe."""
    if config.weights is None:
        return {"learning_rate": 0.003 if stride == 1 else 0.001}
    if config.optimizer_name == "sgd":
        return {"learning_rate": 0.03}
    rate, decay = LEARNING_RATES[config.train], None
    if config.train == "all":
        decay = LAYER_DECAY if stride else None
        if not decay or config.layer_decay not in (None, decay):
            rate = LOW_LEARNING_RATE
    rate *= math.sqrt(config.batch_size / 32)
    return {"learning_rate": rate, "layer_decay": decay}


def choose_model(config, data):
    """Returns the config with a model and an image size to train from scratch.

    It is returned unchanged if --weights or another --model is given.
    """
    if config.weights or config.model not in (None, "compact-vit"):
        return config
    model, image_size = training.models.choose_model_and_size(
        config.model,
        config.image_size,
        config.patch_size or max(config.patch_sizes, default=None),
        data.image_size or data.median_side,
    )
    return dataclasses.replace(config, model=model, image_size=image_size)


def count_steps(config, batch_size, data):
    """Returns the number of steps, and the steps between two evaluations."""
    steps_per_epoch = math.ceil(data.num_train / batch_size)
    if config.epochs:
        every = config.evaluate_every or steps_per_epoch
        return config.epochs * steps_per_epoch, every
    steps = config.steps
    if steps is None and config.weights:
        # For Pets, CIFAR and ImageNet these are also the steps of the paper's
        # Table 4, which has batches of 512 images.
        steps = BiTHyperRule.steps_for(data.num_train)
        if not config.preset:
            steps = min(steps, max(100, 30 * steps_per_epoch))
    elif steps is None:
        steps = max(2400, 30 * steps_per_epoch)
        # A step on images of 64 pixels takes four times as long as on 32.
        pixels = math.prod(height_and_width(config.image_size or 1))
        if config.model == "compact-hybrid" and pixels > 40**2:
            steps //= 2
    return steps, config.evaluate_every or max(1, steps // 10)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
