"""Pre-trains a Vision Transformer, a hybrid or a BiT from scratch.

"An Image is Worth 16x16 Words", Section 4.1 and Table 3
(https://arxiv.org/abs/2010.11929). The values and sources of the presets are in
keras_vit_programs/presets.py.

  python recipes/pretrain.py --output runs/pretrained
      trains on handwritten digits, in minutes on 2 CPU cores, without a
      download
  python recipes/finetune_cifar.py --weights runs/pretrained/model.npz \\
      --image-size 16
      fine-tunes that model at twice the image size
  python recipes/pretrain.py --preset big-vision-s16 --dataset imagenet2012
      trains S/16 on ImageNet for 90 epochs, on 8 accelerators, or on one with
      --accumulate
  python recipes/pretrain.py --preset paper-imagenet21k --dataset imagenet21k
      trains the paper's B/16, which needs a TPU pod
  python recipes/pretrain.py --preset bit-m --dataset photos --model BiT_R50x3
      trains on your own images, in photos/CLASS/* or
      photos/{train,test}/CLASS/*

ImageNet-21k is not in TFDS. Give it as a folder (imagenet21k/train/n00004475/*
and imagenet21k/test/n00004475/*), or prepare a TFDS dataset of that name with
the splits train and test, in the folder of the environment variable
TFDS_DATA_DIR. big_vision trains without the first 51,200 images and tests on
half of them.

Presets train on the same fraction of ImageNet's train split as their source:
AugReg and big_vision leave out the last 1%. They evaluate on the test set.
With --holdout, the model is evaluated on a validation split instead; with
--holdout 0, it trains on all training images.

A given flag overrides its preset. If the dataset has fewer than 20 batches,
the batch size is reduced, and in a short run the warm-up is shortened; the
output reports both. Interrupted runs, the output folder and KERAS_BACKEND are
as for finetune_cifar.py.
"""

import dataclasses
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit_programs import (
    building,
    defaults,
    flags,
    presets,
    run_report,
    setup,
    teacher,
)

# Flags of the encoder.
ENCODER = (
    "dropout",
    "drop_path",
    "representation_size",
    "pooling",
    "position_embedding",
)


def representation_size(s, data):
    # A distillation token has no hidden layer in its head, nor has a BiT.
    has_layer = s.representation and s.distill != "token"
    size = s.spec["hidden_size"] if has_layer else 0
    return size if s.spec["stride"] else None


