"""Masked pre-training: published settings, models and plots."""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import pretraining
from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.converters import write_keras
from keras_vit.training.callbacks import PeriodicPlots
from keras_vit.training.models import COMPACT
from keras_vit.training.models import build_model
from keras_vit.training.plots import pixel_range
from keras_vit.training.plots import unit_range
from keras_vit.training.run_folder import atomic_write
from keras_vit.training.run_folder import log_os_errors


@dataclasses.dataclass(frozen=True)
class Method:
    """Published settings of one method of masked pre-training.

    Fields are named as the flags of the recipe; comments explain the others.
    """

    source: str
    model: str
    learning_rate: float  # peak learning rate for `batch_size` images
    # Whether the learning rate is proportional to the batch size.
    scaled: bool
    batch_size: int
    # Each step subtracts this times the learning rate times the weights.
    weight_decay: float
    beta_2: float
    mask_ratio: float
    epochs: int | None = None
    steps: int | None = None
    warmup_epochs: int | None = None
    warmup_steps: int | None = None
    decoder_layers: int | None = None
    decoder_width: int | None = None
    protocol: str = "pretrain"  # for images that are not small
    mode: str = "tf"  # of `preprocess_input`, for three channels
    # Multiplies the learning rate by 0.1 after this fraction of the steps;
    # None for a cosine.
    milestone: float | None = None
    warmup_start: float = 0.0  # as a fraction of the peak learning rate
    clip: float | None = None  # maximum global norm of the gradients
    drop_path: float = 0.0
    mask_patch_size: int | None = None  # pixels
    # Arguments of the encoder.
    encoder: dict = dataclasses.field(default_factory=dict)
    # Names of variables without weight decay; None decays only kernels.
    not_decayed: tuple | None = None
    initialize: Callable | None = None  # (model, seed) -> None
    # Known differences from the source.
    differs: str = ""


_NOT_DECAYED = ("bias", "gamma", "beta")  # one-dimensional in PyTorch


def initialize_mae(model: Any, seed: int) -> None:
    """Initializes the weights of a `MaskedAutoencoder` as facebookresearch/mae,
    models_mae.py.

    That code initializes query, key and value as one matrix by Glorot's uniform
    distribution, so that their range is smaller than that of three square
    matrices by a factor of the square root of 2.
    """
    rng = np.random.default_rng(seed)
    for name, variable in _weights_to_sample(model):
        shape = tuple(variable.shape)
        if name.endswith("tokens"):
            value = rng.normal(0, 0.02, shape)
        elif name.endswith("bias"):
            value = np.zeros(shape)
        else:
            inputs, outputs = _matrix(name, shape)
            if name.endswith(_QUERY_KEY_VALUE):
                outputs *= 3
            bound = math.sqrt(6 / (inputs + outputs))
            value = rng.uniform(-bound, bound, shape)
        variable.assign(value.astype("float32"))


def initialize_simmim(model: Any, seed: int) -> None:
    """Initializes the weights of a `MaskedImageModeling` as microsoft/SimMIM,
    models/simmim.py and vision_transformer.py.

    Weights are sampled from a normal distribution with a standard deviation of
    0.02, truncated at one standard deviation on both sides. The attention
    output and second MLP kernels of block `i`, counted from 1, are divided by
    `sqrt(2 * i)`. The decoder has the default initialization of a PyTorch
    convolution.
    """
    rng = np.random.default_rng(seed)
    for name, variable in _weights_to_sample(model):
        shape = tuple(variable.shape)
        if name.startswith("decoder/"):
            bound = 1 / math.sqrt(model.stages.hidden_size)
            value = rng.uniform(-bound, bound, shape)
        elif name.endswith("bias"):
            value = np.zeros(shape)
        else:
            value = rng.standard_normal(shape)
            while (far := np.abs(value) > 1).any():
                value[far] = rng.standard_normal(far.sum())
            value *= 0.02
        if name.endswith(("attention_output/kernel", "dense_2/kernel")):
            block = int(name.split("/")[0].removeprefix("block_"))
            value /= math.sqrt(2 * (block + 1))
        variable.assign(value.astype("float32"))


