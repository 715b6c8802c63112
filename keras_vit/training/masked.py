"""Masked pre-training: models, initial weights and plots."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit import pretraining
from keras_vit._types import Array
from keras_vit.converters import write_keras
from keras_vit.training.callbacks import PeriodicPlots
from keras_vit.training.models import COMPACT
from keras_vit.training.models import build_model
from keras_vit.training.plots import pixel_range
from keras_vit.training.plots import plot_grid
from keras_vit.training.plots import unit_range
from keras_vit.training.run_folder import atomic_write


def initialize(
    variables: dict[str, keras.Variable], seed: int, sample: Callable[..., Any]
) -> None:
    """Assigns each variable what `sample` returns for the random generator, its
    path and its shape. If this is None, biases become 0 and others stay."""
    rng = np.random.default_rng(seed)
    for path, variable in variables.items():
        shape = tuple(variable.shape)
        value = sample(rng, path, shape)
        if value is None and path.endswith("/bias"):
            value = np.zeros(shape)
        if value is not None:
            variable.assign(value.astype("float32"))


def initialize_mae(model: Any, seed: int) -> None:
    """Initializes the weights of a `MaskedAutoencoder` as facebookresearch/mae,
    models_mae.py.

    That code initializes query, key and value as one matrix by Glorot's uniform
    distribution, so that their range is smaller than that of three square
    matrices by a factor of the square root of 2.
    """

    def sample(rng: Any, path: str, shape: tuple[int, ...]) -> Array | None:
        if path.endswith("/tokens"):
            return rng.normal(0, 0.02, shape)
        if not path.endswith("/kernel"):
            return None
        inputs, outputs = math.prod(shape[:-1]), shape[-1]
        if path.endswith(("query/kernel", "key/kernel", "value/kernel")):
            inputs, outputs = shape[0], 3 * math.prod(shape[1:])
        bound = math.sqrt(6 / (inputs + outputs))
        return rng.uniform(-bound, bound, shape)

    initialize(model.variables_by_path(), seed, sample)


def initialize_simmim(model: Any, seed: int) -> None:
    """Initializes the weights of a `MaskedImageModeling` as microsoft/SimMIM,
    models/simmim.py and vision_transformer.py.

    Weights are sampled from a normal distribution with a standard deviation of
    0.02, truncated at one standard deviation on both sides. The attention
    output and second MLP kernels of block `i`, counted from 1, are divided by
    `sqrt(2 * i)`. The decoder has the default initialization of a PyTorch
    convolution.
    """
    bound = 1 / math.sqrt(model.stages.hidden_size)

    def sample(rng: Any, path: str, shape: tuple[int, ...]) -> Array | None:
        if path.startswith("decoder/"):
            return rng.uniform(-bound, bound, shape)
        if not path.endswith(("/kernel", "/tokens")):
            return None
        value = rng.standard_normal(shape)
        while (far := np.abs(value) > 1).any():
            value[far] = rng.standard_normal(far.sum())
        value *= 0.02
        if path.endswith(("attention_output/kernel", "dense_2/kernel")):
            block = int(path.split("/")[0].removeprefix("block_"))
            value /= math.sqrt(2 * (block + 1))
        return value

    initialize(model.variables_by_path(), seed, sample)


INITIALIZERS = {"mae": initialize_mae, "simmim": initialize_simmim}


def build_masked(config: Any, channels: int) -> Any:
    """Builds the masked pre-training model that a recipe's flags specify, for
    images of this number of channels."""
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
        model = pretraining.MaskedImageModeling(
            encoder,
            masking=config.masking,
            mask_patch_size=config.mask_patch_size,
            **options,
        )
    elif config.method == "mpp":
        model = pretraining.MaskedPatchPrediction(
            encoder,
            target=config.target,
            value_range=pixel_range(config.mode, channels),
            **options,
        )
    else:
        model = pretraining.MaskedAutoencoder(
            encoder,
            decoder_hidden_size=config.decoder_width,
            decoder_num_layers=config.decoder_layers,
            decoder_num_heads=max(
                1, config.decoder_width // 32
            ),  # as published
            **options,
        )
    if config.initialize is not None:
        INITIALIZERS[config.initialize](model, config.seed)
    return model


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


ROWS = ("image", "masked", "predicted")


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
        images = (self._images, *rows)
        plot_grid(
            {
                name: unit_range(x, self._mode)
                for name, x in zip(ROWS, images, strict=True)
            },
            path,
            f"step {step}",
        )

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
