"""Masked pre-training: models, initial weights and plots."""

import math
import pathlib
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


INITIALIZERS = {"mae": initialize_mae, "simmim": initialize_simmim}


def build_masked(config: Any, channels: int) -> Any:
    """Builds the masked pre-training model that a recipe's flags specify, for
    images of this number of channels."""
    model = _build(config, channels)
    if config.initialize is not None:
        INITIALIZERS[config.initialize](model, config.seed)
    return model


def _build(config: Any, channels: int) -> Any:
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
        **config.encoder,
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
