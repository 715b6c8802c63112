"""Published settings of training: each is one `Published`, which is data.

This module does not import Keras, which flags need not wait for."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

# The models of `sizes.COMPACT`.
COMPACT_NAMES = ("compact-vit", "compact-hybrid", "compact-bit")

# Settings of which one replaces the others.
ALTERNATIVES = (
    {"steps", "epochs"},
    {"warmup", "warmup_steps", "warmup_epochs"},
    {"frozen_steps", "frozen_epochs"},
)


def with_alternatives(names: Iterable[str]) -> set[str]:
    """Returns names of settings and of their `ALTERNATIVES`."""
    names = set(names)
    return names.union(*(group for group in ALTERNATIVES if group & names))


def override(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns settings in which those given replace the others of the same
    name and their alternatives."""
    replaced = with_alternatives(given)
    return {k: v for k, v in values.items() if k not in replaced} | given


def _dict() -> Any:
    return dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Published:
    """Settings of a published run, by the names of a config's fields.

    Settings of a model replace those of a dataset, which replace the others.
    `by_dataset` has names in TFDS as keys, or pairs of a model and a dataset.
    `left_out` is the fraction of the training images, by dataset, that the
    published run does not train on. `differs` says what differs from `source`.
    """

    source: str
    settings: dict[str, Any]
    by_dataset: dict[Any, dict[str, Any]] = _dict()
    by_model: dict[str | None, dict[str, Any]] = _dict()
    left_out: dict[str, float] = _dict()
    differs: str = ""

    def has(self, name: str) -> bool:
        """Returns whether a setting has a value in some run."""
        tables = [self.settings, *self.by_dataset.values(), *self.by_model.values()]
        return any(table.get(name) is not None for table in tables)

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings that fields of a config have which are None;
        raises a `ValueError` if there are none for its model or dataset."""
        preset = config.get("preset")
        dataset = str(config.get("dataset")).partition(":")[0]
        model = config.get("model") or self.settings.get("model")
        given = {k: v for k, v in config.items() if v is not None}
        values = override(self.settings, self.by_dataset.get(dataset, {}))
        values = override(values, self.by_dataset.get((model, dataset), {}))
        values = override(values, self.by_model.get(model, {}))
        values = override(values, given)
        for table, key in ((self.by_dataset, dataset), (self.by_model, model)):
            if None in table:
                continue
            needed = dict.fromkeys(x for some in table.values() for x in some)
            there = with_alternatives(values)
            if missing := [name for name in needed if name not in there]:
                raise ValueError(
                    f"--preset {preset} has settings for "
                    f"{', '.join(x for x in table if isinstance(x, str))}. "
                    f"For {key or 'other models'}, give "
                    + ", ".join(f"--{x.replace('_', '-')}" for x in missing)
                    + " too."
                )
        return {k: v for k, v in values.items() if k not in given and v is not None}


PAPER = "https://arxiv.org/abs/2010.11929"  # "An Image is Worth 16x16 Words"
AUGREG = "https://arxiv.org/abs/2106.10270"  # "How to train your ViT?"
BIT = "https://arxiv.org/abs/1912.11370"  # "Big Transfer (BiT)"
# "Training data-efficient image transformers & distillation through attention"
DEIT = "https://arxiv.org/abs/2012.12877"

# big_vision trains on `train[:99%]` of ImageNet. On ImageNet-21k it trains
# without the first 51,200 images, which the user has to keep apart as test set.
_MINIVAL = {"imagenet2012": 0.01}

# What most of the published runs of pre-training share. With `rate_images`,
# the learning rate is for batches of that size, and proportional to the batch
# size. At the peak learning rate, each step subtracts `weight_decay` times the
# published learning rate times a kernel from the kernel. `augment` is a level
# of RandAugment and mixup. `representation`: a hidden tanh layer in the head.
# `positions_of_big_vision`: initial values with a standard deviation of
# 1 / sqrt(width), and no embedding for the class token.
_COMMON = {
    "batch_size": 4096,
    "warmup_steps": 10_000,
    "optimizer": "adam",
    "momentum_dtype": "float32",
    "clip": 1.0,
    "loss": "softmax",
    "head_bias": 0.0,
    "dropout": 0.0,
    "drop_path": 0.0,
    "representation": False,
    "positions_of_big_vision": False,
    "protocol": "pretrain",
    "mode": "tf",
}
_AUGREG = {
    **_COMMON,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,  # published as 0.1 * learning_rate = 1e-4
    "epochs": 300,
    "decay": "cosine",
    "model": "ViTB16",
    "momentum_dtype": "bfloat16",
    "loss": "sigmoid",
    "positions_of_big_vision": True,
}
_BIT = {
    **_COMMON,
    "learning_rate": 0.48,  # 0.03 for 256 images
    "rate_images": 4096,
    # The paper adds 1e-4 times the weights to the gradient, which momentum
    # multiplies by 1 / (1 - 0.9). big_vision has the same decay, 3e-5 at a peak
    # learning rate of 0.03.
    "weight_decay": 1e-3,
    "epochs": 90,
    "decay": "staircase",
    "model": "BiT_R50x1",
    "warmup_steps": 5000,
    "optimizer": "sgd",
    "clip": 0.0,
}

# Also in the fine-tuning of MAE. `augment` is rand-m9-mstd0.5-inc1 of timm: 2
# operations of magnitude 9 of 10.
_DEIT_AUGMENTATION = {
    "protocol": "mae-finetune",
    "augment": "light2",
    "mixup": 0.8,
    "cutmix": 1.0,
    "erase": 0.25,
    "label_smoothing": 0.1,
}


def _levels(**levels: str) -> dict[str | None, dict[str, Any]]:
    return {model: {"augment": level} for model, level in levels.items()}


PRE_TRAINING: dict[str | None, Published] = {
    "paper-imagenet21k": Published(
        f"{PAPER}, Table 3, and its authors on the loss",
        {
            **_COMMON,
            "learning_rate": 1e-3,
            "weight_decay": 0.03,
            "epochs": 90,
            "decay": "linear",
            "model": "ViTB16",
            "clip": 0.0,
            "loss": "sigmoid",
            "head_bias": -10.0,
            "dropout": 0.1,
            "representation": True,
        },
    ),
    "paper-imagenet": Published(
        f"{PAPER}, Table 3",
        {
            **_COMMON,
            "learning_rate": 3e-3,
            "weight_decay": 0.3,
            "epochs": 300,
            "decay": "cosine",
            "model": "ViTB16",
            "dropout": 0.1,
            "representation": True,
        },
    ),
    # The released checkpoints have a class token; the last version of the code
    # has global average pooling instead.
    "augreg-imagenet21k": Published(
        f"{AUGREG}; big_vision/configs/vit_i21k.py",
        {**_AUGREG, "head_bias": -10.0},
        by_model=_levels(
            ViTTi16="none",
            ViTS32="none",
            ViTS16="light1",
            ViTB32="light2",
            ViTB16="light2",
            ViTL16="medium2",
        ),
        left_out=_MINIVAL,
    ),
    "augreg-imagenet": Published(
        f"{AUGREG}; big_vision/configs/vit_i1k.py",
        {**_AUGREG, "head_bias": -6.9, "representation": True},
        by_model=_levels(
            ViTTi16="light1",
            ViTS32="medium1",
            ViTS16="medium2",
            ViTB32="medium2",
            ViTB16="medium2",
            ViTL16="medium2",
        ),
        left_out=_MINIVAL,
    ),
    "big-vision-s16": Published(
        "https://arxiv.org/abs/2205.01580; big_vision/configs/vit_s16_i1k.py",
        {
            **_COMMON,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "epochs": 90,
            "decay": "cosine",
            "model": "ViTS16",
            "batch_size": 1024,
            "momentum_dtype": "bfloat16",
            "augment": "light2",
            "pooling": "gap",
            "position_embedding": "sincos2d",
            "representation": True,
        },
        left_out=_MINIVAL,
    ),
    # With --teacher, a model with a distillation token that learns the
    # teacher's classes, as DeiT with the alembic sign. Its soft distillation
    # has --distill-loss soft --alpha 0.1 --temperature 3 (Section 5.2).
    "deit": Published(
        f"{DEIT}, Table 9; facebookresearch/deit, main.py",
        {
            **_COMMON,
            "learning_rate": 1e-3,  # 5e-4 for 512 images
            "rate_images": 1024,
            "batch_size": 1024,
            "weight_decay": 0.05,
            "epochs": 300,
            "warmup_steps": None,
            "warmup_epochs": 5,
            "decay": "cosine",
            "model": "ViTB16",
            "clip": 0.0,
            "drop_path": 0.1,
            "mode": "torch",
            "distill": "token",
            **_DEIT_AUGMENTATION,
        },
        differs="each image is in a batch once, not three times (repeated "
        "augmentation); other initial weights; the tanh approximation of GELU; "
        "a last learning rate of 0, not 1e-5; any teacher, not RegNetY-16GF",
    ),
    # The paper does not clip gradients. big_vision's configs, below, clip them
    # to a global norm of 1.
    "bit-s": Published(f"{BIT}, Section 3.3, on ImageNet", _BIT),
    "bit-m": Published(
        f"{BIT}, Section 3.3, on ImageNet-21k; loss of big_vision's",
        {**_BIT, "loss": "sigmoid", "head_bias": -10.0},
    ),
    "big-vision-bit-imagenet": Published(
        "big_vision/configs/bit_i1k.py",
        {
            **_BIT,
            "learning_rate": 1.6,  # 0.1 for 256 images
            "decay": "cosine",
            "warmup_steps": 1000,
            "clip": 1.0,
            "momentum_dtype": "bfloat16",
            # The model of bit_i1k.py is `bit`, a post-activation ResNet with an
            # initial scale of zero in the last norm of each unit. That of
            # bit_i21k.py is `bit_paper`.
            "preactivation": False,
        },
        left_out=_MINIVAL,
    ),
    "big-vision-bit-imagenet21k": Published(
        "big_vision/configs/bit_i21k.py",
        {
            **_BIT,
            "decay": "cosine",
            "clip": 1.0,
            "momentum_dtype": "bfloat16",
            "loss": "sigmoid",
            "head_bias": -10.0,
        },
    ),
    # Without --preset, these settings of this package are used. They are for
    # datasets of any size.
    None: Published(
        "chosen here",
        {
            **_COMMON,
            "learning_rate": 3e-3,
            "weight_decay": 0.05,
            "epochs": 100,
            "decay": "cosine",
            "representation": True,
        },
    ),
}

# The settings of fine-tuning that were chosen here.
_OWN = {
    "loss": "softmax",
    "clip": 1.0,
    "momentum_dtype": "float32",
    "dropout": 0.0,
    "drop_path": 0.0,
    "protocol": "simple",
    "label_smoothing": 0.0,
    "augment": "none",
    "erase": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
}
_VIT_JAX = {
    **_OWN,
    "optimizer": "sgd",
    "learning_rate": 0.03,
    "protocol": "vit_jax",
    "image_size": 384,
    "batch_size": 512,
    "momentum_dtype": "bfloat16",
}
_CIFAR = {"steps": 10_000, "warmup_steps": 500}
_SMALL_SETS = {"steps": 500, "warmup_steps": 100}
_BY_DATASET = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "imagenet2012": {"steps": 20_000, "warmup_steps": 500},
    "oxford_iiit_pet": _SMALL_SETS,
    "oxford_flowers102": _SMALL_SETS,
}
_LAST_ONES = {"cifar10": 0.02, "cifar100": 0.02, "imagenet2012": 0.01}
_DROPOUT = ("ViTL16", "ViTH14", "R50ViTB16", "R50ViTL32")

FINE_TUNING: dict[str | None, Published] = {
    # configs/common.py has CIFAR and ImageNet. Pets and Flowers have the steps
    # of the paper's Table 4 and the warm-up of configs/augreg.py, and train on
    # all images.
    "vit_jax": Published(
        f"{PAPER}, Table 4; vit_jax/configs/vit.py, common.py, models.py",
        _VIT_JAX,
        by_dataset={
            **_BY_DATASET,
            ("ViTB16", "cifar10"): {"learning_rate": 0.01},
        },
        by_model={name: {"dropout": 0.1} for name in _DROPOUT},
        left_out=_LAST_ONES,
    ),
    # For any dataset. According to its source, learning rate and steps are
    # often overridden.
    "vit_jax-augreg": Published(
        f"{AUGREG}; vit_jax/configs/augreg.py",
        {**_VIT_JAX, "steps": 500, "warmup_steps": 100},
    ),
    # According to its source, these learning rates were best for B/32: 0.03 on
    # ImageNet, 0.01 on CIFAR-100, 0.003 on CIFAR-10, Pets and Flowers.
    "big_vision": Published(
        "big_vision/configs/transfer.py",
        {**_VIT_JAX, "learning_rate": 0.01, "protocol": "big_vision"},
        by_dataset=_BY_DATASET,
        left_out={
            **_LAST_ONES,
            "oxford_iiit_pet": 0.1,
            "oxford_flowers102": 0.1,
        },
    ),
    # main_finetune.py has the defaults, FINETUNE.md the values by model, which
    # differ from Table 9 of the paper: its base learning rate is 1e-3, its
    # layer decay 0.75, and ViT-L has a drop path rate of 0.1.
    "mae": Published(
        "https://arxiv.org/abs/2111.06377; facebookresearch/mae, FINETUNE.md",
        {
            **{k: v for k, v in _OWN.items() if k != "drop_path"},
            **_DEIT_AUGMENTATION,
            "image_size": 224,
            "batch_size": 1024,
            "rate_images": 256,
            "optimizer": "adamw",
            "weight_decay": 0.05,
            "clip": 0.0,
            "pooling": "gap",
        },
        by_model={
            "ViTB16": {
                "learning_rate": 5e-4,
                "epochs": 100,
                "warmup": 5 / 100,
                "layer_decay": 0.65,
                "drop_path": 0.1,
            },
            "ViTL16": {
                "learning_rate": 1e-3,
                "epochs": 50,
                "warmup": 5 / 50,
                "layer_decay": 0.75,
                "drop_path": 0.2,
            },
            "ViTH14": {
                "learning_rate": 1e-3,
                "epochs": 50,
                "warmup": 5 / 50,
                "layer_decay": 0.75,
                "drop_path": 0.3,
            },
        },
    ),
    # The recipe derives the values that are None from the images, and has the
    # schedule `schedules.BiTHyperRule`.
    "bit-hyperrule": Published(
        f"{BIT}, Section 3.3; bit_hyperrule.py of google-research/big_transfer",
        {
            **_OWN,
            "optimizer": "sgd",
            "learning_rate": 0.003,
            "protocol": "bit-hyperrule",
            "image_size": None,
            "mixup": None,
            "batch_size": 512,
            "clip": 0.0,
        },
        left_out=_LAST_ONES,
    ),
    None: Published("chosen here", {**_OWN, "warmup": 0.1}),
}

_NOT_DECAYED = ("bias", "gamma", "beta")  # one-dimensional in PyTorch
# Without --model, these settings replace the published ones. They are this
# package's own, for runs of minutes on two CPU cores.
_SMALL_MASKED = {
    "learning_rate": 3e-3,
    "rate_images": None,
    "batch_size": 64,
    "epochs": 100,
    "warmup_epochs": 10,
    "milestone": None,
    "clip": None,
    "drop_path": 0.0,
    "encoder": {},
    "initialize": None,
}


def _small(settings: dict[str, Any]) -> dict[str | None, dict[str, Any]]:
    """Returns `by_model` with settings of the small models."""
    return {model: settings for model in (None, *COMPACT_NAMES)}


# `learning_rate` is for `batch_size` images, and with `rate_images`
# proportional to the batch size. Each step subtracts `weight_decay` times the
# learning rate times the weights, except of variables that `not_decayed` names;
# None decays only kernels. `milestone` multiplies the learning rate by 0.1
# after this fraction of the steps; None is for a cosine. `warmup_start` is a
# fraction of the peak learning rate.
MASKED = {
    "mpp": Published(
        "https://arxiv.org/abs/2010.11929, Appendix B.1.2",
        {
            "learning_rate": 2e-4,
            "batch_size": 4096,
            "weight_decay": 0.0,
            "beta_2": 0.999,
            "mask_ratio": 0.5,
            "steps": 1_000_000,
            "warmup_steps": 10_000,
            "protocol": "pretrain",
            "mode": "tf",
            "drop_path": 0.0,
            "encoder": {},
        },
        by_model=_small(_SMALL_MASKED),
    ),
    # It is not called "simmim", because of the differences in `differs`.
    "mim": Published(
        "microsoft/SimMIM, configs/vit_base__800ep (arXiv 2111.09886)",
        {
            "learning_rate": 4e-4,  # 1e-4 for 512 images
            "rate_images": 2048,
            "batch_size": 2048,
            "weight_decay": 0.05,
            "beta_2": 0.999,
            "mask_ratio": 0.6,
            "epochs": 800,
            "warmup_epochs": 10,
            "protocol": "simmim",
            "mode": "torch",
            "milestone": 700 / 800,
            "warmup_start": 5e-7 / 1e-4,
            "clip": 5.0,
            "drop_path": 0.1,
            "mask_patch_size": 32,
            "encoder": {"activation": "gelu", "layer_scale": 0.1},
            "not_decayed": (*_NOT_DECAYED, "embedding"),
            "initialize": "simmim",
        },
        by_model=_small({**_SMALL_MASKED, "mask_patch_size": None}),
        differs="learned absolute positions instead of a relative position "
        "bias shared by all blocks; the class token decays",
    ),
    "mae": Published(
        "https://arxiv.org/abs/2111.06377, Table 8; facebookresearch/mae",
        {
            "learning_rate": 2.4e-3,  # 1.5e-4 for 256 images
            "rate_images": 4096,
            "batch_size": 4096,
            "weight_decay": 0.05,
            "beta_2": 0.95,
            "mask_ratio": 0.75,
            "epochs": 800,
            "warmup_epochs": 40,
            "decoder_layers": 8,
            "decoder_width": 512,
            "protocol": "mae",
            "mode": "torch",
            "drop_path": 0.0,
            "encoder": {"activation": "gelu"},
            "not_decayed": _NOT_DECAYED,
            "initialize": "mae",
        },
        by_model=_small({**_SMALL_MASKED, "decoder_layers": 2, "decoder_width": 32}),
    ),
}

# Without --model, these settings replace the published ones. They are this
# package's own, for runs of minutes on two CPU cores, and were chosen on digits
# by the k-NN accuracy and the ridge regression of held-out training images.
# - A lower temperature of the teacher, a center that adapts in few steps and
#   KoLeo prevent almost uniform outputs: in the first steps, all images have
#   similar outputs, and the published settings reduce their differences faster
#   than the teacher sharpens them.
# - Crops contain most of the image: a small part of a digit is part of several
#   digits.
_SMALL_MOMENTUM = {
    "learning_rate": 2e-3,
    "batch_size": 64,
    "rate_images": None,
    "epochs": 40,
    "warmup_epochs": 4,
    "weight_decay": 0.04,
    "weight_decay_end": None,
    "teacher_momentum": 0.99,
    "hidden_dim": 256,
    "clip": None,
    "drop_path": 0.0,
    "encoder": {},
    "initialize": None,
}
_SMALL_CROPS = dict(
    global_scale=(0.5, 1.0),
    num_local=2,
    local_size=12,
    local_scale=(0.4, 0.8),
    resizing="bilinear",
    jitter=(0.4, 0.4, 0.0, 0.0),
    gray_probability=0.0,
    blur_probabilities=(0.0, 0.0, 0.0),
    solarize_probability=0.0,
)
# The settings are those of `MASKED` and others. `weight_decay` and
# `teacher_momentum` are those at the first step; by half a cosine, they become
# `weight_decay_end`, unless it is None, and 1 at the last. `clip` is the
# maximum norm of the gradient of each variable, `temperature` the student's,
# and `frozen_epochs` are those of the head's last layer.
MOMENTUM = {
    "dino": Published(
        "facebookresearch/dino, main_dino.py, ViT-S/16 (arXiv 2104.14294)",
        {
            "learning_rate": 0.0005 * 1024 / 256,
            "rate_images": 1024,
            "batch_size": 1024,
            "epochs": 100,
            "warmup_epochs": 10,
            "weight_decay": 0.04,
            "weight_decay_end": 0.4,
            "teacher_momentum": 0.996,
            "output_dim": 65536,
            "hidden_dim": 2048,
            "bottleneck_dim": 256,
            "crops": "dino",
            "local_crops": 8,
            "local_size": 96,
            "clip": 3.0,
            "drop_path": 0.1,
            "temperature": 0.1,
            "teacher_temperature": 0.04,
            "center_momentum": 0.9,
            "koleo_weight": 0.0,
            "frozen_epochs": 1,
            "encoder": {"activation": "gelu", "resampling": "bicubic_offset"},
            "initialize": "dino",
            "not_decayed": _NOT_DECAYED,
            "protocol": "mae",
            "mode": "torch",
        },
        by_model=_small(
            {
                **_SMALL_MOMENTUM,
                "learning_rate": 1e-3,
                "output_dim": 256,
                "bottleneck_dim": 64,
                "teacher_temperature": 0.02,
                "center_momentum": 0.5,
                "koleo_weight": 0.1,
                "crops": _SMALL_CROPS,
                "local_crops": _SMALL_CROPS["num_local"],
                "local_size": _SMALL_CROPS["local_size"],
            }
        ),
        differs="the last learning rate is 0, not 1e-6; the bias corrections "
        "of Adam count the steps in which the last layer is frozen",
    ),
    "mocov3": Published(
        "facebookresearch/moco-v3, CONFIG.md, ViT-S/16 (arXiv 2104.02057)",
        {
            "learning_rate": 1.5e-4 * 4096 / 256,
            "rate_images": 4096,
            "batch_size": 4096,
            "epochs": 300,
            "warmup_epochs": 40,
            "weight_decay": 0.1,
            "teacher_momentum": 0.99,
            "output_dim": 256,
            "hidden_dim": 4096,
            "crops": "mocov3",
            "drop_path": 0.0,
            "temperature": 0.2,
            "encoder": {"activation": "gelu"},
            "initialize": "moco",
            "not_decayed": (),
            "protocol": "mae",
            "mode": "torch",
        },
        by_model=_small(
            {
                **_SMALL_MOMENTUM,
                "output_dim": 64,
                "crops": {**_SMALL_CROPS, "num_local": 0},
            }
        ),
    ),
}
