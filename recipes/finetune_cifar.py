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
  python recipes/finetune_cifar.py --dataset cifar100 --model ViTB16 \\
      --weights imagenet21k --image-size 384 --batch-size 512 --sweep paper
      the same with the rate that is best on images held out for it
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

import dataclasses
import math
import os

# TensorFlow's greetings would hide what this program says.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# PyTorch's threads spin while they wait: on a CPU that others use too, a step
# then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from keras_vit import training


@dataclasses.dataclass(frozen=True)
class Config(training.TrainingFlags):
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
        "scratch, whichever is more; with --weights 500, 10000 from 20000 "
        "images on or 20000 from 500000 on, as the paper for Pets, CIFAR and "
        "ImageNet",
    )
    learning_rate: float | None = training.flag(
        None,
        "peak; without it, 0.003 from scratch and 0.03 with --weights",
        "X",
    )
    # The paper: 10,000 of its longest and 500 of 10,000 fine-tuning steps.
    warmup: float = training.flag(
        0.1, "share of the steps with a rising rate", "X"
    )
    # Decay as for the paper's ImageNet models is for runs of 300 epochs.
    weight_decay: float = training.flag(
        0.05, "of AdamW; there is none with --weights", "X"
    )
    mode: str | None = training.flag(
        None,
        "pixels: tf for [-1, 1], torch for ImageNet's mean and deviation; "
        "without it, what weights by name were trained with, else tf",
        "NAME",
    )
    mixup: float | None = training.flag(
        None,
        "p of mixup's Beta(p, p), such as 0.2; none without it, and 0.1 from "
        "20000 images on with --protocol bit-hyperrule",
        "P",
    )

    layer_decay: float | None = training.flag(
        None,
        "each layer's learning rate is this times that of the layer above: "
        "0.75, or 0.65 for ViT-B, after masked pre-training; none without it",
        "X",
    )
    sweep: str | None = training.flag(
        None,
        "learning rates such as 0.003,0.01,0.03, or 'paper' for those of its "
        "Table 4: each trains without the images of --holdout ('paper' "
        "without it) and is measured on them, and the best one trains with "
        "all",
        "X,Y,...",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.sweep is not None:
            training.rates_of(self.sweep)
            if self.learning_rate is not None:
                raise ValueError("Give --sweep or --learning-rate, not both.")
        training.check_numbers(self, "weight_decay", minimum=0)
        training.check_numbers(self, "warmup", minimum=0, below=1)
        if self.layer_decay is not None:
            training.layer_scales(["block_0"], self.layer_decay)


def plan(config, data):
    """Returns the job: what is trained, on what, how long and how fast."""
    config = complete(config, data)
    steps, interval = count_steps(config, data)

    def build():
        return training.build_model(
            config.model,
            config.weights,
            config.patch_size,
            config.seed,
            input_shape=(config.image_size, config.image_size, data.channels),
            classes=len(data.class_names),
            remat=config.remat,
        )

    return training.Job(
        config=config,
        data=data,
        steps=steps,
        interval=interval,
        build=build,
        optimizer=lambda: optimizer_of(config, steps),
        batches=config.batches(),
        augment=config.augmentation(data.channels),
        summary="fine-tuning" if config.weights else "from scratch",
    )


def complete(config, data):
    """Returns the config with its sizes and its learning rate filled in."""
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
    image_size, patch_size = training.choose_sizes(
        sizes, facts["patch_size"], facts["stride"]
    )
    mixup = config.mixup
    if mixup is None:
        mixup = 0.1 if bit and data.num_train >= 20_000 else 0.0
    rate = 0.03 if config.weights and not bit else 0.003
    return dataclasses.replace(
        config,
        image_size=image_size,
        patch_size=patch_size,
        # Few images are one batch.
        batch_size=config.whole_batch(config.batch_size, data.num_train),
        learning_rate=config.learning_rate or rate,
        mixup=mixup,
        cutmix=config.cutmix or 0.0,
        mode=config.mode or facts["mode"],
    )


def optimizer_of(config, steps):
    """Returns the optimizer and its schedule, a function of the step."""
    common = {
        **config.optimizer_options(),
        "layer_decay": config.layer_decay,
    }
    peak = config.learning_rate
    if config.protocol == "bit-hyperrule":
        rate = training.HyperRule(peak, steps)
        return training.SGD(rate, momentum=0.9, **common), rate
    rate = training.warmup_cosine(peak, steps, config.warmup)
    common["global_clipnorm"] = 1.0
    if config.weights:  # Table 4
        return training.SGD(rate, momentum=0.9, **common), rate
    return training.AdamW(rate, config.weight_decay, **common), rate


def count_steps(config, data):
    """Returns the number of steps, and that between two evaluations."""
    steps_per_epoch = math.ceil(data.num_train / config.batch_size)
    if config.epochs:
        return config.epochs * steps_per_epoch, steps_per_epoch
    steps = config.steps
    if steps is None and (config.weights or config.protocol == "bit-hyperrule"):
        # Of the paper's Table 4 and of BiT's rule.
        limits = ((20_000, 500), (500_000, 10_000), (math.inf, 20_000))
        steps = next(n for limit, n in limits if data.num_train < limit)
    elif steps is None:
        steps = max(2400, 30 * steps_per_epoch)
    return steps, max(1, steps // 10)


main = training.sweeping(plan)

if __name__ == "__main__":
    training.run(main, Config, __doc__)
