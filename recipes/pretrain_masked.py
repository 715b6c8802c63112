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
keras_vit/training/presets.py; without it, they are for a small model. The
output folder contains encoder.keras (to fine-tune with --weights), model.keras
(the whole model), metrics.csv, curves.png, config.json and, every
--picture-every steps, reconstructions/step-*.png: images, masked images and
reconstructions. Interrupted runs and KERAS_BACKEND are as for
finetune_cifar.py.

Measured on 2026-11-21 on 2 CPU cores that also ran other programs (load 6 to
13), on JAX: 1,000 steps on 1,438 digits without labels (one run per method),
then 200 steps with 10 labels per class. Test accuracy, mean of 5 seeds, at the
learning rates 0.001 and 0.003: from scratch 0.831 and 0.852; after mpp 0.821
and 0.883; after mim 0.813 and 0.876; after mae 0.726 and 0.831. At the better
learning rate, mpp and mim improve on training from scratch, and mae does not on
8 x 8 pixels. The loss decreases from step 200 to step 1,000 as follows: mpp
1.36 to 1.07, mim 0.36 to 0.25, mae 0.48 to 0.38. A step of MAE with one decoder
block takes 0.23 of the time of a step on all patches (Ti/16, 224 pixels, 8
images), and with eight blocks of width 128, 0.62. ImageNet was not run here.
"""

import dataclasses
import os

# As in finetune_cifar.py: no start-up messages of TensorFlow, and no threads of
# PyTorch that spin while they wait.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from keras_vit import training
from keras_vit.optimizers import PublishedAdamW
from keras_vit.schedules import WarmupDecay
from keras_vit.schedules import WarmupMultiStep
from keras_vit.training import command_line as cli
from keras_vit.training import masked
from keras_vit.training import plots
from keras_vit.training import presets
from keras_vit.training.pretraining import LabelFreeFlags


@dataclasses.dataclass(frozen=True)
class Config(LabelFreeFlags):
    method: str = cli.arg(
        "mae",
        f"one of {', '.join(presets.MASKED)}",
        "NAME",
        choices=tuple(presets.MASKED),
    )
    mask_ratio: float | None = cli.arg(
        None,
        "fraction of the patches that are masked; default: 0.75 for mae, 0.6 "
        "for mim, 0.5 for mpp",
        "X",
        above=0,
        below=1,
    )
    masking: str = cli.arg(
        "random",
        "for mim: random for random patches, block for blocks of patches",
        "NAME",
        choices=("random", "block"),
    )
    mask_patch_size: int | None = cli.arg(
        None,
        "for mim with random masks: height and width of the masked squares, "
        "in pixels; default: 32 with --model, else the patch size",
        minimum=1,
    )
    target: str = cli.arg(
        "mean_color",
        "for mpp, what is predicted: mean_color (with 3 bits), downsized (4 x "
        "4 mean colors) or pixels",
        "NAME",
        choices=("mean_color", "downsized", "pixels"),
    )
    decoder_layers: int | None = cli.arg(
        None,
        "for mae, number of decoder blocks; default: 8 with --model, else 2",
        minimum=1,
    )
    decoder_width: int | None = cli.arg(
        None,
        "for mae, width of the decoder; default: 512 with --model, else 32",
        minimum=1,
    )

    # Settings of MASKED that are no flags.
    beta_2: float | None = None
    milestone: float | None = None
    warmup_start: float | None = None

    @property
    def published(self):
        return presets.MASKED[self.method]


def main(config):
    cli.show_log()
    with cli.user_errors():
        strategy, data, output = training.begin(config)
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        training.print_results(results, output)


def train(config, data, strategy, output):
    """Trains with settings that `resolve_config` has filled in."""
    summary = f"{config.method}, {config.mask_ratio:.0%} masked"
    with training.Run(
        config, data, strategy, output, summary, metric="loss"
    ) as run:
        # 1. Data: batches of images; labels are not used.
        train_batches = run.train_batches()
        test = run.evaluation_batches()

        # 2. Model: an encoder and a decoder or head that predicts the masked
        # patches. It computes its own loss.
        model = masked.build_masked(config, data.channels)

        # 3. Optimizer.
        schedule = learning_rate_schedule(config)
        model.compile(
            optimizer=build_optimizer(config, schedule),
            jit_compile=training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        if strategy.is_main and strategy.num_devices == 1:
            # A sharded model computes only if all processes call it.
            run.callbacks.append(reconstructions(config, data, output))
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: encoder and whole model, metrics, plots and settings.
        return run.save(model, masked.save_masked)


def reconstructions(config, data, output):
    """Returns the callback that plots reconstructions."""
    batches = data.test(**config.batches(), batch_size=min(8, data.num_test))
    images, _ = plots.sample_evenly(batches, data.num_test, count=8)
    return masked.Reconstructions(
        images,
        output / "reconstructions",
        (config.picture_every or config.evaluate_every) * config.accumulate,
        config.accumulate,
        config.mode,
    )


def resolve_config(given, data):
    """Returns the config with values for all settings that are None."""
    training.check_is_vit(given.model)
    config = training.resolve_pretraining(given, data)
    if given.masking == "block" and given.mask_patch_size is None:
        config = dataclasses.replace(config, mask_patch_size=None)
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
        return WarmupDecay(peak, config.steps, warmup)
    milestones = [max(warmup, round(config.milestone * config.steps))]
    return WarmupMultiStep(
        peak, warmup, milestones, start=config.warmup_start * peak
    )


def build_optimizer(config, schedule):
    options = {
        **config.optimizer_options(),
        "global_clipnorm": config.clip or None,
        "decay_kernels_only": config.not_decayed is None,
    }
    optimizer = PublishedAdamW(
        schedule, config.weight_decay, beta_2=config.beta_2, **options
    )
    if config.not_decayed is not None:
        optimizer.exclude_from_weight_decay(var_names=config.not_decayed)
    return optimizer


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
