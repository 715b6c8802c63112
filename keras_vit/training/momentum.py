"""Training of DINO and MoCo v3: initial weights, models and callbacks."""

import math
import pathlib
from typing import Any

import keras

from keras_vit import inspection
from keras_vit import pretraining
from keras_vit._logging import logger
from keras_vit._types import Array
from keras_vit.converters import save
from keras_vit.models import weights_by_path
from keras_vit.schedules import CosineSchedule
from keras_vit.training.callbacks import Logs
from keras_vit.training.callbacks import PeriodicPlots
from keras_vit.training.callbacks import completed_steps
from keras_vit.training.masked import initialize
from keras_vit.training.masked import save_masked
from keras_vit.training.models import build_model
from keras_vit.training.models import lossless_layout
from keras_vit.training.plots import plot_grid
from keras_vit.training.plots import unit_range

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
    kernel = encoder.get_layer("patch_embedding").kernel
    bound = 1 / math.sqrt(math.prod(kernel.shape[:-1]))

    def sample(rng: Any, path: str, shape: tuple[int, ...]) -> Array | None:
        if path.startswith("patch_embedding/"):
            return rng.uniform(-bound, bound, shape)
        if path.endswith(("/kernel", "/tokens", "/embedding")):
            return rng.normal(0, 0.02, shape)
        return None

    initialize(weights_by_path(encoder), seed, sample)


def initialize_moco(encoder: keras.Model, seed: int) -> None:
    """Initializes the weights of an encoder as facebookresearch/moco-v3,
    vits.py.

    Matrices are sampled from Glorot's uniform distribution, query, key and
    value each as a square one, and the class token from a normal distribution
    with a standard deviation of 1e-6. Positions are fixed later.
    """
    width = encoder.output_shape[-1]

    def sample(rng: Any, path: str, shape: tuple[int, ...]) -> Array | None:
        if path.endswith("/tokens"):
            return rng.normal(0, 1e-6, shape)
        if not path.endswith("/kernel"):
            return None
        # The widths of attention's heads are two of the axes.
        inputs = width if "attention" in path else math.prod(shape[:-1])
        bound = math.sqrt(6 / (inputs + math.prod(shape) // inputs))
        return rng.uniform(-bound, bound, shape)

    initialize(weights_by_path(encoder), seed, sample)


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
    start, end = config.weight_decay, config.weight_decay_end
    return CosineSchedule(start, end, config.steps) if end else start


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
    DINO begins with outputs that are almost the same: a model has collapsed if
    the diversity is low in two successive intervals that end `after` this step.
    The attribute `step` is that at which collapse was found, or None.
    """

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._after, self._was_low, self.step = after, False, None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        diversity, step = logs["teacher_diversity"], completed_steps(self.model)
        is_low = diversity < COLLAPSED and step > self._after
        if is_low and self._was_low and self.step is None:
            self.step = step
            logger.warning(
                "collapse: the teacher has the same output for all images at "
                "step %d (diversity %.4f of 1, less than %g). Against it help "
                "centering, a lower --teacher-temperature, a higher "
                "--teacher-momentum, a lower learning rate and larger batches.",
                step,
                diversity,
                COLLAPSED,
            )
        self._was_low = is_low


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
        rows = {"image": unit_range(self._images, self._mode)}
        rows |= {f"head {i + 1}": x for i, x in enumerate(heads.swapaxes(0, 1))}
        path = self._folder / f"step-{step:08}.png"
        plot_grid(rows, path, f"step {step}")
