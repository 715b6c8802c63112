"""What was published of pre-training, in numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
    """One published pre-training; fields are named as the recipe's flags.

    What is not in a row is as in most of them, below.
    """

    source: str
    learning_rate: float
    # A kernel loses this times `learning_rate` a step, at the peak.
    weight_decay: float
    epochs: int
    decay: str
    model: str | None = None
    batch_size: int = 4096
    warmup_steps: int = 10_000
    optimizer: str = "adam"
    momentum_dtype: str = "float32"
    clip: float = 1.0  # 0 for none
    loss: str = "softmax"
    head_bias: float = 0.0
    dropout: float = 0.0
    drop_path: float = 0.0
    # A level of RandAugment with its mixup, or one by the model's name.
    augment: str | dict = "none"
    pooling: str | None = None
    position_embedding: str | None = None
    representation: bool = False  # tanh layer of the hidden size at the top

    def rate(self, batch_size):
        """Returns the peak rate for a batch; BiT's is proportional to it."""
        share = batch_size / self.batch_size if self.optimizer == "sgd" else 1
        return self.learning_rate * share

    def fill(self, config):
        """Returns a config with the preset's values where it has None.

        Raises:
            ValueError: if a level was published for other models only.
        """
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(config, field.name, "no flag") is None
        }
        if config.steps:
            values.pop("epochs", None)
        if "batch_size" in values:  # of whole parts
            parts = max(1, values["batch_size"] // config.accumulate)
            values["batch_size"] = parts * config.accumulate
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

_AUGREG = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,  # 1e-4 at the peak, there
    "epochs": 300,
    "decay": "cosine",
    "model": "ViTB16",
    "momentum_dtype": "bfloat16",
    "loss": "sigmoid",
}
_BIT = {
    "learning_rate": 0.48,  # 0.03 for 256 images
    # 1e-4 as part of the gradient, which momentum multiplies by
    # 1 / (1 - 0.9). big_vision has the same: 3e-5 at a rate of 0.03.
    "weight_decay": 1e-3,
    "epochs": 90,
    "decay": "staircase",
    "model": "BiT_R50x1",
    "warmup_steps": 5000,
    "optimizer": "sgd",
}

PRESETS = {
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
    # Released files have a class token; the code's last version pools.
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
    ),
    "bit-s": Preset(f"{BIT}, Section 3.3, on ImageNet", **_BIT),
    "bit-m": Preset(
        f"{BIT}, Section 3.3, on ImageNet-21k; loss of big_vision's",
        **_BIT,
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
    ),
    "big-vision-bit-imagenet21k": Preset(
        "big_vision/configs/bit_i21k.py",
        **{**_BIT, "decay": "cosine"},
        momentum_dtype="bfloat16",
        loss="sigmoid",
        head_bias=-10.0,
    ),
}
# Without a preset: for sets of any size.
PRESETS[None] = Preset(
    "chosen here",
    learning_rate=3e-3,
    weight_decay=0.05,
    epochs=100,
    decay="cosine",
    representation=True,
)
