"""Short runs of the recipes, which several tests look at."""

import contextlib
import csv
import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit_programs import class_results, presets, runs
from tests import harness
from tests.recipes import programs
from tests.small import vit
from tests.training.pictures import noise, write_folder

_DENSE = {
    "dataset": "squares",
    "image_size": 16,
    "patch_size": 4,
    "steps": 12,
    "learning_rate": 0.01,
    "evaluate_every": 6,
    "checkpoint_every": 4,
    "scale": 1.2,
}
_DETECT = {**_DENSE, "batch_size": 2, "queries": 3}
_CROPS = {
    "steps": 4,
    "checkpoint_every": 1,
    "evaluate_every": 4,
    "batch_size": 32,
    "output_dim": 8,
}
_MASKED = {"steps": 6, "picture_every": 3, "checkpoint_every": 2}
# The recipe and the flags of each run. A dataset with a slash is a folder that
# `folders` writes.
RUNS = {
    "finetune": (
        "finetune_cifar",
        {
            "steps": 3,
            "batch_size": 64,
            "accumulate": 2,
            "average": 0.5,
            "checkpoint_every": 1,
            "loss": "sigmoid",
            "class_weights": "balanced",
        },
    ),
    "max tokens": (
        "finetune_cifar",
        {
            "dataset": "sizes",
            "model": "compact-vit",
            "image_size": 32,
            "patch_size": 8,
            "max_tokens": 12,
            "batch_size": 4,
            "steps": 4,
            "evaluate_every": 2,
            "checkpoint_every": 1,
        },
    ),
    # The head alone, on features that are computed once.
    "head": (
        "finetune_cifar",
        {
            "dataset": "sizes",
            "weights": "encoder.keras",
            "train": "head",
            "batch_size": 4,
            "steps": 6,
            "evaluate_every": 2,
            "checkpoint_every": 1,
            # Too high for the last evaluation to be the best.
            "learning_rate": 1.0,
            "keep": "best",
        },
    ),
    # The paper's ImageNet-21k settings, on digits, with every random operation
    # and a momentum in bfloat16.
    "pretrain": (
        "pretrain",
        {
            "preset": "paper-imagenet21k",
            "model": "compact-vit",
            "steps": 6,
            "batch_size": 64,
            "learning_rate": 0.01,
            "checkpoint_every": 1,
            "drop_path": 0.1,
            "mixup": 0.2,
            "momentum_dtype": "bfloat16",
        },
    ),
    "dino": (
        "pretrain_contrastive",
        {"method": "dino", "local_crops": 1, **_CROPS},
    ),
    "mocov3": (
        "pretrain_contrastive",
        {"method": "mocov3", "local_crops": 0, **_CROPS},
    ),
    **{
        method: ("pretrain_masked", {"method": method, **_MASKED})
        for method in ("mim", "mae", "mpp")
    },
    "pairs": (
        "pretrain_pairs",
        {
            "method": "siglip",
            "model": "compact-vit",
            "steps": 4,
            "evaluate_every": 2,
            "checkpoint_every": 1,
            "text_layers": 1,
            "text_width": 16,
        },
    ),
    "segment": ("segment", {**_DENSE, "batch_size": 4}),
    "fcos": ("detect", {"head": "fcos", **_DETECT}),
    "yolos": ("detect", {"head": "yolos", **_DETECT}),
}


def folders(root):
    """Writes two datasets: `squares`, images of a bright or a dark square each,
    with masks of what is bright and with boxes; and `sizes`, images of several
    sizes in two classes. It also writes `encoder.keras`, a small classifier."""
    root.mkdir(parents=True, exist_ok=True)
    keras_vit.save(vit(input_shape=(16, 16, 3)), root / "encoder.keras")
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 3)):
        rows = [("path", "class", "x_min", "y_min", "x_max", "y_max")]
        pictures = {}
        for i in range(count):
            image = rng.integers(110, 140, (16, 16, 3)).astype("uint8")
            left, top = map(int, rng.integers(0, 9, 2))
            image[top : top + 8, left : left + 8] = i % 2 * 255
            mask = (image[..., 0] == 255).astype("uint8")
            mask[0] = 255
            pictures |= {f"images/{i}.png": image, f"masks/{i}.png": mask}
            name = ("dark", "bright")[i % 2]
            rows.append((f"images/{i}.png", name, left, top, left + 8, top + 8))
        write_folder(root / "squares" / part, pictures)
        with open(root / "squares" / f"{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
    sizes = ((40, 24), (16, 64), (30, 30), (12, 90), (64, 20), (8, 8))
    for part in ("train", "test"):
        write_folder(
            root / "sizes" / part,
            {
                f"{'ab'[i % 2]}/{i}.png": noise(*size, seed=len(part) + i)
                for i, size in enumerate(sizes)
            },
        )
    return root


@contextlib.contextmanager
def few_files():
    """Runs draw no pictures and write no results by class, which take most of
    the time of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_results, "write_class_results", None)
        for name in ("write_predictions", "plot_learning_curves"):
            patch.setattr(runs, name, lambda *_: None)
        yield


def train(name, data, output, **changes):
    """Trains as `RUNS` says.

    Args:
        name: String. A run.
        data: Path of what `folders` wrote.
        output: Path of the run's folder.
        **changes: Other values of the flags.
    """
    recipe, settings = RUNS[name]
    recipe = programs.load(recipe)
    settings = {**settings, **changes}
    for key in settings.keys() & {"dataset", "weights"}:
        settings[key] = str(data / settings[key])
    config = recipe.Config(output=str(output), **settings)
    if "output_dim" in settings:
        # The graph of the jitter is traced in seconds; tests/training/
        # test_crops.py has it.
        digits = keras_vit.data.load_dataset("digits")
        crops = recipe.resolve_config(config, digits).crops
        crops = dataclasses.replace(crops, jitter_probability=0.0)
        config = dataclasses.replace(config, crops=crops)
    decoder = {"decoder_layers": 1, "decoder_width": 16}
    all_files = ("pretrain", "max tokens")
    mae = presets.MASKED["mae"].by_model
    with (
        pytest.MonkeyPatch.context() as patch,
        harness.eager("scale" not in settings),
        few_files() if name not in all_files else contextlib.nullcontext(),
    ):
        patch.setitem(mae, None, {**mae[None], **decoder})
        recipe.main(config)
    return output
