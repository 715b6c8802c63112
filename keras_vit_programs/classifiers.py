"""The trained model of a program, and the dataset on which it is evaluated."""

import warnings

from keras_vit.data.dataset import ImageDataset
from keras_vit.data.protocols import height_and_width
from keras_vit.data.sources import load_dataset
from keras_vit.evaluation.classifiers import (
    LoadedClassifier,
    Setting,
    load_classifier,
)
from keras_vit.utils.text import printable
from keras_vit_programs import flags
from keras_vit_programs.console import wrap_lines


def load_trained(
    config: flags.Trained, has_text: bool = False, has_head: bool = True
) -> LoadedClassifier:
    """Loads the model of a program's settings. With `has_text`, the program loads the
    text tower itself, and there is no warning that its arrays are left out; without
    `has_head`, it does not use the head, and there is none of a head of zeros."""
    with warnings.catch_warnings():
        if has_text:
            left_out = ".* arrays that are not part of the image model"
            warnings.filterwarnings("ignore", left_out)
        if not has_head:
            warnings.filterwarnings("ignore", ".* was released with a head of zeros")
        return load_classifier(
            str(config.weights),
            config.model,
            config.image_size,
            config.mode,
            config.protocol,
            config.patch_size,
            config.max_tokens,
        )


def load_data(config: flags.Evaluation, trained: LoadedClassifier) -> ImageDataset:
    """Loads the dataset of a program's settings, by default that of the model's
    training, as the model takes it."""
    name = config.dataset or trained.dataset
    if name is None:
        raise ValueError(
            f"The dataset of {config.weights!r} is unknown: give --dataset."
        )
    skip, test_split = config.skip_bad_images, config.test_split
    if config.dataset is None:  # as in the training
        skip = skip or trained.skip_bad_images
        test_split = test_split or trained.test_split
    data = load_dataset(name, skip_bad_images=skip, test_split=test_split)
    return trained.adapt(data)


def describe_classifier(trained: LoadedClassifier, protocol: str | None = None) -> str:
    """Returns a summary of a model, of several lines, and of the protocol that is used
    if that of the model is unknown."""
    height, width = height_and_width(trained.image_size)
    lines = [
        f"model     {trained.model.name}: {trained.model.count_params():,} "
        f"parameters, images {height} x {width} x {trained.channels}"
        + (f", or {trained.budget.max_tokens} patches" if trained.budget else "")
        + (f", {len(names)} class names" if (names := trained.class_names) else "")
    ]
    settings = trained.settings
    if settings.protocol.value is None:
        settings = settings._replace(protocol=Setting(protocol, "the default"))
    for name, (value, source) in settings._asdict().items():
        if value is not None:
            text = f"{name.removeprefix('image_'):10}{value} from {source}"
            lines.append(printable(text))
    return wrap_lines("\n".join(lines))
