"""Flags of the recipes that use a trained model."""

import dataclasses

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import (
    PROTOCOLS,
    height_and_width,
    parse_image_size,
    size_text,
)
from keras_vit.data.sources import load_dataset
from keras_vit.evaluation.classifiers import LoadedClassifier, fitted, load_classifier
from keras_vit.utils.scaling import Mode
from keras_vit.utils.text import printable
from keras_vit_programs import console
from keras_vit_programs.console import fill
from keras_vit_programs.flags import check_flags, flag


@dataclasses.dataclass(frozen=True)
class EvaluationFlags:
    """Flags for the model, its preprocessing and the output folder.

    A recipe adds flags in a subclass, and may override the default and the
    help text of a shared flag.
    """

    weights: str | None = flag(
        "the model: the output folder of a training recipe, its model.keras, "
        "the path or URL of a checkpoint, or, with --model, the name of "
        "released weights, such as imagenet21k",
        metavar="FILE|NAME",
    )
    model: str | None = flag(
        "architecture, such as ViTB16; required if --weights is a name"
    )
    image_size: int | str | None = flag(
        "images are resized to N x N, or to height x width, such as 64x48; "
        "default: as in training",
        metavar="N|HxW",
    )
    max_tokens: int | None = flag(
        "resize images to at most N patches and keep their aspect, instead of "
        "--image-size; default: as in training, unless --image-size is given",
        minimum=1,
    )
    patch_size: int | None = flag(
        "height and width of a patch, in pixels, to which the kernel of the "
        "patch embedding is resized (FlexiViT); default: that of the model",
        minimum=1,
    )
    mode: Mode | None = flag(
        f"{console.MODE_HELP}; default: as in training", metavar="MODE"
    )
    protocol: str | None = flag(
        f"how images are resized: {', '.join(PROTOCOLS)}; default: as in "
        "training if that is known, else vit_jax"
    )
    batch_size: int = flag("images per batch", 64, minimum=1)
    skip_bad_images: bool = flag(
        "leave out images of a folder that cannot be decoded, with a warning; "
        "default for the dataset of a run: as in its training",
        False,
    )
    overwrite: bool = flag("replace the files of an earlier run in --output", False)

    def __post_init__(self) -> None:
        check_flags(self)
        image_size = parse_image_size(self.image_size, "--image-size")
        object.__setattr__(self, "image_size", image_size)
        object.__setattr__(self, "mode", console.parse_mode(self.mode))
        if self.weights is None:
            raise ValueError("Give --weights: the model to use, such as runs/digits.")

    def trained(self) -> LoadedClassifier:
        """Loads the model."""
        return load_classifier(
            str(self.weights),
            self.model,
            self.image_size,
            self.mode,
            self.protocol,
            self.patch_size,
            self.max_tokens,
        )


@dataclasses.dataclass(frozen=True)
class DatasetFlags(EvaluationFlags):
    """Flags for a dataset to evaluate on."""

    dataset: str | None = flag(
        "'digits', a name in TFDS, or a folder of images; default: the dataset "
        "of the run of --weights",
        metavar="NAME|FOLDER",
    )
    test_split: str | None = flag(
        "for a dataset of TFDS, the split to evaluate on; default: that of the "
        "run if --dataset is not given, else test, or validation if test has "
        "no labels"
    )

    def load_data(self, trained: LoadedClassifier) -> ImageDataset:
        """Loads the dataset, by default that of the model's training, as the
        model takes it."""
        name = self.dataset or trained.dataset
        if name is None:
            raise ValueError(
                f"The dataset of {self.weights!r} is unknown: give --dataset."
            )
        skip, test_split = self.skip_bad_images, self.test_split
        if self.dataset is None:  # as in the training
            skip = skip or trained.skip_bad_images
            test_split = test_split or trained.test_split
        data = load_dataset(name, skip_bad_images=skip, test_split=test_split)
        return fitted(data, trained)


def describe_classifier(trained: LoadedClassifier) -> str:
    """Returns a summary of a model, of several lines."""
    height, width = height_and_width(trained.image_size)
    source = "flags and defaults (no config.json of a run)"
    if trained.config_path:
        source = f"{trained.config_path}, unless flags say otherwise"
    return fill(
        f"model     {trained.model.name}: {trained.model.count_params():,} "
        f"weights, images {height} x {width} x {trained.channels}"
        + (f", or {trained.budget.max_tokens} patches" if trained.budget else "")
        + f"\n"
        f"settings  from {source}: image size "
        f"{size_text(trained.image_size)}, mode {printable(trained.mode)}, "
        f"protocol {printable(trained.protocol or 'unspecified')}, "
        f"{len(trained.class_names or ())} names of classes"
    )
