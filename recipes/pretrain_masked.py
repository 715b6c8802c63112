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

With --model, the defaults are the published settings, in METHODS of
keras_vit/training/masked.py; without it, they are for a small model. The output
folder contains encoder.keras (to fine-tune with --weights), model.keras (the
whole model), metrics.csv, curves.png, config.json and, every --picture-every
steps, reconstructions/step-*.png: images, masked images and reconstructions.
Interrupted runs and KERAS_BACKEND are as for finetune_cifar.py.

Measured on 2026-11-21 on 2 CPU cores that also ran other programs (load 6 to
13), on JAX, with `python tools/benchmark.py masked-digits`: 1,000 steps on
1,438 digits without labels (one run per method), then 200 steps with 10 labels
per class. Test accuracy, mean of 5 seeds, at the learning rates 0.001 and
0.003: from scratch 0.831 and 0.852; after mpp 0.821 and 0.883; after mim 0.813
and 0.876; after mae 0.726 and 0.831. At the better learning rate, mpp and mim
improve on training from scratch, and mae does not on 8 x 8 pixels. The loss
decreases from step 200 to step 1,000 as follows: mpp 1.36 to 1.07, mim 0.36 to
0.25, mae 0.48 to 0.38. With `masked-step`: a step of MAE with one decoder block
takes 0.23 of the time of a step on all patches (Ti/16, 224 pixels, 8 images),
and with eight blocks of width 128, 0.62. ImageNet was not run here.
"""

import dataclasses
import os

# As in finetune_cifar.py: no start-up messages of TensorFlow, and no threads of
# PyTorch that spin while they wait.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from keras_vit import training
from keras_vit.data import PROTOCOLS
from keras_vit.optimizers import AdamW
from keras_vit.schedules import WarmupDecay
from keras_vit.schedules import WarmupMultiStep
from keras_vit.training import command_line as cli
from keras_vit.training import masked
from keras_vit.training import plots


@dataclasses.dataclass(frozen=True)
class Config(cli.TrainingFlags):
    method: str = cli.arg("mae", f"one of {', '.join(masked.METHODS)}", "NAME")
    model: str | None = cli.arg(
        None,
        "a Vision Transformer such as ViTB16, with the published settings of "
        "the method; default: compact-vit, of 4 layers of width 64",
        "NAME",
    )
    batch_size: int | None = cli.arg(
        None,
        "images per step; default: as published, and at most a 20th of the "
        "dataset",
    )
    learning_rate: float | None = cli.arg(
        None,
        "peak learning rate; default: as published for the batch size",
        "X",
    )
    weight_decay: float | None = cli.arg(
        None,
        "weight decay of AdamW: each step multiplies kernels, and the tokens "
        "of mae and mim, by 1 minus this times the learning rate; default: as "
        "published",
        "X",
    )
    warmup_steps: int | None = cli.arg(
        None,
        "number of warm-up steps; default: as published, and at most a fifth "
        "of the steps",
    )
    mask_ratio: float | None = cli.arg(
        None,
        "fraction of the patches that are masked; default: 0.75 for mae, 0.6 "
        "for mim, 0.5 for mpp",
        "X",
    )
    masking: str = cli.arg(
        "random",
        "for mim: random for random patches, block for blocks of patches",
        "NAME",
    )
    mask_patch_size: int | None = cli.arg(
        None,
        "for mim with random masks: height and width of the masked squares, "
        "in pixels; default: 32 with --model, else the patch size",
    )
    target: str = cli.arg(
        "mean_color",
        "for mpp, what is predicted: mean_color (with 3 bits), downsized (4 x "
        "4 mean colours) or pixels",
        "NAME",
    )
    decoder_layers: int | None = cli.arg(
        None,
        "for mae, number of decoder blocks; default: 8 with --model, else 2",
    )
    decoder_width: int | None = cli.arg(
        None,
        "for mae, width of the decoder; default: 512 with --model, else 32",
    )
    clip: float | None = cli.arg(
        None,
        "maximum global norm of the gradients, 0 for no clipping; default: 5 "
        "for mim with --model, as published, else no clipping",
        "X",
    )
    drop_path: float | None = cli.arg(
        None,
        "stochastic depth rate of the last block; it increases linearly from "
        "0 in the first block; default: 0.1 for mim with --model, as "
        "published, else 0",
        "X",
    )
    protocol: str | None = cli.arg(
        None,
        f"how images are cropped and resized: {', '.join(PROTOCOLS)}; "
        "default: simple for images below 96 pixels, else mae for mae, simmim "
        "for mim, pretrain for mpp",
        "NAME",
    )
    mode: str | None = cli.arg(
        None,
        "pixel values: tf for [-1, 1], torch for normalisation by ImageNet's "
        "mean and standard deviation; default: torch for mae and mim with "
        "colour images, else tf",
        "NAME",
    )
    picture_every: int | None = cli.arg(
        None,
        "steps between two plots of reconstructions; default: --evaluate-every",
    )

    def __post_init__(self):
        super().__post_init__()
        check = cli.check_range
        check(self, "weight_decay", "warmup_steps", "clip", minimum=0)
        check(self, "drop_path", minimum=0, below=1)
        check(self, "mask_ratio", above=0, below=1)
        counts = ("decoder_layers", "decoder_width", "picture_every")
        counts += ("mask_patch_size",)
        check(self, *counts, minimum=1)
        cli.check_choices(
            self,
            method=masked.METHODS,
            masking=("random", "block"),
            target=("mean_color", "downsized", "pixels"),
        )
        self._refuse_unused()
        if self.mixup or self.cutmix:
            raise ValueError(
                "--mixup and --cutmix mix labels, which are not read here."
            )
        if self.erase:
            raise ValueError(
                "--erase would erase patches that are to be predicted: leave "
                "it out."
            )

    def _refuse_unused(self):
        """Raises a `ValueError` if a given flag is not one of the method."""
        for method, name, default in (
            ("mim", "masking", "random"),
            ("mim", "mask_patch_size", None),
            ("mpp", "target", "mean_color"),
            ("mae", "decoder_layers", None),
            ("mae", "decoder_width", None),
        ):
            value = getattr(self, name)
            if value != default and self.method != method:
                raise ValueError(
                    f"--{name.replace('_', '-')} is for --method {method}. "
                    f"Received: {value} with --method {self.method}"
                )


def main(config):
    cli.show_log()
    with cli.user_errors():
        strategy, data, output = training.begin(config)
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        training.print_results(results, output)


def train(config, data, strategy, output):
    """Trains with settings that `resolve_config` has filled in.

    Returns:
        Dict. The content of `config.json`.
    """
    summary = f"{config.method}, {config.mask_ratio:.0%} masked"
    with training.Run(
        config, data, strategy, output, summary, metric="loss"
    ) as run:
        # 1. Data: batches of images; labels are not used. A resumed run begins
        # with batch `start`.
        def train_batches(start):
            return data.train(
                batch_size=config.batch_size,
                micro_batches=config.accumulate,
                seed=config.seed,
                start=start,
                shard=strategy.process,
                **config.batches(),
                **config.augmentation(data.channels),
            )

        test = data.evaluation(
            batch_size=run.micro_batch_size,
            shard=strategy.process,
            pad=True,
            **config.batches(),
        )
        test = run.distribute(test)

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
        pictures = reconstructions(config, data, strategy, output)
        for batches, steps, epochs in run.fit_calls(
            model, schedule, train_batches, test
        ):
            model.fit(
                batches,
                steps_per_epoch=steps,
                epochs=epochs,
                validation_data=test,
                callbacks=[*pictures, *run.callbacks],
                shuffle=False,  # the batches are shuffled already
                verbose=0,  # a callback prints a line for each evaluation
            )

        # 5. Results: encoder and whole model, metrics, plots and settings.
        return run.save(model, masked.save_masked)


def reconstructions(config, data, strategy, output):
    """Returns a list with the callback that plots reconstructions.

    It is empty on several devices and on all but the first process.
    """
    # A sharded model computes only if all processes call it.
    if not strategy.is_main or strategy.num_devices > 1:
        return []
    batches = data.test(**config.batches(), batch_size=min(8, data.num_test))
    images, _ = plots.sample_evenly(batches, data.num_test, count=8)
    return [
        masked.Reconstructions(
            images,
            output / "reconstructions",
            (config.picture_every or config.evaluate_every) * config.accumulate,
            config.accumulate,
            config.mode,
        )
    ]


def resolve_config(given, data):
    """Returns the config with values for all settings that are None.

    Args:
        given: `Config`.
        data: `keras_vit.data.ImageDataset`.

    Raises:
        ValueError: if settings do not fit the model or the dataset.
    """
    method = masked.get_masked_method(given.method, given.model)
    spec = training.resolve_model_spec(given.model, None, given.patch_size)
    if spec["stride"] != 1:
        raise ValueError(
            f"{given.model} is no Vision Transformer: give one, such as ViTB16."
        )
    image_size, patch_size = training.resolve_sizes(
        (given.image_size, spec["image_size"], data.image_size, 64),
        spec["patch_size"],
        spec["stride"],
    )
    batch = given.batch_size
    if batch is None:
        power_of_two = 2 ** max(0, (data.num_train // 20).bit_length() - 1)
        batch = max(min(method.batch_size, power_of_two), given.accumulate)
    batch = given.whole_batch(batch, data.num_train)
    epoch = data.num_train / batch
    steps = given.steps or method.steps
    if given.epochs or not steps:
        steps = max(1, round((given.epochs or method.epochs) * epoch))
    warmup = given.warmup_steps
    if warmup is None:
        warmup = method.warmup_steps or round(method.warmup_epochs * epoch)
        warmup = min(warmup, steps // 5)
    ratio = batch / method.batch_size if method.scaled else 1
    filled = {
        name: getattr(method, name)
        for name in (
            "weight_decay",
            "mask_ratio",
            "decoder_layers",
            "decoder_width",
            "clip",
            "drop_path",
            "mask_patch_size",
        )
        if getattr(given, name) is None
    }
    if given.masking == "block" and given.mask_patch_size is None:
        filled["mask_patch_size"] = None
    unit = filled.get("mask_patch_size", given.mask_patch_size)
    if unit and (unit % patch_size or image_size % unit):
        raise ValueError(
            "--mask-patch-size must be a multiple of the patch size, "
            f"{patch_size}, that divides the image size, {image_size}: for "
            f"example {patch_size}. Received: {unit}"
        )
    small = data.image_size is not None and data.image_size < 96
    mode = method.mode if data.channels == 3 else "tf"
    every = given.evaluate_every or max(1, min(steps // 10, round(10 * epoch)))
    return dataclasses.replace(
        given,
        steps=steps,
        epochs=None,  # converted to steps
        evaluate_every=every,
        image_size=image_size,
        patch_size=patch_size,
        batch_size=batch,
        learning_rate=given.learning_rate or method.learning_rate * ratio,
        warmup_steps=warmup,
        mode=given.mode or mode,
        protocol=given.protocol or ("simple" if small else method.protocol),
        **filled,
    )


def learning_rate_schedule(config):
    method = masked.get_masked_method(config.method, config.model)
    peak, warmup = config.learning_rate, config.warmup_steps
    if method.milestone is None:
        return WarmupDecay(peak, config.steps, warmup, "cosine")
    milestones = [max(warmup, round(method.milestone * config.steps))]
    return WarmupMultiStep(
        peak, warmup, milestones, start=method.warmup_start * peak
    )


def build_optimizer(config, schedule):
    method = masked.get_masked_method(config.method, config.model)
    options = {
        **config.optimizer_options(),
        "global_clipnorm": config.clip or None,
        "decay_kernels_only": method.not_decayed is None,
    }
    optimizer = AdamW(
        schedule, config.weight_decay, beta_2=method.beta_2, **options
    )
    if method.not_decayed is not None:
        optimizer.exclude_from_weight_decay(var_names=method.not_decayed)
    return optimizer


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
