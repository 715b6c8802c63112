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
      that is best on a validation split, in 8 micro-batches per step

In a clone, docs/finetune.md explains more, and docs/reproduce.md the presets,
which train on the same fraction of the training images as their source and
evaluate on the test set. Without a preset, the settings are for small machines
and datasets. With --holdout 0, and at the end of --sweep, all training images
are used. An interrupted run resumes bit for bit with the same command.
docs/runs.md lists the files in the output folder. KERAS_BACKEND selects the
backend.
"""

import dataclasses
import inspect
import math
import os

# TensorFlow's start-up messages would hide the output of this program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# By default, PyTorch's threads spin while they wait. On a CPU that other
# programs use too, a step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit_programs import (
    building,
    class_results,
    defaults,
    flags,
    presets,
    run_report,
    setup,
    sizes,
    studies,
    teacher,
)

LAYER_DECAY = 0.5  # with --train all
# AdamW's for --weights and batches of 32 images, by --train.
LEARNING_RATES = {"all": 7e-4, "lora": 1e-3, "head": 3e-3}
LOW_LEARNING_RATE = 3e-4  # 7e-4 with a layer decay of 0.75 destroys the encoder


def learning_rate(s, data):
    """Returns the peak, as measured in docs/transfer-measured.md, unless a flag gives
    it: --learning-rate, --sweep, or --preset, whose rate is for its batch size."""
    if s.weights is None:
        return 0.003 if s.spec["stride"] == 1 else 0.001
    if s.optimizer == "sgd":
        return 0.03
    rate = LEARNING_RATES[s.train]
    has_decay = s.spec["stride"] and s.layer_decay == LAYER_DECAY  # no BiT has
    if s.train == "all" and not has_decay:
        rate = LOW_LEARNING_RATE
    return rate * math.sqrt(s.batch_size / 32)  # 1.41 times for the default of 64


def layer_decay(s, data):
    tunes = s.weights and s.optimizer == "adamw" and s.train == "all"
    return LAYER_DECAY if tunes and s.spec["stride"] else None


def scratch(s, data):
    """Returns a model and an image size to train from scratch."""
    if s.weights or s.model not in (None, "compact-vit"):
        return s.model, s.image_size
    side = data.image_size or data.median_side
    return sizes.choose_model_and_size(s.model, s.image_size, s.patch_size, side)


def image_size(s, data):
    if s.preset == "bit-hyperrule":
        return 128 if data.image_size is not None and data.image_size < 96 else 480
    size = s.scratch[1] or s.spec["image_size"]
    if s.weights:
        side = data.image_size or data.median_side
        size = sizes.fine_tuning_size(s.spec, side)
    return defaults.first(size, data.image_size, 64)


# How often each image is changed at random, and its features computed.
EPOCHS_OF_FEATURES = 4
# Flags by which images are changed in another way, or the whole model is needed.
EACH_STEP = (
    *inspect.get_annotations(flags.RandAugment),
    *inspect.get_annotations(flags.Mixing),
    *("preset", "protocol", "dropout", "drop_path", "teacher", "max_tokens"),
)


def features(s, data):
    """Returns "once" where the features of four epochs take less time than those of
    all steps, and no flag changes images in another way."""
    if s.train != "head":
        return None
    has_flag = any(getattr(s.given, name) for name in EACH_STEP)
    costs_more = EPOCHS_OF_FEATURES * data.num_train > s.steps * s.batch_size
    return "each-step" if has_flag or costs_more else "once"


def steps(s, data):
    epoch = math.ceil(data.num_train / s.batch_size)
    if s.weights:
        # For Pets, CIFAR and ImageNet these are also the steps of the paper's
        # Table 4, which has batches of 512 images.
        count = keras_vit.schedules.BiTHyperRule.steps_for(data.num_train)
        return count if s.preset else min(count, max(100, 30 * epoch))
    count = max(2400, 30 * epoch)
    # A step on images of 64 pixels takes four times as long as on 32.
    if s.model == "compact-hybrid" and math.prod(s.input_shape(1)[:2]) > 40**2:
        count //= 2
    # A few images are learned by heart: 60 of four classes reach a training accuracy
    # of 0.999 in 150 epochs, and their lowest test loss at epoch 30.
    return min(count, 300 * epoch)


def evaluate_every(s, data):
    if s.epochs:
        return s.steps // s.epochs
    # So that evaluations take at most a sixth of the time of a run.
    least = math.ceil(2 * data.num_evaluation / s.batch_size)
    return min(s.steps, max(1, s.steps // 10, least))


# The defaults, in the order in which they are set; `preset`, which comes first,
# has others.
DEFAULTS = (
    defaults.HOLDOUT,
    flags.Rule(
        "optimizer",
        "sgd for --weights with --sweep paper, whose learning rates are for sgd, else "
        "adamw",
        lambda s, data: "sgd" if s.sweep == "paper" and s.weights else "adamw",
    ),
    flags.Rule("scratch", "", scratch),
    flags.Rule(
        "model",
        "the architecture of --weights, or without them a small one, compact-vit "
        "or compact-hybrid (docs/finetune.md, From scratch)",
        lambda s, data: s.scratch[0],
    ),
    defaults.SPEC,
    flags.Rule(
        "image_size",
        "that of the dataset, or the median if images differ in size, in whole "
        "patches; with --weights, at most their image size and at least 4 x 4 "
        "patches; from scratch, at most 64; with --model, 224",
        image_size,
    ),
    defaults.PATCH_SIZE,
    flags.Rule(
        "mixup",
        "0.1 with bit-hyperrule and 20000 images or more",
        lambda s, data: 0.1 if data.num_train >= 20_000 else 0.0,
    ),
    # The published batch size, 512, is for several accelerators. A smaller one
    # gives more updates of the weights in the same time.
    flags.Rule(
        "batch_size",
        "64, or more for --accumulate",
        lambda s, data: max(64, s.accumulate),
    ),
    flags.Rule(
        "batch_size", "at most the number of images", defaults.whole_batch, over="given"
    ),
    defaults.steps(
        "30 epochs. From scratch, at least 2400 steps, half as many for compact-hybrid "
        "on images above 40 pixels, but at most 300 epochs. With --weights, 100 to "
        "500 steps, or 10000 from 20000 images on, or 20000 from 500000 on. "
        "--show-settings prints the number",
        steps,
    ),
    flags.Rule(
        "evaluate_every",
        "a tenth of --steps, or more, so that between two evaluations twice as many "
        "images are trained on as evaluated; an epoch with --epochs",
        evaluate_every,
    ),
    defaults.NO_EPOCHS,
    flags.Rule(
        "layer_decay",
        f"{LAYER_DECAY} for --weights of a Vision Transformer with adamw and "
        "--train all, else 1",
        layer_decay,
    ),
    flags.Rule(
        "learning_rate",
        "0.003 from scratch (0.001 for compact-hybrid and others with a ResNet); with "
        "--weights, 0.03 for sgd and, for adamw, depending on --train, "
        + ", ".join(f"{x} ({name})" for name, x in LEARNING_RATES.items())
        + f", or {LOW_LEARNING_RATE} with another layer decay, times "
        "the square root of the batch size / 32",
        learning_rate,
    ),
    defaults.PUBLISHED_RATE,
    flags.Rule(
        "weight_decay",
        "0.05 for adamw",
        lambda s, data: 0.05 if s.optimizer == "adamw" else None,
    ),
    defaults.MODE,
    flags.Rule(
        "lora_rank",
        "8 with --train lora",
        lambda s, data: 8 if s.train == "lora" else None,
    ),
    flags.Rule(
        "features",
        "once with --train head, but each-step with a flag that changes images or the "
        "encoder, such as --protocol, or for fewer steps than 4 epochs",
        features,
    ),
    flags.Rule(
        "keep",
        "best with a validation split (--holdout, or that of a CSV file), but last "
        "with --preset or --sweep, and if test images are evaluated, whose accuracy "
        "would be optimistic if it determined the weights",
        lambda s, data: (
            "best" if data.num_validation and not (s.preset or s.sweep) else "last"
        ),
    ),
)


# To add a flag, add a field with `flags.flag(help, default)`, and read it in `train`.
# Its default is off, None, False or 0, so that a run which began before it resumes; one
# that depends on other settings or the data is None here and a row of `DEFAULTS`.
@dataclasses.dataclass(frozen=True)
class Config(
    flags.Weights,
    flags.Patches,
    flags.Epochs,
    flags.Accumulate,
    flags.Average,
    flags.Keep,
    flags.Warmup,
    flags.Sweep,
    flags.RandAugment,
    flags.Teacher,
    flags.Dataset,
):
    preset: str | None = flags.preset_flag(presets.FINE_TUNING)
    keep_head: bool = flags.flag(
        "do not replace the classification head of --weights, to train further "
        "on the same classes, such as those of a finished run",
        False,
    )
    max_tokens: int | None = flags.flag(
        "resize images to at most N patches and keep their aspect ratio",
        minimum=1,
    )
    optimizer: str | None = flags.flag(
        "sgd (momentum 0.9, by default without weight decay) or adamw",
        choices=("sgd", "adamw"),
    )
    class_weights: str | None = flags.flag(
        "balanced: each class has the same share of the training loss, regardless of "
        "its number of images; default: each image has the same share",
        choices=("balanced",),
    )
    train: str = flags.flag(
        "trainable weights: all; head, only the new head; or lora, the head "
        "and low-rank updates of the query and value kernels",
        "all",
        choices=tuple(LEARNING_RATES),
    )
    features: str | None = flags.flag(
        "with --train head, when features are computed: once (before training, from "
        "the randomly augmented images of four epochs) or each-step",
        choices=("once", "each-step"),
    )
    lora_rank: int | None = flags.flag("rank of --train lora", minimum=1)
    pooling: str | None = flags.flag(
        "gap: the head reads the mean of the patches, after a new layer norm, "
        "as in the fine-tuning of MAE; default: what the head of --weights "
        "reads",
        choices=("gap",),
    )
    layer_decay: float | None = flags.flag(
        "layer-wise learning rate decay: the learning rate of each layer is "
        "this times that of the layer above",
        above=0,
        maximum=1,
    )

    defaults = DEFAULTS
    presets = presets.FINE_TUNING
    others = {"--decay": "is that of --preset, or a cosine"}

    def __post_init__(self):
        super().__post_init__()
        published = self.published.settings.get("optimizer")
        if published and self.optimizer not in (None, published):
            raise ValueError(
                f"--preset {self.preset} has the learning rates of {published}"
                ": leave out --optimizer or --preset. Received: --optimizer "
                f"{self.optimizer}"
            )
        for name in ("preset", "keep_head", "pooling", "train", "features"):
            value = getattr(self, name)
            if self.weights is None and value not in (None, False, "all"):
                raise ValueError(
                    f"--{name.replace('_', '-')} is for fine-tuning: give "
                    "--weights. To train from scratch as published, use "
                    "recipes/pretrain.py."
                )
        if self.lora_rank and self.train != "lora":
            raise ValueError(
                "--lora-rank is for --train lora: give it, or leave --lora-rank out. "
                f"Received: --train {self.train}"
            )

    def batches(self):
        batches = super().batches()
        if self.max_tokens:
            budget = keras_vit.data.TokenBudget(self.max_tokens, self.patch_size)
            batches["image_size"] = budget
        return batches


def main(config):
    with flags.user_errors():
        if config.dataset == "digits" and config.preset and not config.protocol:
            raise ValueError(
                f"--preset {config.preset} crops photographs, for which the digits "
                "are too small: give a --dataset, or, to try it on digits, --protocol "
                "simple --steps 100 --warmup-steps 10."
            )
        # Before the dataset is downloaded; released weights are downloaded after the
        # images of a folder are checked.
        is_released = f"{config.model}/{config.weights}" in keras_vit.list_weights()
        if not (is_released and os.path.exists(config.dataset)):
            sizes.resolve_model_spec(config.model, config.weights, config.patch_size)
        strategy, data, output = setup.begin(config)
        if strategy.num_devices > 1 and config.train == "head":
            if config.features == "once":
                raise ValueError(
                    "--features once computes features on one device: leave it out. "
                    f"Received: {strategy.num_devices} devices"
                )
            config = dataclasses.replace(config, features="each-step")
    if config.sweep and not config.show_settings:
        functions = train, resolve_config, setup.load_run_data
        config, data = studies.sweep(*functions, config, data, strategy, output)
    elif config.sweep:
        rates = map(str, flags.parse_learning_rates(config.sweep, config.dataset))
        print(
            f"--sweep trains with each of the learning rates {', '.join(rates)} on the "
            "training images below, and with the best one on all of them."
        )
    with flags.user_errors():
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        run_report.print_results(results, output)


def train(config, data, strategy, output, keep=True):
    """Trains with the settings of `resolve_config`, and saves the results."""
    head = "the head of the weights" if config.keep_head else "a new head"
    summary = f"fine-tuning with {head}" if config.weights else "from scratch"
    if config.train != "all":
        trained = {"head": "the head", "lora": f"LoRA of rank {config.lora_rank}"}
        summary += f", training {trained[config.train]} alone"
    if config.features == "once":
        summary += f" on features of {EPOCHS_OF_FEATURES} epochs, computed once"
    with setup.open_run(config, data, strategy, output, summary) as run:
        # 1. Model: the given weights, with a new head of zeros unless
        # --keep-head is given, or a new model; with --teacher, a model that
        # trains it. What is trained are the same layers, of which the last block
        # computes only the tokens that the head reads: 7 to 9 % less to compute.
        model = build_model(config, data)
        trained = keras_vit.models.inference_model(model)

        # 2. Data: a function of the step to resume from, which returns endless
        # batches of (images, labels), and the batches of an evaluation. With
        # --features once, of features, on which the head alone is trained.
        source = data
        if config.features == "once":
            images = EPOCHS_OF_FEATURES * data.num_train
            print(f"features  of {images:,} images are computed first", flush=True)
            encoder, trained = keras_vit.evaluation.split_at_head(model)
            source = keras_vit.evaluation.feature_dataset(
                encoder,
                data,
                batch_size=run.micro_batch_size,
                epochs=EPOCHS_OF_FEATURES,
                seed=config.seed,
                **(run.reading | run.augmentation),
            )
        train_batches = run.train_batches(source, **training_options(config, data))
        test = run.evaluation_batches(source)

        # 3. Optimizer, loss and metrics.
        schedule = learning_rate_schedule(config)
        classes = len(data.class_names)
        metric = keras_vit.metrics.get_metric(data.multi_label, classes)
        trained.compile(
            optimizer=setup.build_optimizer(config, schedule),
            loss=keras_vit.losses.get_loss(
                config.loss, config.one_hot, config.label_smoothing
            ),
            # Weighted: images that only fill up a batch have the weight 0.
            weighted_metrics=[metric],
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        # `run.callbacks` takes Keras callbacks. Lists of `run.checkpoints` take
        # functions: `watchers` of each step; `sinks` of the recorder and the row of
        # each evaluation, such as {"step": 100, "test_accuracy": 0.9}; and `stops` of
        # all rows so far, which return why training ends, or None. For example:
        # if config.stop_at:
        #     run.checkpoints.stops.append(
        #         lambda rows: "accurate" if rows[-1][name] >= config.stop_at else None
        #     )
        # with name = f"{data.evaluation_split}_{metric.name}" and, in `Config`,
        # stop_at: float | None = flags.flag("end at this accuracy", above=0, maximum=1)
        trained.fit(**run.resume(trained, schedule, train_batches, test, model))

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
    keras_vit.training.set_trainable(model, config.train, config.lora_rank or 8)
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
    """Returns the settings with their defaults, for a dataset."""
    if given.keep_head:
        building.check_classes(given.model, given.weights, data)
    of_weights = ()
    if given.preset and given.model is None:  # some of whose settings are of a model
        name = sizes.resolve_model_spec(None, given.weights)["name"]
        given, of_weights = dataclasses.replace(given, model=name), ("model",)
    config = flags.fill(given, data, of_weights)
    spec = sizes.resolve_model_spec(config.model, config.weights)
    unfit = [name for name in EACH_STEP if getattr(given, name)]
    if config.features == "once" and (unfit or config.train != "head"):
        others = [f"--{name.replace('_', '-')}" for name in unfit]
        raise ValueError(
            "--features once is for --train head on images that no flag changes: leave "
            f"it out, or {' and '.join(others)}. Received: --train {config.train}"
            if others
            else "--features once is for --train head: give it, or leave --features "
            f"out. Received: --train {config.train}"
        )
    if config.max_tokens and spec["stride"] != 1:
        raise ValueError(
            "--max-tokens is for Vision Transformers, whose patches are cut from "
            "the image: leave it out, or give another --model, such as compact-vit."
        )
    return config


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
