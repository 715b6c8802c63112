"""Training of DINO and MoCo v3: published settings, models and callbacks."""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit import inspection
from keras_vit import pretraining
from keras_vit._logging import logger
from keras_vit._program import require
from keras_vit._types import Array
from keras_vit.converters import save
from keras_vit.data import CROPS
from keras_vit.data import MultiCrop
from keras_vit.models import weights_by_path
from keras_vit.optimizers import inner_optimizer
from keras_vit.schedules import CosineSchedule
from keras_vit.training.callbacks import Logs
from keras_vit.training.callbacks import PeriodicPlots
from keras_vit.training.masked import save_masked
from keras_vit.training.models import COMPACT
from keras_vit.training.models import build_model
from keras_vit.training.models import lossless_layout
from keras_vit.training.plots import unit_range
from keras_vit.training.run_folder import atomic_write
from keras_vit.training.run_folder import log_os_errors

# Mean of the metric `teacher_diversity` over an interval, below which the
# outputs hardly depend on the image.
COLLAPSED = 0.01


@dataclasses.dataclass(frozen=True)
class Method:
    """Published settings of DINO or MoCo v3.

    Fields are named as the flags of the recipe; comments explain the others.
    """

    source: str
    learning_rate: float  # peak learning rate for `batch_size` images
    batch_size: int
    epochs: int
    warmup_epochs: int
    weight_decay: float  # at the first step
    weight_decay_end: float  # at the last step, by half a cosine
    teacher_momentum: float  # at the first step; 1 at the last one
    output_dim: int
    hidden_dim: int
    crops: MultiCrop
    # Whether the learning rate is proportional to the batch size.
    scaled: bool = True
    clip: float | None = None  # maximum norm of the gradient of each variable
    drop_path: float = 0.0
    temperature: float = 0.1  # of the student
    teacher_temperature: float | None = None
    center_momentum: float | None = None
    koleo_weight: float | None = None
    bottleneck_dim: int = 256
    frozen_epochs: int = 0  # of the head's last layer
    # Arguments of the encoder.
    encoder: dict = dataclasses.field(default_factory=dict)
    initialize: Callable | None = None  # (encoder, seed) -> None
    # Names of variables without weight decay: in PyTorch, biases and norms.
    not_decayed: tuple = ("bias", "gamma", "beta")
    # Known differences from the source.
    differs: str = ""


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


METHODS = {
    "dino": Method(
        "facebookresearch/dino, main_dino.py, ViT-S/16 (arXiv 2104.14294)",
        learning_rate=0.0005 * 1024 / 256,
        batch_size=1024,
        epochs=100,
        warmup_epochs=10,
        weight_decay=0.04,
        weight_decay_end=0.4,
        teacher_momentum=0.996,
        output_dim=65536,
        hidden_dim=2048,
        bottleneck_dim=256,
        crops=CROPS["dino"],
        clip=3.0,
        drop_path=0.1,
        temperature=0.1,
        teacher_temperature=0.04,
        center_momentum=0.9,
        koleo_weight=0.0,
        frozen_epochs=1,
        encoder={"activation": "gelu", "resampling": "bicubic_offset"},
        initialize=initialize_dino,
        differs="the last learning rate is 0, not 1e-6; the bias corrections "
        "of Adam count the steps in which the last layer is frozen",
    ),
    "mocov3": Method(
        "facebookresearch/moco-v3, CONFIG.md, ViT-S/16 (arXiv 2104.02057)",
        learning_rate=1.5e-4 * 4096 / 256,
        batch_size=4096,
        epochs=300,
        warmup_epochs=40,
        weight_decay=0.1,
        weight_decay_end=0.1,
        teacher_momentum=0.99,
        output_dim=256,
        hidden_dim=4096,
        crops=CROPS["mocov3"],
        temperature=0.2,
        encoder={"activation": "gelu"},
        initialize=initialize_moco,
        not_decayed=(),
    ),
}
# Without --model, these settings replace the published ones. They are this
# package's own, for runs of minutes on two CPU cores, and were chosen on digits
# by the k-NN accuracy and the ridge regression of held-out training images.
# - A lower temperature of the teacher, a centre that adapts in few steps and
#   KoLeo prevent almost uniform outputs: in the first steps, all images have
#   similar outputs, and the published settings reduce their differences faster
#   than the teacher sharpens them.
# - Crops contain most of the image: a small part of a digit is part of several
#   digits.
_SMALL = {
    "learning_rate": 2e-3,
    "batch_size": 64,
    "scaled": False,
    "epochs": 40,
    "warmup_epochs": 4,
    "weight_decay": 0.04,
    "weight_decay_end": 0.04,
    "teacher_momentum": 0.99,
    "hidden_dim": 256,
    "clip": None,
    "drop_path": 0.0,
    "encoder": {},
    "initialize": None,
}
_SMALL_CROPS = MultiCrop(
    global_scale=(0.5, 1.0),
    num_local=2,
    local_size=12,
    local_scale=(0.4, 0.8),
    resizing="bilinear",
    jitter=(0.4, 0.4, 0.0, 0.0),
    grey_probability=0.0,
    blur_probabilities=(0.0, 0.0, 0.0),
    solarize_probability=0.0,
)
SMALL = {
    "dino": {
        **_SMALL,
        "learning_rate": 1e-3,
        "output_dim": 256,
        "bottleneck_dim": 64,
        "teacher_temperature": 0.02,
        "center_momentum": 0.5,
        "koleo_weight": 0.1,
        "frozen_epochs": 1,
        "crops": _SMALL_CROPS,
    },
    "mocov3": {
        **_SMALL,
        "output_dim": 64,
        "crops": dataclasses.replace(_SMALL_CROPS, num_local=0),
    },
}


def get_method(name: str, model: str | None) -> Method:
    """Returns the settings of a method: the published ones, or those for small
    models."""
    method = METHODS[name]
    if model is not None and model not in COMPACT:
        return method
    return dataclasses.replace(method, **SMALL[name])


def build_momentum_model(
    config: Any, channels: int
) -> pretraining.DINO | pretraining.MoCoV3:
    """Builds the model that a recipe's flags specify, for images of this number
    of channels."""
    method = get_method(config.method, config.model)
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
        **method.encoder,
        **heads,
    )
    if method.initialize is not None:
        method.initialize(encoder, config.seed)
    momentum = CosineSchedule(config.teacher_momentum, 1.0, config.steps)
    if config.method == "mocov3":
        return pretraining.MoCoV3(
            encoder,
            output_dim=config.output_dim,
            hidden_dim=method.hidden_dim,
            teacher_momentum=momentum,
            temperature=method.temperature,
        )
    return pretraining.DINO(
        encoder,
        output_dim=config.output_dim,
        hidden_dim=method.hidden_dim,
        bottleneck_dim=method.bottleneck_dim,
        teacher_momentum=momentum,
        teacher_temperature=config.teacher_temperature,
        student_temperature=method.temperature,
        center_momentum=(
            None if config.no_centering else method.center_momentum
        ),
        frozen_steps=config.frozen_steps,
        koleo_weight=config.koleo_weight,
        seed=config.seed,
    )


def weight_decay_schedule(config: Any) -> float | CosineSchedule:
    """Returns the weight decay of a method, a float or a schedule."""
    method = get_method(config.method, config.model)
    if method.weight_decay_end == method.weight_decay:
        return config.weight_decay
    return CosineSchedule(
        config.weight_decay, method.weight_decay_end, config.steps
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