def evaluate_every(s, data):
    epoch = math.ceil(data.num_train / s.batch_size)
    return max(1, s.steps // 10 if s.given.steps else max(100, epoch))


def of_encoders(name, other=None):
    """Returns the row of a published setting that a BiT does not have."""
    return flags.Rule(
        name,
        "not for a BiT, which has no encoder",
        lambda s, data: getattr(s, name) if s.spec["stride"] else other,
        over="published",
    )


# The defaults, in the order in which they are set, after those of `preset`.
DEFAULTS = (
    flags.Rule("model", "compact-vit (4 layers of width 64)"),
    *defaults.pretraining(),
    flags.Rule(
        "evaluate_every", "an epoch, or a tenth of given --steps", evaluate_every
    ),
    defaults.constant("augment", "none"),
    flags.Rule(
        "mixup",
        "that of the level of --augment",
        lambda s, data: keras_vit.data.AUGREG.get(s.augment, (0, 0, 0.0))[2],
    ),
    defaults.constant("cutmix", 0.0),
    defaults.constant("label_smoothing", 0.0),
    flags.Rule(
        "representation_size",
        "the hidden size, as in the paper",
        representation_size,
    ),
    *map(of_encoders, ("dropout", "drop_path", "pooling", "position_embedding")),
    of_encoders("positions_of_big_vision", False),
    flags.Rule(
        "preactivation",
        "for a BiT",
        lambda s, data: None if s.spec["stride"] else s.preactivation,
        over="published",
    ),
    flags.Rule(
        "weight_decay",
        "for the learning rate of --preset (0.003 without one), whatever "
        "--learning-rate is",
        over="published",
    ),
    flags.Rule(
        "published_rate",
        "the published learning rate",
        lambda s, data: defaults.scaled_rate(s, s.published.settings["learning_rate"]),
    ),
    defaults.constant("keep", "last"),
)


@dataclasses.dataclass(frozen=True)
class Config(
    flags.Model,
    flags.Patches,
    flags.Epochs,
    flags.Accumulate,
    flags.Average,
    flags.Keep,
    flags.Holdout,
    flags.RandAugment,
    flags.Teacher,
    flags.Dataset,
):
    preset: str | None = flags.preset_flag(presets.PRE_TRAINING)
    optimizer: str | None = flags.flag(
        "adam (beta 0.9 and 0.999) or sgd (momentum 0.9)",
        choices=("adam", "sgd"),
    )
    decay: str | None = flags.flag(
        "decay of the learning rate: cosine, linear or staircase (that of BiT)",
        choices=("cosine", "linear", "staircase"),
    )
    head_bias: float | None = flags.flag(
        "initial bias of the head, such as -10 for sigmoid"
    )
    representation_size: int | None = flags.flag(
        "units of the tanh layer before the head, 0 for none",
        minimum=0,
    )
    pooling: str | None = flags.flag(
        "token, gap or map; default: that of --preset, else of the model"
    )
    position_embedding: str | None = flags.flag(
        "learned, sincos2d or none; default: that of --preset, else learned"
    )

    # Settings of PRE_TRAINING that are no flags.
    representation: bool | None = None
    positions_of_big_vision: bool | None = None
    preactivation: bool | None = None  # of a BiT
    # `weight_decay` is for this learning rate, which the preset has. It stays
    # that if --learning-rate differs.
    published_rate: float | None = None

    defaults = DEFAULTS
    presets = presets.PRE_TRAINING


def main(given):
    with flags.user_errors():
        strategy, data, output = setup.begin(given)
        config = resolve_config(given, data)
    results = train(config, data, strategy, output, summary(given, config))
    if strategy.is_main:
        run_report.print_results(results, output)


def train(config, data, strategy, output, summary):
    """Trains with settings that `resolve_config` has filled in."""
    with setup.open_run(config, data, strategy, output, summary) as run:
        # 1. Data: batches of (images, labels), with a weight for each image in
        # evaluations.
        train_batches = run.train_batches()
        test = run.evaluation_batches()

        # 2. Model; with --teacher, one that trains it.
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
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: the model, metrics, plots and settings.
        return run.save(model)


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    return flags.fill(given, data)


def build_model(config, data):
    # 0 and None are left out: they are the defaults of the model functions.
    arguments = {n: getattr(config, n) for n in ENCODER if getattr(config, n)}
    if config.preactivation is not None:
        arguments["preactivation"] = config.preactivation
    if config.positions_of_big_vision:
        arguments["position_prefix"] = "none"
    model = building.build_model(
        config.model,
        None,
        config.patch_size,
        config.seed,
        input_shape=config.input_shape(data.channels),
        classes=len(data.class_names),
        **{**arguments, **config.encoder_arguments()},
    )
    if config.positions_of_big_vision:
        building.initialize_positions(model, config.seed)
    building.init_head_bias(model, config.head_bias)
    return teacher.distill(model, config, data)


def learning_rate_schedule(config):
    steps, warmup = config.steps, config.warmup_steps
    peak, decay = config.learning_rate, config.decay
    return keras_vit.schedules.WarmupDecay(peak, steps, warmup, decay)


def build_optimizer(config, schedule):
    # As in the code of AugReg, the effective weight decay does not depend on
    # --learning-rate.
    decay = config.weight_decay * config.published_rate / config.learning_rate
    return setup.build_optimizer(config, schedule, weight_decay=decay)


def summary(given, config):
    """Returns a summary of the run for the log.

    It lists the settings that differ from the preset although no flag changed
    them.
    """
    preset = given.published.settings
    changed = [
        f"{name.replace('_', ' ')} {getattr(config, name)} for {published}"
        for name in ("batch_size", "warmup_steps")
        if getattr(given, name) is None
        and (published := preset[name]) not in (None, getattr(config, name))
    ]
    notes = f" ({', '.join(changed)}: few images or steps)" if changed else ""
    return f"from scratch{notes}"


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
