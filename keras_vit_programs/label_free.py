"""Pre-training without labels: models, initial weights, warnings, pictures."""

import itertools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import inspection, pretraining
from keras_vit.converters import save, write_keras
from keras_vit.training.callbacks import Logs, Row
from keras_vit.utils.files import atomic_write
from keras_vit.utils.logging import logger
from keras_vit.utils.scaling import Mode
from keras_vit.utils.types import Array
from keras_vit_programs.building import build_model, lossless_format
from keras_vit_programs.curves import plot_grid, unit_range
from keras_vit_programs.flags import LabelFree
from keras_vit_programs.rows import Recorder

# Mean of the metric `teacher_diversity` over an interval, below which the
# outputs hardly depend on the image.
COLLAPSED = 0.01


# Initial weights as in published code: functions of a random generator, the
# path and the shape of a variable, and all variables, which return its values.
# If this is None, biases become 0 and others stay.


def _sample_mae(
    rng: Any, path: str, shape: tuple[int, ...], variables: dict[str, Any]
) -> Array | None:
    """Samples the weights of a `MaskedAutoencoder` as facebookresearch/mae,
    models_mae.py.

    That code initializes query, key and value as one matrix by Glorot's uniform
    distribution, so that their range is smaller than that of three square
    matrices by a factor of the square root of 2.
    """
    if path.endswith("/tokens"):
        return rng.normal(0, 0.02, shape)
    if not path.endswith("/kernel"):
        return None
    inputs, outputs = math.prod(shape[:-1]), shape[-1]
    if path.endswith(("query/kernel", "key/kernel", "value/kernel")):
        inputs, outputs = shape[0], 3 * math.prod(shape[1:])
    bound = math.sqrt(6 / (inputs + outputs))
    return rng.uniform(-bound, bound, shape)


def _sample_simmim(
    rng: Any, path: str, shape: tuple[int, ...], variables: dict[str, Any]
) -> Array | None:
    """Samples the weights of a `MaskedImageModeling` as microsoft/SimMIM,
    models/simmim.py and vision_transformer.py.

    Weights are sampled from a normal distribution with a standard deviation of
    0.02, truncated at one standard deviation on both sides. The attention
    output and second MLP kernels of block `i`, counted from 1, are divided by
    `sqrt(2 * i)`. The decoder has the default initialization of a PyTorch
    convolution.
    """
    if path.startswith("decoder/"):
        bound = 1 / math.sqrt(variables["decoder/pixels/kernel"].shape[0])
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


def _sample_dino(
    rng: Any, path: str, shape: tuple[int, ...], variables: dict[str, Any]
) -> Array | None:
    """Samples the weights of an encoder as facebookresearch/dino,
    vision_transformer.py.

    Weights are sampled from a normal distribution with a standard deviation of
    0.02, and those of the patch embedding from PyTorch's default for
    convolutions.
    """
    if path.startswith("patch_embedding/"):
        kernel = variables["patch_embedding/kernel"]
        bound = 1 / math.sqrt(math.prod(kernel.shape[:-1]))
        return rng.uniform(-bound, bound, shape)
    if path.endswith(("/kernel", "/tokens", "/embedding")):
        return rng.normal(0, 0.02, shape)
    return None


