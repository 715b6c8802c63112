"""Pre-trains a Vision Transformer by DINO or MoCo v3, without labels.

"Emerging Properties in Self-Supervised Vision Transformers"
(https://arxiv.org/abs/2104.14294) and "An Empirical Study of Training
Self-Supervised Vision Transformers" (https://arxiv.org/abs/2104.02057);
docs/contrastive.md explains both; docs/contrastive-measured.md has results.

  python recipes/pretrain_contrastive.py --method dino --output runs/dino
      trains on handwritten digits, in minutes on 2 CPU cores, without a
      download
  python recipes/few_shot.py --weights runs/dino/encoder.keras
      evaluates the encoder by nearest neighbors and linear classifiers
  python recipes/finetune_cifar.py --weights runs/dino
      fine-tunes the encoder
  python recipes/pretrain_contrastive.py --method dino --model ViTS16 \\
      --dataset imagenet2012 --mixed-precision
      trains for 100 epochs as published, on many accelerators
  python recipes/pretrain_contrastive.py --method mocov3 --model ViTS16 \\
      --dataset photos
      trains on your own images, in photos/CLASS/* (one class is enough)

With --model, the defaults are the published settings, in MOMENTUM of
keras_vit_programs/presets.py; without it, they are for a small model. The
output folder contains encoder.keras (to fine-tune with --weights) and
encoder.npz, model.keras (the whole model), metrics.csv, curves.png, config.json
and, every --picture-every steps, attention/step-*.png: the attention of the
class token in the last block. k-NN accuracy and pictures are computed on one
device only. Interrupted runs and KERAS_BACKEND are as for finetune_cifar.py.
Crops are made by TensorFlow's tf.data, with every backend.
"""

import dataclasses
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit_programs import curves, defaults, flags, label_free, setup, sizes
from keras_vit_programs.presets import MOMENTUM


def crops(s, data):
    """Returns the crops of a name or of settings in `MOMENTUM`."""
    known = keras_vit.data.CROPS
    is_name = isinstance(s.crops, str)
    found = known[s.crops] if is_name else keras_vit.data.MultiCrop(**s.crops)
    if s.method != "dino":
        return found
    local = {"num_local": s.local_crops, "local_size": s.local_size}
    return dataclasses.replace(found, **local)


