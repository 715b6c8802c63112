"""Training of DINO and MoCo v3: initial weights, models and callbacks."""

import math
import pathlib
from typing import Any

import keras
import numpy as np

from keras_vit import inspection
from keras_vit import pretraining
from keras_vit._logging import logger
from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.converters import save
from keras_vit.models import weights_by_path
from keras_vit.optimizers import inner_optimizer
from keras_vit.schedules import CosineSchedule
from keras_vit.training.callbacks import Logs
from keras_vit.training.callbacks import PeriodicPlots
from keras_vit.training.masked import save_masked
from keras_vit.training.models import build_model
from keras_vit.training.models import lossless_layout
from keras_vit.training.plots import unit_range
from keras_vit.training.run_folder import atomic_write
from keras_vit.training.run_folder import log_os_errors

# Mean of the metric `teacher_diversity` over an interval, below which the
# outputs hardly depend on the image.
COLLAPSED = 0.01


def initialize_dino(encoder: keras.Model, seed: int) -> None:
    """Initializes the weights of an encoder as facebookresearch/dino,
    vision_transformer.py.

    Weights are sampled from a normal distribution with a standard deviation of
    0.02, and those of the patch embedding from PyTorch's default for
    convolutions.
    """
    rng = np.random.default_rng(seed)
    for path, variable in weights_by_path(encoder).items():
        shape, name = tuple(variable.shape), path.rpartition("/")[2]
        if path.startswith("patch_embedding/"):
            inputs = encoder.get_layer("patch_embedding").kernel.shape[:-1]
            bound = 1 / math.sqrt(math.prod(inputs))
            value = rng.uniform(-bound, bound, shape)
        elif name in ("kernel", "tokens", "embedding"):
            value = rng.normal(0, 0.02, shape)
        elif name == "bias":
            value = np.zeros(shape)
        else:
            continue
        variable.assign(value.astype("float32"))