def _sample_moco(
    rng: Any, path: str, shape: tuple[int, ...], variables: dict[str, Any]
) -> Array | None:
    """Samples the weights of an encoder as facebookresearch/moco-v3, vits.py.

    Matrices are sampled from Glorot's uniform distribution, query, key and
    value each as a square one, and the class token from a normal distribution
    with a standard deviation of 1e-6. Positions are fixed later.
    """
    if path.endswith("/tokens"):
        return rng.normal(0, 1e-6, shape)
    if not path.endswith("/kernel"):
        return None
    # The widths of attention's heads are two of the axes.
    inputs = math.prod(shape[:-1])
    if "attention" in path:
        inputs = variables["patch_embedding/kernel"].shape[-1]
    bound = math.sqrt(6 / (inputs + math.prod(shape) // inputs))
    return rng.uniform(-bound, bound, shape)


INITIALIZERS = {
    "mae": _sample_mae,
    "simmim": _sample_simmim,
    "dino": _sample_dino,
    "moco": _sample_moco,
}


def initialize(
    variables: dict[str, keras.Variable], name: str | None, seed: int
) -> None:
    """Assigns variables by path the initial values of one of `INITIALIZERS`, or
    none."""
    if name is None:
        return
    rng = np.random.default_rng(seed)
    for path, variable in variables.items():
        shape = tuple(variable.shape)
        value = INITIALIZERS[name](rng, path, shape, variables)
        if value is None and path.endswith("/bias"):
            value = np.zeros(shape)
        if value is not None:
            variable.assign(value.astype("float32"))


def build_encoder(config: LabelFree, channels: int, **options: Any) -> keras.Model:
    """Builds the encoder that is pre-trained, for images of this number of
    channels; `options` are further arguments of `building.build_model`."""
    return build_model(
        config.model,
        None,
        config.patch_size,
        config.seed,
        input_shape=config.input_shape(channels),
        include_top=False,
        pooling=None,
        remat=config.remat,
        drop_path=config.drop_path,
        **(config.encoder or {}),
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


def save_momentum_model(
    model: pretraining.DINO | pretraining.MoCoV3, output: pathlib.Path
) -> None:
    """Writes the whole model, `model.keras`, and its pre-trained encoder,
    `encoder.keras` and `encoder.npz`: the teacher of DINO and the student of
    MoCo v3, as published."""
    save_masked(model, output)
    encoder = model.pretrained_encoder
    format = lossless_format(encoder) or "timm"
    save(encoder, output / "encoder.npz", format, overwrite=True)


def collapse_step(rows: Sequence[Row], after: int) -> int | None:
    """Returns the step at which the outputs of the teacher no longer depend on
    the image, or None.

    The metric `teacher_diversity` is 0 if the outputs for all images are the
    same. DINO begins with outputs that are almost the same: a model has
    collapsed if the diversity is low in two successive intervals between
    evaluations that end `after` a step.
    """
    low = [
        row["train_teacher_diversity"] < COLLAPSED and row["step"] > after
        for row in rows
    ]
    pairs = zip(rows[1:], itertools.pairwise(low), strict=True)
    return next((row["step"] for row, both in pairs if all(both)), None)


def report_collapse(after: int) -> Callable[[Recorder, Row], None]:
    """Returns a sink that warns once of a `collapse_step`."""

    def report(recorder: Recorder, row: Row) -> None:
        if collapse_step(recorder.rows, after) == row["step"]:
            logger.warning(
                "collapse: the teacher has the same output for all images at step %d "
                "(diversity %.4f of 1, less than %g). Centering, a lower "
                "--teacher-temperature, a higher --teacher-momentum, a lower "
                "learning rate and larger batches help against it.",
                row["step"],
                row["train_teacher_diversity"],
                COLLAPSED,
            )

    return report


def draw_pictures(
    rows: Callable[[Any], dict[str, Array]], folder: pathlib.Path, every: int
) -> Callable[[Recorder, Logs], None]:
    """Returns a function for `Recorder.watchers` and, since a run may stop early,
    `Recorder.sinks`, which plots rows of images by name, as a function of the model
    returns them, every few steps and after the last, as `step-*.png` in a folder."""
    drawn = None

    def draw(recorder: Recorder, logs: Logs) -> None:
        nonlocal drawn
        step, model = recorder.step, recorder.model
        is_last = step == recorder.steps or model.stop_training
        if step != drawn and (step % every == 0 or is_last):
            drawn = step
            if hasattr(model, "jax_state_sync"):
                model.jax_state_sync()
            plot_grid(rows(model), folder / f"step-{step:08}.png", f"step {step}")

    return draw


def attention_rows(model: Any, images: Array, mode: Mode) -> dict[str, Array]:
    """Returns images and the attention of the class token, or of the mean
    patch, in the last block of their pre-trained encoder, head by head.

    It is Figure 1 of "Emerging Properties in Self-Supervised Vision
    Transformers" (https://arxiv.org/abs/2104.14294), during training.
    """
    stages, encoder = model.stages, model.pretrained_encoder
    maps = inspection.attention_maps(encoder, images, layers=-1)[0]
    heads = maps[:, :, :, stages.num_prefix :]
    if stages.has_class_token:
        heads = heads[:, :, 0]
    else:
        heads = heads[:, :, stages.num_prefix :].mean(axis=2)
    heads = heads.reshape(*heads.shape[:2], *stages.grid_size).swapaxes(0, 1)
    named = {f"head {i}": head for i, head in enumerate(heads, start=1)}
    return {"image": unit_range(images, mode), **named}


def reconstruction_rows(model: Any, images: Array, mode: Mode) -> dict[str, Array]:
    """Returns images, the masked images and their reconstructions, always with
    the same mask."""
    count, patches = len(images), model.stages.num_patches
    noise = np.random.default_rng(0).uniform(size=(count, patches))
    noise = noise.astype("float32")
    if isinstance(model, pretraining.MaskedAutoencoder):
        given = {"noise": noise}
    elif isinstance(model, pretraining.MaskedImageModeling):
        given = {"masked": model.sample_mask(count, seed=0)}
    else:  # the patches of each image with the highest noise are masked
        kept = int(patches * (1 - model.mask_ratio) + 1e-6)
        given = {"masked": noise.argsort(1).argsort(1) >= kept}
    seen, filled = model.reconstruct(images, **given)
    rows = {"image": images, "masked": seen, "predicted": filled}
    return {
        name: unit_range(keras.ops.convert_to_numpy(x), mode)
        for name, x in rows.items()
    }