def frozen_steps(s, data):
    if not s.frozen_epochs:
        return None
    epochs = s.frozen_epochs * data.num_train / s.batch_size
    return min(round(epochs), s.steps // 5)


# The defaults, in the order in which they are set, after those of `MOMENTUM`.
DEFAULTS = (
    # Digits of 8 x 8 pixels are enlarged, so that crops have several patches.
    *defaults.label_free(share=10, min_size=16, small_patch=4),
    flags.Rule("crops", "", crops, over="published"),
    flags.Rule("frozen_steps", "the number of steps of the first epoch", frozen_steps),
    flags.Rule("frozen_epochs", "converted", lambda s, data: None, over="given"),
)


@dataclasses.dataclass(frozen=True)
class Config(flags.LabelFree):
    method: str = flags.flag(
        f"one of {', '.join(MOMENTUM)}", "dino", choices=tuple(MOMENTUM)
    )
    teacher_momentum: float | None = flags.flag(
        "momentum of the moving average of the weights at the first step, "
        "which increases to 1; default: as published",
        minimum=0,
        below=1,
    )
    teacher_temperature: float | None = flags.flag(
        "for dino, temperature of the teacher's softmax; default: as published",
        above=0,
    )
    no_centering: bool = flags.flag(
        "for dino, do not center the teacher's outputs", False
    )
    koleo_weight: float | None = flags.flag(
        "for dino, weight of DINOv2's KoLeo regularizer, which spreads the "
        "features; default: 0 with --model, as published, else 0.1",
        minimum=0,
    )
    output_dim: int | None = flags.flag(
        "number of outputs of the head; default: as published", minimum=1
    )
    frozen_steps: int | None = flags.flag(
        "for dino, number of steps in which the last layer is not trained",
        minimum=0,
    )
    local_crops: int | None = flags.flag(
        "for dino, number of local crops; default: as published", minimum=0
    )
    local_size: int | None = flags.flag(
        "for dino, height and width of the local crops, in pixels; default: as "
        "published",
        minimum=1,
    )
    # Settings of MOMENTUM that are no flags.
    weight_decay_end: float | None = None
    hidden_dim: int | None = None
    bottleneck_dim: int | None = None
    temperature: float | None = None
    center_momentum: float | None = None
    frozen_epochs: int | None = None
    crops: object = None  # a `keras_vit.data.MultiCrop`

    defaults = DEFAULTS
    presets = MOMENTUM
    others = {
        "--accumulate": "splits a batch, on all of which the loss here depends, and "
        "--remat saves memory too",
        "--augment": "has no effect, as crops have augmentations of their own",
        "--average": "averages weights, which the momentum encoder does already",
        "--average-from": "averages weights, which the momentum encoder does already",
    }


def main(config):
    setup.launch(config, resolve_config, train)


def train(config, data, strategy, output):
    """Trains with settings that `resolve_config` has filled in."""
    # A sharded model computes only if all processes call it.
    alone = strategy.is_main and strategy.num_devices == 1
    has_knn = alone and len(data.class_names) > 1 and not data.multi_label
    with setup.open_run(config, data, strategy, output, config.method) as run:
        # 1. Data: batches of random crops; labels are not used.
        def train_batches(start):
            return data.train(
                batch_size=config.batch_size,
                image_size=config.image_size,
                mode=config.mode,
                seed=config.seed,
                start=start,
                shard=strategy.process,
                crops=config.crops,
                flip=config.augmentation(data.channels)["flip"],
            )

        test = run.evaluation_batches()

        # 2. Model: a student and its moving average, with their own loss.
        model = build_model(config, data)

        # 3. Optimizer.
        schedule = learning_rate_schedule(config)
        model.compile(
            optimizer=build_optimizer(config, schedule),
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        collapse = label_free.report_collapse(config.warmup_steps)
        run.checkpoints.sinks.append(collapse)
        if alone:
            pictures = attention_pictures(config, data, output)
            run.checkpoints.watchers.append(pictures)
            run.checkpoints.sinks.append(pictures)
        if has_knn:
            options = {**config.batches(), "batch_size": config.batch_size}
            knn = keras_vit.evaluation.NearestNeighbors(data, options)
            run.callbacks.append(knn)
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: encoder and whole model, metrics, plots and settings.
        return run.save(model, label_free.save_momentum_model)


def build_model(config, data):
    # MoCo v3's ViT-S/16 has heads of 32 channels.
    is_small = (config.method, config.model) == ("mocov3", "ViTS16")
    heads = {"num_heads": 12} if is_small else {}
    encoder = label_free.build_encoder(config, data.channels, **heads)
    variables = keras_vit.models.assigning.weights_by_path(encoder)
    label_free.initialize(variables, config.initialize, config.seed)
    schedules, steps = keras_vit.schedules, config.steps
    momentum = schedules.CosineSchedule(config.teacher_momentum, 1.0, steps)
    options = {
        "output_dim": config.output_dim,
        "hidden_dim": config.hidden_dim,
        "teacher_momentum": momentum,
    }
    if config.method == "mocov3":
        options["temperature"] = config.temperature
        return keras_vit.pretraining.MoCoV3(encoder, **options)
    return keras_vit.pretraining.DINO(
        encoder,
        bottleneck_dim=config.bottleneck_dim,
        teacher_temperature=config.teacher_temperature,
        student_temperature=config.temperature,
        center_momentum=(None if config.no_centering else config.center_momentum),
        frozen_steps=config.frozen_steps,
        koleo_weight=config.koleo_weight,
        seed=config.seed,
        **options,
    )


def attention_pictures(config, data, output):
    """Returns the function that plots the attention of the class token."""
    images = curves.some_test_images(data, **config.batches())
    return label_free.draw_pictures(
        lambda model: label_free.attention_rows(model, images, config.mode),
        output / "attention",
        config.picture_every or config.evaluate_every,
    )


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    sizes.check_is_vit(given.model)
    config = flags.fill(given, data)
    has_local = config.method == "dino" and config.local_crops
    if has_local and config.local_size % config.patch_size:
        raise ValueError(
            "--local-size must be a multiple of the patch size, "
            f"{config.patch_size}. Received: {config.local_size}"
        )
    return config


def learning_rate_schedule(config):
    peak, warmup = config.learning_rate, config.warmup_steps
    return keras_vit.schedules.WarmupDecay(peak, config.steps, warmup)


def weight_decay_schedule(config):
    start, end = config.weight_decay, config.weight_decay_end
    if not end:
        return start
    return keras_vit.schedules.CosineSchedule(start, end, config.steps)


def build_optimizer(config, schedule):
    optimizer = setup.build_optimizer(
        config,
        schedule,
        weight_decay=weight_decay_schedule(config),
        decay_kernels_only=False,
        clipnorm=config.clip or None,
        global_clipnorm=None,
    )
    optimizer.exclude_from_weight_decay(var_names=list(config.not_decayed))
    return optimizer


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