def initialize_moco(encoder: keras.Model, seed: int) -> None:
    """Initializes the weights of an encoder as facebookresearch/moco-v3,
    vits.py.

    Matrices are sampled from Glorot's uniform distribution, query, key and
    value each as a square one, and the class token from a normal distribution
    with a standard deviation of 1e-6. Positions are fixed later.
    """
    rng = np.random.default_rng(seed)
    width = encoder.output_shape[-1]
    for path, variable in weights_by_path(encoder).items():
        shape, name = tuple(variable.shape), path.rpartition("/")[2]
        if name == "kernel":
            # The widths of attention's heads are two of the axes.
            size = math.prod(shape)
            inputs = width if "attention" in path else math.prod(shape[:-1])
            bound = math.sqrt(6 / (inputs + size // inputs))
            value = rng.uniform(-bound, bound, shape)
        elif name == "tokens":
            value = rng.normal(0, 1e-6, shape)
        elif name == "bias":
            value = np.zeros(shape)
        else:
            continue
        variable.assign(value.astype("float32"))


INITIALIZERS = {"dino": initialize_dino, "moco": initialize_moco}


def build_momentum_model(
    config: Any, channels: int
) -> pretraining.DINO | pretraining.MoCoV3:
    """Builds the model that a recipe's flags specify, for images of this number
    of channels."""
    # MoCo v3's ViT-S/16 has heads of 32 channels.
    is_small = (config.method, config.model) == ("mocov3", "ViTS16")
    heads: dict[str, Any] = {"num_heads": 12} if is_small else {}
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
        **heads,
    )
    if config.initialize is not None:
        INITIALIZERS[config.initialize](encoder, config.seed)
    momentum = CosineSchedule(config.teacher_momentum, 1.0, config.steps)
    if config.method == "mocov3":
        return pretraining.MoCoV3(
            encoder,
            output_dim=config.output_dim,
            hidden_dim=config.hidden_dim,
            teacher_momentum=momentum,
            temperature=config.temperature,
        )
    return pretraining.DINO(
        encoder,
        output_dim=config.output_dim,
        hidden_dim=config.hidden_dim,
        bottleneck_dim=config.bottleneck_dim,
        teacher_momentum=momentum,
        teacher_temperature=config.teacher_temperature,
        student_temperature=config.temperature,
        center_momentum=(
            None if config.no_centering else config.center_momentum
        ),
        frozen_steps=config.frozen_steps,
        koleo_weight=config.koleo_weight,
        seed=config.seed,
    )


def weight_decay_schedule(config: Any) -> float | CosineSchedule:
    """Returns the weight decay of a method, a float or a schedule."""
    if not config.weight_decay_end:
        return config.weight_decay
    return CosineSchedule(
        config.weight_decay, config.weight_decay_end, config.steps
    )


def save_momentum_model(
    model: pretraining.DINO | pretraining.MoCoV3, output: pathlib.Path
) -> None:
    """Writes the whole model, `model.keras`, and its pre-trained encoder,
    `encoder.keras` and `encoder.npz`: the teacher of DINO and the student of
    MoCo v3, as published."""
    save_masked(model, output)
    encoder = model.pretrained_encoder
    layout = lossless_layout(encoder) or "timm"
    save(encoder, output / "encoder.npz", layout, overwrite=True)


class ReportCollapse(keras.callbacks.Callback):
    """Warns once if the outputs of the teacher no longer depend on the image.

    After each interval between two evaluations it reads the metric
    `teacher_diversity`, which is 0 if the outputs for all images are the same.
    DINO begins with outputs that are almost the same, and these are not
    reported: a model has collapsed if the diversity is below `minimum` in
    `intervals` successive intervals that end `after` this step. The attribute
    `step` is that at which collapse was found, or None.
    """

    def __init__(
        self, after: int = 0, minimum: float = COLLAPSED, intervals: int = 2
    ) -> None:
        super().__init__()
        self._after, self._minimum = after, minimum
        self._intervals, self._low = intervals, 0
        self.step = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        diversity = float(logs["teacher_diversity"])
        # Under JAX, the optimizer's variables are stale during training.
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        optimizer = inner_optimizer(self.model)
        step = int(keras.ops.convert_to_numpy(optimizer.iterations))
        is_low = diversity < self._minimum and step > self._after
        self._low = self._low + 1 if is_low else 0
        if self.step is not None or self._low < self._intervals:
            return
        self.step = step
        logger.warning(
            "collapse: the teacher has the same output for all images at step "
            "%d (diversity %.4f of 1, less than %g). Against it help centring, "
            "a lower --teacher-temperature, a higher --teacher-momentum, a "
            "lower learning rate and larger batches.",
            self.step,
            diversity,
            self._minimum,
        )


class AttentionPictures(PeriodicPlots):
    """Plots the attention of the class token in the last block, head by head.

    It is Figure 1 of "Emerging Properties in Self-Supervised Vision
    Transformers" (https://arxiv.org/abs/2104.14294), during training.
    """

    def __init__(
        self, images: Array, folder: pathlib.Path, every: int, mode: str = "tf"
    ) -> None:
        super().__init__(every)
        self._images, self._folder, self._mode = images, folder, mode

    def plot(self, step: int) -> None:
        encoder = self.model.pretrained_encoder
        maps = inspection.attention_maps(encoder, self._images, layers=-1)[0]
        rows, columns = self.model.stages.grid_size
        first = self.model.stages.num_prefix
        if self.model.stages.has_class_token:
            heads = maps[:, :, 0, first:]
        else:  # of the mean patch
            heads = maps[:, :, first:, first:].mean(axis=2)
        heads = heads.reshape(*heads.shape[:2], rows, columns)
        plot_attention(
            unit_range(self._images, self._mode),
            heads,
            self._folder / f"step-{step:08}.png",
            f"step {step}",
        )


def plot_attention(
    images: Array, heads: Array, path: pathlib.Path, title: str
) -> None:
    """Plots images with values in [0, 1] and the attention of each head,
    `(images, heads, rows, columns)`, in columns."""
    count, num_heads = heads.shape[:2]
    figure = require("matplotlib.figure").Figure(
        figsize=(1.1 * count + 0.6, 1.1 * (num_heads + 1) + 0.4),
        dpi=110,
        layout="constrained",
    )
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(num_heads + 1, count, squeeze=False)
    for axes, image, maps in zip(grid.T, images, heads, strict=True):
        grey = image.shape[-1] == 1
        shown = image[..., 0] if grey else image
        axes[0].imshow(shown, cmap="gray", vmin=0, vmax=1)
        for one, attention in zip(axes[1:], maps, strict=True):
            one.imshow(attention, cmap="inferno")
        for one in axes:
            one.set(xticks=[], yticks=[])
    names = ("image", *(f"head {i + 1}" for i in range(num_heads)))
    for one, name in zip(grid[:, 0], names, strict=True):
        one.set_ylabel(name, fontsize=9)
    with log_os_errors(path.name), atomic_write(path) as temporary:
        figure.savefig(temporary)