_QUERY_KEY_VALUE = ("query/kernel", "key/kernel", "value/kernel")


def _weights_to_sample(model: Any) -> list[tuple[str, keras.Variable]]:
    """Returns the paths and variables of all kernels, biases and tokens."""
    return [
        (path, variable)
        for path, variable in model.variables_by_path().items()
        if path.rpartition("/")[2] in ("kernel", "bias", "tokens")
    ]


def _matrix(path: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the number of inputs and of outputs of a kernel."""
    if path.endswith(_QUERY_KEY_VALUE):
        return shape[0], math.prod(shape[1:])
    return math.prod(shape[:-1]), shape[-1]


METHODS = {
    "mpp": Method(
        "https://arxiv.org/abs/2010.11929, Appendix B.1.2",
        model="ViTB16",
        learning_rate=2e-4,
        scaled=False,
        batch_size=4096,
        weight_decay=0.0,
        beta_2=0.999,
        mask_ratio=0.5,
        steps=1_000_000,
        warmup_steps=10_000,
    ),
    # It is not called "simmim", because of the differences in `differs`.
    "mim": Method(
        "microsoft/SimMIM, configs/vit_base__800ep (arXiv 2111.09886)",
        model="ViTB16",
        learning_rate=4e-4,  # 1e-4 for 512 images
        scaled=True,
        batch_size=2048,
        weight_decay=0.05,
        beta_2=0.999,
        mask_ratio=0.6,
        epochs=800,
        warmup_epochs=10,
        protocol="simmim",
        mode="torch",
        milestone=700 / 800,
        warmup_start=5e-7 / 1e-4,
        clip=5.0,
        drop_path=0.1,
        mask_patch_size=32,
        encoder={"activation": "gelu", "layer_scale": 0.1},
        not_decayed=(*_NOT_DECAYED, "embedding"),
        initialize=initialize_simmim,
        differs="learned absolute positions instead of a relative position "
        "bias shared by all blocks; the class token decays",
    ),
    "mae": Method(
        "https://arxiv.org/abs/2111.06377, Table 8; facebookresearch/mae",
        model="ViTB16",
        learning_rate=2.4e-3,  # 1.5e-4 for 256 images
        scaled=True,
        batch_size=4096,
        weight_decay=0.05,
        beta_2=0.95,
        mask_ratio=0.75,
        epochs=800,
        warmup_epochs=40,
        decoder_layers=8,
        decoder_width=512,
        protocol="mae",
        mode="torch",
        encoder={"activation": "gelu"},
        not_decayed=_NOT_DECAYED,
        initialize=initialize_mae,
    ),
}
# Without --model, these settings replace the published ones. They are this
# package's own, for runs of minutes on two CPU cores.
SMALL = {
    "model": None,
    "learning_rate": 3e-3,
    "scaled": False,
    "batch_size": 64,
    "epochs": 100,
    "steps": None,
    "warmup_epochs": 10,
    "warmup_steps": None,
    "milestone": None,
    "warmup_start": 0.0,
    "clip": None,
    "drop_path": 0.0,
    "mask_patch_size": None,
    "encoder": {},
    "initialize": None,
}
SMALL_DECODER = {"decoder_layers": 2, "decoder_width": 32}


def get_masked_method(name: str, model: str | None) -> Method:
    """Returns the settings of a method: the published ones, or those for small
    models."""
    method = METHODS[name]
    if model is not None and model not in COMPACT:
        return method
    decoder = SMALL_DECODER if name == "mae" else {}
    return dataclasses.replace(method, **SMALL, **decoder)


def build_masked(config: Any, channels: int) -> Any:
    """Builds the masked pre-training model that a recipe's flags specify, for
    images of this number of channels."""
    method = get_masked_method(config.method, config.model)
    model = _build(config, method, channels)
    if method.initialize is not None:
        method.initialize(model, config.seed)
    return model


def _build(config: Any, method: Method, channels: int) -> Any:
    small = config.model is None or config.model in COMPACT
    encoder = build_model(
        config.model,
        None,
        config.patch_size,
        config.seed,
        input_shape=(config.image_size, config.image_size, channels),
        include_top=False,
        pooling=None,
        remat=config.remat,
        drop_path=config.drop_path,
        **method.encoder,
        # The small model has no class token: fine-tuning pools its patches.
        **({"class_token": False} if small else {}),
    )
    options = {"mask_ratio": config.mask_ratio, "seed": config.seed}
    if config.method == "mim":
        return pretraining.MaskedImageModeling(
            encoder,
            masking=config.masking,
            mask_patch_size=config.mask_patch_size,
            **options,
        )
    if config.method == "mpp":
        return pretraining.MaskedPatchPrediction(
            encoder,
            target=config.target,
            value_range=pixel_range(config.mode, channels),
            **options,
        )
    return pretraining.MaskedAutoencoder(
        encoder,
        decoder_hidden_size=config.decoder_width,
        decoder_num_layers=config.decoder_layers,
        decoder_num_heads=max(1, config.decoder_width // 32),  # as published
        **options,
    )


def save_masked(model: Any, output: pathlib.Path) -> None:
    """Writes `model.keras`, the whole model, and `encoder.keras`, which
    `--weights` fine-tunes: with a momentum encoder, it is the one to use after
    training."""
    # A file without optimizer can be loaded after `import keras_vit` alone.
    whole = type(model).from_config(model.get_config())
    for variable, trained in zip(whole.variables, model.variables, strict=True):
        variable.assign(trained)
    encoder = getattr(whole, "pretrained_encoder", whole.encoder)
    for name, saved in (("model", whole), ("encoder", encoder)):
        with atomic_write(output / f"{name}.keras") as temporary:
            write_keras(saved, temporary)


class Reconstructions(PeriodicPlots):
    """Plots images, the masked images and their reconstructions, with the same
    mask in all plots."""

    def __init__(
        self,
        images: Array,
        folder: pathlib.Path,
        every: int,
        micro_batches: int = 1,
        mode: str = "tf",
    ) -> None:
        super().__init__(every, micro_batches)
        self._images, self._folder, self._mode = images, folder, mode

    def plot(self, step: int) -> None:
        seen, filled = self.model.reconstruct(self._images, **self._given())
        rows = [keras.ops.convert_to_numpy(x) for x in (seen, filled)]
        path = self._folder / f"step-{step:08}.png"
        rows = [unit_range(x, self._mode) for x in (self._images, *rows)]
        plot_reconstructions(rows, path, f"step {step}")

    def _given(self) -> dict[str, Array]:
        num_patches = self.model.stages.num_patches
        noise = np.random.default_rng(0).uniform(
            size=(len(self._images), num_patches)
        )
        noise = noise.astype("float32")
        if isinstance(self.model, pretraining.MaskedAutoencoder):
            return {"noise": noise}
        if isinstance(self.model, pretraining.MaskedImageModeling):
            return {"masked": self.model.sample_mask(len(noise), seed=0)}
        # The patches of each image with the highest noise are masked.
        kept = int(num_patches * (1 - self.model.mask_ratio) + 1e-6)
        return {"masked": noise.argsort(1).argsort(1) >= kept}


def plot_reconstructions(
    rows: Sequence[Array], path: pathlib.Path, title: str
) -> None:
    """Plots original, masked and reconstructed images, with values in [0, 1],
    in three rows."""
    names = ("image", "masked", "predicted")
    count = len(rows[0])
    figure = require("matplotlib.figure").Figure(
        figsize=(1.1 * count + 0.6, 3.9), dpi=110, layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes, name, images in zip(grid, names, rows, strict=True):
        for one, image in zip(axes, images, strict=True):
            grey = image.shape[-1] == 1
            shown = image[..., 0] if grey else image
            one.imshow(shown, cmap="gray", vmin=0, vmax=1)
            one.set(xticks=[], yticks=[])
        axes[0].set_ylabel(name, fontsize=9)
    with log_os_errors(path.name), atomic_write(path) as temporary:
        figure.savefig(temporary)
