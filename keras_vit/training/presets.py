"""Published hyperparameters of pre-training and fine-tuning."""

import dataclasses
from typing import Any

from keras_vit.data.dataset import ImageDataset


@dataclasses.dataclass(frozen=True)
class Preset:
    """Published hyperparameters of a pre-training run.

    Fields are named as the flags of the recipe. Their defaults are the values
    that most of the published runs share.
    """

    source: str
    learning_rate: float  # peak learning rate
    # At the peak learning rate, each step subtracts this times `learning_rate`
    # times a kernel from the kernel.
    weight_decay: float
    epochs: int
    decay: str
    model: str | None = None
    batch_size: int = 4096
    warmup_steps: int = 10_000
    optimizer: str = "adam"
    momentum_dtype: str = "float32"
    clip: float = 1.0  # maximum global norm of the gradients; 0 for none
    loss: str = "softmax"
    head_bias: float = 0.0
    dropout: float = 0.0
    drop_path: float = 0.0
    # Level of RandAugment and mixup; a dict has a level for each model.
    augment: str | dict = "none"
    pooling: str | None = None
    position_embedding: str | None = None
    representation: bool = False  # hidden tanh layer in the head
    # Position embeddings as in big_vision: initial values with a standard
    # deviation of 1 / sqrt(width), and no embedding for the class token.
    positions_of_big_vision: bool = False
    preactivation: bool | None = None  # of a BiT; None for its default
    # Fraction of the training images, by dataset, that the published run does
    # not train on.
    holdout: dict = dataclasses.field(default_factory=dict)

    def rate(self, batch_size: int) -> float:
        """Returns the peak learning rate for a batch size.

        For SGD, which BiT uses, it is proportional to the batch size.
        """
        share = batch_size / self.batch_size if self.optimizer == "sgd" else 1
        return self.learning_rate * share

    def fill(self, config: Any) -> Any:
        """Returns a `Config` of recipes/pretrain.py whose fields that are None
        have the preset's values; raises a `ValueError` if no level of
        augmentation was published for the model."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "holdout"
            and getattr(config, field.name, "no flag") is None
        }
        if config.steps:
            values.pop("epochs", None)
        if "batch_size" in values:  # must be a multiple of --accumulate
            micro_batches = max(1, values["batch_size"] // config.accumulate)
            values["batch_size"] = micro_batches * config.accumulate
        levels, model = values.get("augment"), config.model or self.model
        if isinstance(levels, dict):
            if model not in levels:
                raise ValueError(
                    f"--preset {config.preset} has no augmentation for "
                    f"{model}, only for {', '.join(levels)}. Give --augment."
                )
            values["augment"] = levels[model]
        return dataclasses.replace(config, **values)


PAPER = "https://arxiv.org/abs/2010.11929"  # "An Image is Worth 16x16 Words"
AUGREG = "https://arxiv.org/abs/2106.10270"  # "How to train your ViT?"
BIT = "https://arxiv.org/abs/1912.11370"  # "Big Transfer (BiT)"

# big_vision trains on `train[:99%]` of ImageNet. On ImageNet-21k it trains
# without the first 51,200 images, which the user has to keep apart as test set.
_MINIVAL = {"imagenet2012": 0.01}

_AUGREG = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,  # published as 0.1 * learning_rate = 1e-4
    "epochs": 300,
    "decay": "cosine",
    "model": "ViTB16",
    "momentum_dtype": "bfloat16",
    "loss": "sigmoid",
    "positions_of_big_vision": True,
    "holdout": _MINIVAL,
}
_BIT = {
    "learning_rate": 0.48,  # 0.03 for 256 images
    # The paper adds 1e-4 times the weights to the gradient, which momentum
    # multiplies by 1 / (1 - 0.9). big_vision has the same decay, 3e-5 at a peak
    # learning rate of 0.03.
    "weight_decay": 1e-3,
    "epochs": 90,
    "decay": "staircase",
    "model": "BiT_R50x1",
    "warmup_steps": 5000,
    "optimizer": "sgd",
}

PRE_TRAINING: dict[str | None, Preset] = {
    "paper-imagenet21k": Preset(
        f"{PAPER}, Table 3, and its authors on the loss",
        learning_rate=1e-3,
        weight_decay=0.03,
        epochs=90,
        decay="linear",
        model="ViTB16",
        clip=0.0,
        loss="sigmoid",
        head_bias=-10.0,
        dropout=0.1,
        representation=True,
    ),
    "paper-imagenet": Preset(
        f"{PAPER}, Table 3",
        learning_rate=3e-3,
        weight_decay=0.3,
        epochs=300,
        decay="cosine",
        model="ViTB16",
        dropout=0.1,
        representation=True,
    ),
    # The released checkpoints have a class token; the last version of the code
    # has global average pooling instead.
    "augreg-imagenet21k": Preset(
        f"{AUGREG}; big_vision/configs/vit_i21k.py",
        **_AUGREG,
        head_bias=-10.0,
        augment={
            "ViTTi16": "none",
            "ViTS32": "none",
            "ViTS16": "light1",
            "ViTB32": "light2",
            "ViTB16": "light2",
            "ViTL16": "medium2",
        },
    ),
    "augreg-imagenet": Preset(
        f"{AUGREG}; big_vision/configs/vit_i1k.py",
        **_AUGREG,
        head_bias=-6.9,
        representation=True,
        augment={
            "ViTTi16": "light1",
            "ViTS32": "medium1",
            "ViTS16": "medium2",
            "ViTB32": "medium2",
            "ViTB16": "medium2",
            "ViTL16": "medium2",
        },
    ),
    "big-vision-s16": Preset(
        "https://arxiv.org/abs/2205.01580; big_vision/configs/vit_s16_i1k.py",
        learning_rate=1e-3,
        weight_decay=0.1,
        epochs=90,
        decay="cosine",
        model="ViTS16",
        batch_size=1024,
        momentum_dtype="bfloat16",
        augment="light2",
        pooling="gap",
        position_embedding="sincos2d",
        representation=True,
        holdout=_MINIVAL,
    ),
    # The paper does not clip gradients. big_vision's configs, below, clip them
    # to a global norm of 1.
    "bit-s": Preset(f"{BIT}, Section 3.3, on ImageNet", **_BIT, clip=0.0),
    "bit-m": Preset(
        f"{BIT}, Section 3.3, on ImageNet-21k; loss of big_vision's",
        **_BIT,
        clip=0.0,
        loss="sigmoid",
        head_bias=-10.0,
    ),
    "big-vision-bit-imagenet": Preset(
        "big_vision/configs/bit_i1k.py",
        **{
            **_BIT,
            "learning_rate": 1.6,  # 0.1 for 256 images
            "decay": "cosine",
            "warmup_steps": 1000,
        },
        momentum_dtype="bfloat16",
        # The model of bit_i1k.py is `bit`, a post-activation ResNet with an
        # initial scale of zero in the last norm of each unit. That of
        # bit_i21k.py is `bit_paper`.
        preactivation=False,
        holdout=_MINIVAL,
    ),
    "big-vision-bit-imagenet21k": Preset(
        "big_vision/configs/bit_i21k.py",
        **{**_BIT, "decay": "cosine"},
        momentum_dtype="bfloat16",
        loss="sigmoid",
        head_bias=-10.0,
    ),
}
# Without --preset, these settings of this package are used. They are for
# datasets of any size.
PRE_TRAINING[None] = Preset(
    "chosen here",
    learning_rate=3e-3,
    weight_decay=0.05,
    epochs=100,
    decay="cosine",
    representation=True,
)


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Published hyperparameters of fine-tuning.

    Fields are named as the flags of the recipe. Dicts have a value for each
    dataset, by its name in TFDS, unless a comment says otherwise. A field that
    is None leaves its flag to the recipe.
    """

    source: str
    protocol: str
    learning_rate: float | None = None  # peak learning rate
    # None for the values that BiT-HyperRule derives from the number of images,
    # and for `epochs` and `warmup`.
    steps: dict | int | None = None
    warmup_steps: dict | int | None = None
    # The number of images of a batch for which `learning_rate` is, and to which
    # it is proportional; None if it is for any batch.
    images_of_rate: int | None = None
    optimizer: str = "sgd"
    # None for the value that BiT-HyperRule derives from the images.
    image_size: int | None = 384
    batch_size: int = 512
    momentum_dtype: str = "bfloat16"
    clip: float = 1.0  # maximum global norm of the gradients; 0 for none
    # Exceptions to `learning_rate`, by model and dataset.
    learning_rates: dict = dataclasses.field(default_factory=dict)
    dropout: dict | None = None  # by model; 0 for others
    weight_decay: float | None = None
    augment: str | None = None
    mixup: float | None = None
    cutmix: float | None = None
    erase: float | None = None
    label_smoothing: float | None = None
    pooling: str | None = None
    # Dicts of further flags, by model. Other models need these flags.
    by_model: dict = dataclasses.field(default_factory=dict)
    holdout: dict = dataclasses.field(default_factory=dict)

    def fill(self, config: Any, data: ImageDataset) -> Any:
        """Returns a `Config` of recipes/finetune_cifar.py whose fields that are
        None have the preset's values; raises a `ValueError` if these depend on
        the name of the model, which is None, or on another dataset."""
        dataset = config.dataset.split(":")[0]
        depends = self.dropout is not None or self.by_model
        if depends and config.model is None:
            raise ValueError(
                f"--preset {config.preset} depends on the model. Give --model."
            )
        values = {name: getattr(self, name) for name in _PLAIN}
        values["learning_rate"] = self.learning_rates.get(
            (config.model, dataset), self.learning_rate
        )
        values["dropout"] = (self.dropout or {}).get(config.model, 0.0)
        values["steps"] = self.steps
        values["warmup_steps"] = self.warmup_steps
        if self.image_size is None:  # BiT-HyperRule
            small = data.image_size is not None and data.image_size < 96
            values["image_size"] = 128 if small else 480
            values["mixup"] = 0.1 if data.num_train >= 20_000 else 0.0
        values |= self._of_model(config)
        values["batch_size"] = config.whole_batch(
            config.batch_size or self.batch_size, data.num_train
        )
        if self.images_of_rate and values["learning_rate"]:
            values["learning_rate"] *= (
                values["batch_size"] / self.images_of_rate
            )
        if config.epochs or config.steps:
            values = _without(values, "steps", "epochs")
        if config.warmup is not None or config.warmup_steps is not None:
            values = _without(values, "warmup", "warmup_steps")
        values = {
            name: value
            for name, value in values.items()
            if getattr(config, name) is None
        }
        for name, value in values.items():
            if isinstance(value, dict):
                if dataset not in value:
                    raise ValueError(
                        f"--preset {config.preset} has no {name} for "
                        f"{config.dataset!r}, only for {', '.join(value)}. "
                        f"Give --{name.replace('_', '-')}."
                    )
                values[name] = value[dataset]
        return dataclasses.replace(config, **values)

    def _of_model(self, config: Any) -> dict[str, Any]:
        """Returns the flags that depend on the model."""
        if not self.by_model or config.model in self.by_model:
            return self.by_model.get(config.model, {})
        flags = dict.fromkeys(
            name for values in self.by_model.values() for name in values
        )
        if config.steps:
            flags.pop("epochs", None)
        if config.warmup_steps is not None:
            flags.pop("warmup", None)
        missing = [name for name in flags if getattr(config, name) is None]
        if missing:
            raise ValueError(
                f"--preset {config.preset} has settings for "
                f"{', '.join(self.by_model)}. For {config.model}, give "
                + ", ".join(f"--{name.replace('_', '-')}" for name in missing)
                + " too."
            )
        return {}


