"""Pre-trains a Vision Transformer on masked images, without labels.

There are three methods: mae, "Masked Autoencoders Are Scalable Vision Learners"
(https://arxiv.org/abs/2111.06377); mim, masked image modeling as in SimMIM
(https://arxiv.org/abs/2111.09886), but with learned absolute position
embeddings instead of a shared relative position bias; and mpp, the masked patch
prediction of "An Image is Worth 16x16 Words", Appendix B.1.2
(https://arxiv.org/abs/2010.11929).

  python recipes/pretrain_masked.py --method mae --output runs/mae
      trains on handwritten digits, in a minute on 2 CPU cores, without a
      download
  python recipes/finetune_cifar.py --weights runs/mae
      fine-tunes the encoder
  python recipes/pretrain_masked.py --method mae --model ViTB16 \\
      --dataset imagenet2012 --mixed-precision
      trains for 800 epochs as published, on many accelerators
  python recipes/finetune_cifar.py --dataset imagenet2012 --weights runs/... \\
      --layer-decay 0.65 --epochs 100
      fine-tunes with other crops and rates than MAE and SimMIM; --preset mae
      has those of MAE
  python recipes/pretrain_masked.py --method mim --model ViTS16 --dataset photos
      trains on your own images, in photos/CLASS/* (one class is enough)

With --model, the defaults are the published settings, in MASKED of
keras_vit_programs/presets.py; without it, they are for a small model. The
output folder contains encoder.keras (to fine-tune with --weights), model.keras
(the whole model), metrics.csv, curves.png, config.json and, every
--picture-every steps, reconstructions/step-*.png: images, masked images and
reconstructions. Interrupted runs and KERAS_BACKEND are as for
finetune_cifar.py.
"""

import dataclasses
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras_vit
from keras_vit_programs import curves, defaults, flags, label_free, setup, sizes
from keras_vit_programs.presets import MASKED

# The defaults, in the order in which they are set, after those of `MASKED`.
DEFAULTS = (
    *defaults.label_free(),
    flags.Rule(
        "mask_patch_size",
        "none with --masking block",
        lambda s, data: None if s.masking == "block" else s.mask_patch_size,
        over="published",
    ),
)


@dataclasses.dataclass(frozen=True)
class Config(flags.RandAugment, flags.Accumulate, flags.Average, flags.LabelFree):
    method: str = flags.flag(
        f"one of {', '.join(MASKED)}", "mae", choices=tuple(MASKED)
    )
    mask_ratio: float | None = flags.flag(
        "fraction of the patches that are masked; default: 0.75 for mae, 0.6 "
        "for mim, 0.5 for mpp",
        above=0,
        below=1,
    )
    masking: str = flags.flag(
        "for mim: random for random patches, block for blocks of patches",
        "random",
        choices=("random", "block"),
    )
    mask_patch_size: int | None = flags.flag(
        "for mim with random masks: height and width of the masked squares, "
        "in pixels; default: 32 with --model, else the patch size",
        minimum=1,
    )
    target: str = flags.flag(
        "for mpp, what is predicted: mean_color (with 3 bits), downsized (4 x "
        "4 mean colors) or pixels",
        "mean_color",
        choices=("mean_color", "downsized", "pixels"),
    )
    decoder_layers: int | None = flags.flag(
        "for mae, number of decoder blocks; default: 8 with --model, else 2",
        minimum=1,
    )
    decoder_width: int | None = flags.flag(
        "for mae, width of the decoder; default: 512 with --model, else 32",
        minimum=1,
    )

    # Settings of MASKED that are no flags.
    beta_2: float | None = None
    milestone: float | None = None
    warmup_start: float | None = None

    defaults = DEFAULTS
    presets = MASKED


def main(config):
    setup.launch(config, resolve_config, train)


def train(config, data, strategy, output):
    """Trains with settings that `resolve_config` has filled in."""
    summary = f"{config.method}, {config.mask_ratio:.0%} masked"
    with setup.open_run(config, data, strategy, output, summary) as run:
        # 1. Data: batches of images; labels are not used.
        train_batches = run.train_batches()
        test = run.evaluation_batches()

        # 2. Model: an encoder and a decoder or head that predicts the masked
        # patches. It computes its own loss.
        model = build_model(config, data)

        # 3. Optimizer.
        schedule = learning_rate_schedule(config)
        model.compile(
            optimizer=build_optimizer(config, schedule),
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        if strategy.is_main and strategy.num_devices == 1:
            # A sharded model computes only if all processes call it.
            pictures = reconstructions(config, data, output)
            run.checkpoints.watchers.append(pictures)
            run.checkpoints.sinks.append(pictures)
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: encoder and whole model, metrics, plots and settings.
        return run.save(model, label_free.save_masked)


def build_model(config, data):
    # The small model has no class token: fine-tuning pools its patches.
    small = config.model is None or config.model in sizes.COMPACT
    no_token = {"class_token": False} if small else {}
    encoder = label_free.build_encoder(config, data.channels, **no_token)
    options = {"mask_ratio": config.mask_ratio, "seed": config.seed}
    if config.method == "mim":
        model = keras_vit.pretraining.MaskedImageModeling(
            encoder,
            masking=config.masking,
            mask_patch_size=config.mask_patch_size,
            **options,
        )
    elif config.method == "mpp":
        model = keras_vit.pretraining.MaskedPatchPrediction(
            encoder,
            target=config.target,
            value_range=curves.pixel_range(config.mode, data.channels),
            **options,
        )
    else:
        model = keras_vit.pretraining.MaskedAutoencoder(
            encoder,
            decoder_hidden_size=config.decoder_width,
            decoder_num_layers=config.decoder_layers,
            # MAE has heads of 32 channels in its decoder.
            decoder_num_heads=max(1, config.decoder_width // 32),
            **options,
        )
    label_free.initialize(model.variables_by_path(), config.initialize, config.seed)
    return model


def reconstructions(config, data, output):
    """Returns the function that plots reconstructions."""
    images, mode = curves.some_test_images(data, **config.batches()), config.mode
    return label_free.draw_pictures(
        lambda model: label_free.reconstruction_rows(model, images, mode),
        output / "reconstructions",
        config.picture_every or config.evaluate_every,
    )


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    sizes.check_is_vit(given.model)
    config = flags.fill(given, data)
    unit, patch = config.mask_patch_size, config.patch_size
    if unit and (unit % patch or config.image_size % unit):
        raise ValueError(
            f"--mask-patch-size must be a multiple of the patch size, {patch}, "
            f"that divides {config.image_size}. Received: {unit}"
        )
    return config


def learning_rate_schedule(config):
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.milestone is None:
        return keras_vit.schedules.WarmupDecay(peak, config.steps, warmup)
    milestones = [max(warmup, round(config.milestone * config.steps))]
    start = config.warmup_start * peak
    return keras_vit.schedules.WarmupMultiStep(peak, warmup, milestones, start=start)


def build_optimizer(config, schedule):
    optimizer = setup.build_optimizer(
        config,
        schedule,
        beta_2=config.beta_2,
        decay_kernels_only=config.not_decayed is None,
    )
    if config.not_decayed is not None:
        optimizer.exclude_from_weight_decay(var_names=config.not_decayed)
    return optimizer


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
