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

An interrupted run resumes bit for bit with the same command.

The output folder contains model.keras, model.npz (weights to fine-tune again
with --weights), metrics.csv, curves.png, predictions.png and config.json. The
environment variable KERAS_BACKEND selects jax, tensorflow or torch.

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
from keras_vit.data import PROTOCOLS
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


@dataclasses.dataclass(frozen=True)
class Config(cli.TrainingFlags):
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
    patch_size: int | None = cli.arg(
        None,
        "height and width of a patch, in pixels; default: that of --weights "
        "or --model, else the one that gives about 8 x 8 patches",
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
        f"--weights: {', '.join(filter(None, training.FINE_TUNING))}",
        "NAME",
    )
    steps: int | None = cli.arg(
        None,
        "training steps; default without --epochs: from scratch, 2400 or 30 "
        "epochs, whichever is more, and half of that for compact-hybrid on "
        "images above 40 pixels; with --weights, 100 or 30 epochs, whichever "
        "is more, at most 500, or 10000 for 20000 images or more, or 20000 for "
        "500000 images or more",
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
    )
    batch_size: int | None = cli.arg(
        None, f"images per step; default: that of --preset, else {BATCH_SIZE}"
    )
    warmup: float | None = cli.arg(
        None,
        "fraction of the steps in which the learning rate is warmed up; "
        "default: 0.1",
        "X",
    )
    warmup_steps: int | None = cli.arg(
        None, "number of warm-up steps, instead of --warmup"
    )
    optimizer: str | None = cli.arg(
        None,
        "sgd (momentum 0.9, without weight decay) or adamw; default: that of "
        "--preset, sgd for --weights with --sweep paper, whose learning rates "
        "are for it, else adamw",
        "NAME",
    )
    # The higher weight decay of the paper's ImageNet models is for 300 epochs.
    weight_decay: float | None = cli.arg(
        None,
        "weight decay of AdamW: each step multiplies kernels by 1 minus this "
        "times the learning rate; default: 0.05",
        "X",
    )
    loss: str = cli.arg(
        "softmax",
        "cross-entropy: softmax, for images of one class each; or sigmoid for "
        "each class, for images of several classes, which are evaluated by the "
        "mean average precision",
        "softmax|sigmoid",
    )
    class_weights: str | None = cli.arg(
        None,
        "balanced: each class has the same part in the training loss, however "
        "many images it has; default: each image has the same",
        "balanced",
    )
    label_smoothing: float | None = cli.arg(
        None,
        "label smoothing: the fraction of the probability that is distributed "
        "evenly over all classes; default: 0",
        "P",
    )
    train: str = cli.arg(
        "all",
        "trainable weights: all; head, only the new head; or lora, the head "
        "and low-rank updates of the query and value kernels",
        "all|head|lora",
    )
    lora_rank: int | None = cli.arg(
        None, "rank of the updates of --train lora; default: 8"
    )
    clip: float | None = cli.arg(
        None,
        "maximum global norm of the gradients, 0 for no clipping; default: 1",
        "X",
    )
    momentum_dtype: str | None = cli.arg(
        None,
        "dtype of the momentum: float32, or bfloat16 to use less memory; "
        "default: float32",
        "NAME",
    )
    dropout: float | None = cli.arg(
        None,
        "dropout rate after the position embedding and after dense layers, "
        "except query, key and value; default: 0",
        "P",
    )
    drop_path: float | None = cli.arg(
        None,
        "stochastic depth rate of the last block; it increases linearly from "
        "0 in the first block; default: 0",
        "P",
    )
    protocol: str | None = cli.arg(
        None,
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "default: that of --preset, else simple, which shifts whole images",
        "NAME",
    )
    mode: str | None = cli.arg(
        None,
        "pixel values: tf for [-1, 1], torch for normalisation by ImageNet's "
        "mean and standard deviation; default: that of the training of "
        "released weights, else tf",
        "NAME",
    )
    pooling: str | None = cli.arg(
        None,
        "gap: the head reads the mean of the patches, after a new layer norm, "
        "as in the fine-tuning of MAE; default: what the head of --weights "
        "reads",
        "gap",
    )
    layer_decay: float | None = cli.arg(
        None,
        "layer-wise learning rate decay: the learning rate of each layer is "
        "this times that of the layer above, 1 for no decay; default: that of "
        f"--preset, {LAYER_DECAY} for --weights of a Vision Transformer with "
        "adamw and --train all, else no decay",
        "X",
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
        if self.sweep == "paper" and self.weights and not self.preset:
            # It stays when the sweep has chosen one of SGD's learning rates.
            optimizer = self.optimizer or "sgd"
            object.__setattr__(self, "optimizer", optimizer)
        if self.sweep is not None:
            training.parse_learning_rates(self.sweep)
            if self.learning_rate is not None:
                raise ValueError("Give --sweep or --learning-rate, not both.")
            if self.holdout == 0:
                raise ValueError(
                    "--sweep measures learning rates on a validation split. "
                    "Give --holdout a fraction above 0, or leave it out. "
                    f"Received: --holdout {self.holdout:g}"
                )
        cli.check_range(self, "weight_decay", "clip", minimum=0)
        rates = ("warmup", "dropout", "drop_path", "label_smoothing")
        cli.check_range(self, *rates, minimum=0, below=1)
        cli.check_range(self, "lora_rank", minimum=1)
        cli.check_range(self, "warmup_steps", minimum=0)
        cli.check_choices(
            self,
            preset=filter(None, training.FINE_TUNING),
            loss=keras_vit.losses.LOSSES,
            class_weights=("balanced",),
            pooling=("gap",),
            optimizer=("sgd", "adamw"),
            train=("all", "head", "lora"),
            momentum_dtype=("float32", "bfloat16"),
        )
        if self.patch_sizes:
            RandomPatchSizes(self.patch_sizes, self.patch_size or 1)
        if self.layer_decay is not None:
            keras_vit.optimizers.layer_decay_multipliers(
                ["block_0"], self.layer_decay
            )
        self.raise_if_unused()

    def raise_if_unused(self):
        """Raises a `ValueError` if a given flag would have no effect."""
        if self.preset and self.weights is None:
            raise ValueError(
                f"--preset {self.preset} fine-tunes: give --weights. To train "
                "from scratch as published, use recipes/pretrain.py."
            )
        published = self.published.settings.get("optimizer")
        if self.preset and self.optimizer not in (None, published):
            raise ValueError(
                f"--preset {self.preset} fine-tunes with {published}: leave "
                "out --optimizer or --preset."
            )
        if self.keep_head and (self.weights is None or self.pooling):
            raise ValueError(
                "--keep-head keeps the head of --weights, with what it reads: "
                "give --weights, and leave out --pooling and --preset mae, "
                "which sets it."
            )
        if self.pooling and self.weights is None:
            raise ValueError(
                f"--pooling {self.pooling} changes what the head of --weights "
                "reads: give --weights, or leave it out."
            )
        if self.weight_decay is not None and self.optimizer_name == "sgd":
            raise ValueError(
                "--weight-decay is of AdamW, and the model is trained with "
                "SGD, without weight decay: leave it out, or give --optimizer "
                "adamw."
            )
        if self.train != "all" and self.weights is None:
            raise ValueError(
                f"--train {self.train} keeps the encoder as it is: give "
                "--weights."
            )
        if self.lora_rank is not None and self.train != "lora":
            raise ValueError(
                f"--lora-rank is for --train lora. Received: --train "
                f"{self.train}"
            )
        if self.layer_decay is not None and self.train != "all":
            raise ValueError(
                "--layer-decay is for --train all. Received: --train "
                f"{self.train}"
            )
        if self.label_smoothing and self.loss == "sigmoid":
            raise ValueError(
                "--label-smoothing is for --loss softmax: leave it out, or "
                "with --preset give 0. Received: --loss sigmoid "
                f"--label-smoothing {self.label_smoothing:g}"
            )
        if self.class_weights and (self.mixup or self.cutmix):
            raise ValueError(
                "--class-weights is for images of one class each, which "
                "--mixup and --cutmix mix: leave out one of them, or with "
                "--preset give --mixup 0 --cutmix 0."
            )
        rises = [x for x in (self.warmup, self.warmup_steps) if x is not None]
        if len(rises) > 1:
            raise ValueError("Give --warmup or --warmup-steps, not both.")
        if rises and self.preset == "bit-hyperrule":
            raise ValueError(
                "--preset bit-hyperrule has a warm-up of its own: leave out "
                "--warmup and --warmup-steps."
            )

    @property
    def optimizer_name(self) -> str:
        published = self.published.settings.get("optimizer")
        return self.optimizer or published or "adamw"

    @property
    def one_hot(self):
        smooth = bool(self.label_smoothing)
        return super().one_hot or smooth or self.loss == "sigmoid"

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
        train_batches = run.train_batches(
            class_weights=class_weights(config, data),
            patch_sizes=patch_sizes(config),
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
        run.resume(model, schedule, train_batches, test)
        model.fit(
            run.batches,
            steps_per_epoch=run.steps_per_epoch,
            initial_epoch=run.initial_epoch,
            epochs=run.epochs,
            validation_data=test,
            callbacks=run.callbacks,
            shuffle=False,  # the batches are shuffled already
            verbose=0,  # a callback prints a line for each evaluation
        )

        # 5. Results: the model, metrics, plots and settings.
        return run.save(model, keep=keep)


def class_weights(config, data):
    if config.class_weights:
        return balanced_class_weights(data.class_counts())
    return None


def patch_sizes(config):
    if not config.patch_sizes:
        return None
    return RandomPatchSizes(config.patch_sizes, config.patch_size)


def build_model(config, data):
    height, width = height_and_width(config.image_size)
    inputs = {"input_shape": (height, width, data.channels)}
    if config.patch_sizes:
        # The grid of patches, and so the image, differs from step to step.
        inputs = {
            "input_shape": (None, None, data.channels),
            "grid_size": (
                height // config.patch_size,
                width // config.patch_size,
            ),
        }
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
    if not spec["stride"]:
        config.raise_if_given("dropout", "drop_path", "layer_decay", "pooling")
    if config.patch_sizes and spec["stride"] != 1:
        raise ValueError(
            "--patch-sizes is for Vision Transformers, whose patches are cut "
            "from the image. A hybrid cuts them from a ResNet's feature map, "
            "and a BiT has none: leave it out, or give another --model, such "
            "as compact-vit."
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
        training.models.check_patch_size(image_size, size)
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
        lora_rank=8 if config.train == "lora" else None,
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