# The fields of `FineTuning` that need no choice.
_PLAIN = (
    *("protocol", "image_size", "batch_size", "clip", "momentum_dtype"),
    *("weight_decay", "augment", "mixup", "cutmix", "erase"),
    *("label_smoothing", "pooling"),
)


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: value for k, value in values.items() if k not in names}


_CIFAR = {"cifar10": 10_000, "cifar100": 10_000}
_SMALL_SETS = {"oxford_iiit_pet": 500, "oxford_flowers102": 500}
_STEPS = {**_CIFAR, "imagenet2012": 20_000, **_SMALL_SETS}
_WARMUP = {name: 500 if steps > 500 else 100 for name, steps in _STEPS.items()}
_LAST_ONES = {"cifar10": 0.02, "cifar100": 0.02, "imagenet2012": 0.01}

FINE_TUNING = {
    # configs/common.py has CIFAR and ImageNet. Pets and Flowers have the steps
    # of the paper's Table 4 and the warm-up of configs/augreg.py, and train on
    # all images.
    "vit_jax": FineTuning(
        f"{PAPER}, Table 4; vit_jax/configs/vit.py, common.py, models.py",
        protocol="vit_jax",
        learning_rate=0.03,
        learning_rates={("ViTB16", "cifar10"): 0.01},
        steps=_STEPS,
        warmup_steps=_WARMUP,
        dropout={
            "ViTL16": 0.1,
            "ViTH14": 0.1,
            "R50ViTB16": 0.1,
            "R50ViTL32": 0.1,
        },
        holdout=_LAST_ONES,
    ),
    # For any dataset. According to its source, learning rate and steps are
    # often overridden.
    "vit_jax-augreg": FineTuning(
        f"{AUGREG}; vit_jax/configs/augreg.py",
        protocol="vit_jax",
        learning_rate=0.03,
        steps=500,
        warmup_steps=100,
    ),
    # According to its source, these learning rates were best for B/32: 0.03 on
    # ImageNet, 0.01 on CIFAR-100, 0.003 on CIFAR-10, Pets and Flowers.
    "big_vision": FineTuning(
        "big_vision/configs/transfer.py",
        protocol="big_vision",
        learning_rate=0.01,
        steps=_STEPS,
        warmup_steps=_WARMUP,
        holdout={
            **_LAST_ONES,
            "oxford_iiit_pet": 0.1,
            "oxford_flowers102": 0.1,
        },
    ),
    # main_finetune.py has the defaults, FINETUNE.md the values by model, which
    # differ from Table 9 of the paper: its base learning rate is 1e-3, its
    # layer decay 0.75, and ViT-L has a drop path rate of 0.1.
    "mae": FineTuning(
        "https://arxiv.org/abs/2111.06377; facebookresearch/mae, FINETUNE.md",
        protocol="mae-finetune",
        image_size=224,
        batch_size=1024,
        images_of_rate=256,
        optimizer="adamw",
        weight_decay=0.05,
        momentum_dtype="float32",
        clip=0.0,
        # rand-m9-mstd0.5-inc1 of timm: 2 operations of magnitude 9 of 10.
        augment="light2",
        mixup=0.8,
        cutmix=1.0,
        erase=0.25,
        label_smoothing=0.1,
        pooling="gap",
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
    "bit-hyperrule": FineTuning(
        f"{BIT}, Section 3.3; bit_hyperrule.py of google-research/big_transfer",
        protocol="bit-hyperrule",
        # `schedules.BiTHyperRule`, which recipes/finetune_cifar.py chooses.
        learning_rate=0.003,
        steps=None,
        warmup_steps=None,
        image_size=None,
        momentum_dtype="float32",
        clip=0.0,
        holdout=_LAST_ONES,
    ),
}
