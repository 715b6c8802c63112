"""Loading of trained models with their preprocessing and class names."""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit import converters, load_save
from keras_vit.config import BIT_VARIANTS, VARIANTS, variant_sizes
from keras_vit.data import ImageDataset, load_files
from keras_vit.data.protocols import (
    height_and_width,
    parse_image_size,
    protocol_of,
)
from keras_vit.data.token_budget import TokenBudget
from keras_vit.evaluation.predict import predict_dataset
from keras_vit.evaluation.runs import (
    check_model,
    config_of_run,
    open_weights,
    warn_of_scaling,
)
from keras_vit.evaluation.scores import sigmoid, softmax
from keras_vit.inspection.tokens import token_layout
from keras_vit.models import (
    Model,
    inference_model,
    mixed_sizes,
    without_preprocessing,
)
from keras_vit.models.features import patch_pixels
from keras_vit.models.graph import Graph, output_activation
from keras_vit.preprocessing import labels as imagenet
from keras_vit.training.compiling import jit_compile
from keras_vit.utils import checks, downloads
from keras_vit.utils.scaling import Mode, ModeLike, as_mode
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, ArrayLike, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.files import read_config
from keras_vit.weights.formats.huggingface import MULTI_LABEL

_SHOWN = 5


class Setting(NamedTuple):
    """A value, and a description of its source."""

    value: Any
    source: str


class ImageSettings(NamedTuple):
    """The settings by which images are read for a model; see `load_classifier`."""

    image_size: Setting
    mode: Setting
    protocol: Setting


def image_settings(sources: dict[str, Config]) -> ImageSettings:
    """Returns each setting as the first of the sources has it, which are dicts of
    settings by where they come from; None where none does."""

    def first(name: str) -> Setting:
        for source, values in sources.items():
            if (value := values.get(name)) is not None:
                return Setting(as_mode(value) if name == "mode" else value, source)
        return Setting(None, "")

    return ImageSettings(*map(first, ImageSettings._fields))


@dataclasses.dataclass(frozen=True)
class LoadedClassifier:
    """A trained model and its preprocessing; see `load_classifier`.

    Attributes:
        model: `keras.Model`.
        settings: `ImageSettings`: the size of the images, the `mode` of
            `preprocess_input` and the name of the preprocessing protocol, each with its
            source.
        channels: Integer. Number of channels of the images.
        class_names: Tuple of strings, one per class; None if unknown.
        dataset: String. Name of the dataset that the model was trained on, for
            `load_dataset`; None if unknown.
        test_split: String. The TFDS split on which the training was evaluated, or None.
        skip_bad_images: Boolean. Whether the training left out images that
            cannot be decoded.
        loss: String. Name of the training loss; None if unknown.
        multi_label: Boolean. Whether training images could have several classes each.
        budget: `keras_vit.data.TokenBudget` for images that keep their aspect ratio, or
            None for images of `image_size`.
    """

    model: keras.Model
    settings: ImageSettings
    channels: int
    class_names: tuple[str, ...] | None = None
    dataset: str | None = None
    test_split: str | None = None
    skip_bad_images: bool = False
    loss: str | None = None
    multi_label: bool = False
    budget: TokenBudget | None = None

    @property
    def image_size(self) -> int | tuple[int, int]:
        """Integer, or `(height, width)`. Size of the images, in pixels."""
        return self.settings.image_size.value

    @property
    def mode(self) -> Mode:
        """String, or `(mean, std)`. The `mode` of `preprocess_input`."""
        return self.settings.mode.value

    @property
    def protocol(self) -> str | None:
        """String. Name of the preprocessing protocol; None if unknown."""
        return self.settings.protocol.value

    @functools.cached_property
    def predictor(self) -> keras.Model:
        """The model without the computations that its output does not depend on, for
        programs."""
        return self.for_batches(self.model)

    def for_batches(self, model: keras.Model) -> keras.Model:
        """Returns this model, or a part of it, for the batches of `reading`."""
        return _for_inference(mixed_sizes(model) if self.budget else model)

    def adapt(self, data: ImageDataset) -> ImageDataset:
        """Returns a dataset whose images have the number of channels that the model
        takes.

        Args:
            data: `keras_vit.data.ImageDataset`.

        Raises:
            ValueError: if the images cannot be converted, which only those of 1 and of
                3 channels can.
        """
        if data.channels != self.channels and not (
            {data.channels, self.channels} <= {1, 3}
        ):
            raise ValueError(
                f"The images of {data.name!r} have {data.channels} channels, and the "
                f"model takes {self.channels}: give it images as in its training. "
                "Pictures have 1 or 3 channels, and NumPy arrays up to 16."
            )
        return dataclasses.replace(data, channels=self.channels)

    def reading(
        self, data: ImageDataset, batch_size: int, protocol: str = "vit_jax"
    ) -> Config:
        """Returns the arguments of `ImageDataset.test` for the model, with
        `protocol` if that of the model is unknown."""
        known = self.settings.protocol
        if not data.has_protocols and known.source != "an argument":
            known = Setting("simple", "")  # all that such images, as digits, have
        return {
            "image_size": self.budget or self.image_size,
            "batch_size": batch_size,
            "mode": self.mode,
            "protocol": known.value or protocol,
        }

    def probabilities(self, outputs: ArrayLike) -> Array:
        """Converts outputs to probabilities, by the function of the training's loss."""
        kind = "sigmoid" if self.loss == "sigmoid" else "softmax"
        return probabilities(self.model, outputs, kind)

    def predict(
        self,
        files: StrPath | Iterable[StrPath],
        top: int = 5,
        skip_bad_images: bool = False,
    ) -> dict[pathlib.Path, list[tuple[str | None, str, float]]]:
        """Returns the most probable classes of files, as `keras-vit predict` does.

        Args:
            files: Path of an image file or of a folder of them, or a list of paths.
            top: Integer. Number of classes per image.
            skip_bad_images: Boolean. Whether to leave out files that are not images,
                with a warning.

        Returns:
            Dict from the path of each file to a list of `(wordnet_id, name,
            probability)`, as `decode_predictions` returns it.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if a file is not an image, or the names of the classes are
                unknown.
            OSError: if ImageNet's class names cannot be downloaded.

        Example:

        >>> classifier = keras_vit.evaluation.load_classifier("runs/photos")
        >>> classifier.predict("photo.jpg")
        """
        paths = [files] if isinstance(files, str | os.PathLike) else files
        data, found = load_files(paths, skip_bad_images=skip_bad_images)
        data = self.adapt(data)
        batches = data.test(**self.reading(data, min(32, len(found))))
        outputs, _ = predict_dataset(self.predictor, batches, len(found))
        names = None if self.class_names is None else list(self.class_names)
        chances = self.probabilities(outputs)
        top = min(top, chances.shape[1])
        return dict(
            zip(found, imagenet.decode_predictions(chances, top, names), strict=True)
        )


def load_classifier(
    weights: str,
    model: str | None = None,
    image_size: int | tuple[int, int] | str | None = None,
    mode: ModeLike | None = None,
    protocol: str | None = None,
    patch_size: int | None = None,
    max_tokens: int | None = None,
) -> LoadedClassifier:
    """Loads a trained model with its classification head and preprocessing.

    Arguments that are None, and the class names, are read from the config.json that the
    training recipe wrote to the folder of the weights, if it exists.

    Args:
        weights: String. Path of a run's folder, of its model.keras, or of any
            checkpoint that `keras_vit.converters.load` reads; the folder of a YOLOS of
            transformers; a URL; or, with `model`, the name of released weights.
        model: String. Name of a model function, or None.
        image_size: Integer, or `(height, width)`. Size of the images, in
            pixels. Defaults to the size of the training.
        mode: String, or `(mean, std)`. The `mode` of `preprocess_input`.
            Defaults to that of the training.
        protocol: String. Name of the preprocessing protocol. Defaults to that
            of the training.
        patch_size: Integer. Height and width of a patch of a Vision
            Transformer, in pixels. Defaults to that of the weights; for another size,
            their kernel is resized.
        max_tokens: Integer. Maximum number of patches of images that keep their aspect
            ratio instead of being resized to `image_size`. Defaults to that of the
            training, unless `image_size` is given.

    Raises:
        FileNotFoundError: if there is no file at `weights`.
        OSError: if weights could not be downloaded.
        ValueError: if the weights cannot be read or do not fit the arguments.
    """
    path = pathlib.Path(downloads.fetch_if_remote(weights)).expanduser()
    given: Config = {"mode": mode, "protocol": protocol}
    given["image_size"] = parse_image_size(image_size)
    if (path / "model.keras").is_file():
        path = path / "model.keras"
        weights = str(path)
    run_config = config_of_run(path) if path.is_file() else {}
    if not run_config.get("data", {}).get("class_names"):  # of pre-training
        run_config = {}
    config_path = str(path.with_name("config.json"))
    config, data = run_config.get("config", {}), run_config.get("data", {})
    if image_size is None:  # which asks for images of one size
        max_tokens = max_tokens or config.get("max_tokens")
    size = parse_image_size(
        config.get("image_size"), f"`image_size` in {config_path!r}"
    )
    sizes = None
    if model is not None:
        checks.one_of("model", model, (*VARIANTS, *BIT_VARIANTS))
        sizes = variant_sizes(model)
    checkpoint = open_weights(model, weights, sizes)
    if model is not None and sizes is not None:
        check_model(checkpoint, model, sizes)
    loaded = _load(checkpoint, given["image_size"] or size, patch_size)
    *sides, channels = loaded.input_shape[1:]  # None if they may be any
    own = {"image_size": None if None in sides else parse_image_size(sides)}
    if checkpoint.is_detector and not checkpoint.saved:
        # It takes any size: the shorter side of the images of its training.
        grid = vars(checkpoint.config)["grid_size"]
        sizes = zip(grid, checkpoint.patch_size or (), strict=True)
        own["image_size"] = min(rows * pixels for rows, pixels in sizes)
    sources = {
        "an argument": given,
        config_path: {**config, "image_size": size},
        "the weights": {
            **own,
            "mode": checkpoint.preprocess_mode,
            "protocol": None if max_tokens else protocol_of(checkpoint.resizing),
        },
        "the default": {"image_size": 224, "mode": "tf"},
    }
    budget = None
    if max_tokens:
        mixed_sizes(loaded)  # an error names a model without such patches
        budget = TokenBudget(max_tokens, patch_pixels(loaded))
    settings = image_settings(sources)
    if settings.mode.source == "the default" and not checkpoint.saved:
        warn_of_scaling(weights)
    published = {} if config else read_config(checkpoint.path)
    several = published.get("problem_type") == MULTI_LABEL
    return LoadedClassifier(
        model=loaded,
        settings=settings,
        channels=channels,
        class_names=(
            tuple(map(printable, data["class_names"]))
            if data
            else _hub_class_names(checkpoint, loaded)
        ),
        dataset=config.get("dataset"),
        test_split=config.get("test_split"),
        skip_bad_images=config.get("skip_bad_images", False),
        loss=config.get("loss", "sigmoid" if several else None),
        multi_label=data.get("multi_label", several),
        budget=budget,
    )


def _hub_class_names(
    checkpoint: Checkpoint, model: keras.Model
) -> tuple[str, ...] | None:
    """Returns the class names in a config.json of the Hugging Face hub, or
    None. Those of ImageNet have several spellings, and are left to
    `match_class_names`."""
    if checkpoint.is_detector:
        return getattr(model, "class_names", None)
    if head_of(model) is None:
        return None
    classes = model.output_shape[-1]
    names = class_names(checkpoint, classes)
    unnamed = names == [f"LABEL_{i}" for i in range(classes)]
    published = (imagenet.IMAGENET_CLASSES, imagenet.IMAGENET21K_CLASSES)
    if names is None or unnamed or classes in published:
        return None
    return tuple(names)


def _load(
    checkpoint: Checkpoint,
    image_size: int | tuple[int, int] | None,
    patch_size: int | None,
) -> keras.Model:
    """Builds the model for scaled images of a size, with one vector per image."""
    overrides = {}
    if patch_size is not None:
        if checkpoint.encoder_family != "vit":
            raise ValueError(
                "`patch_size` is for Vision Transformers, whose patches are "
                f"cut from the image. Received: {checkpoint.path!r}, which is "
                f"a {'BiT' if checkpoint.encoder_family == 'bit' else 'hybrid'}. "
                "Leave it out."
            )
        overrides["patch_size"] = patch_size
    if checkpoint.is_detector:  # it takes images of any size
        if overrides:
            checkpoint.raise_if_fixed()
        loaded = without_preprocessing(load_save.load(checkpoint))
        if image_size:  # which patches must divide
            token_layout(loaded, height_and_width(image_size))
        return loaded
    if checkpoint.is_dense:
        checkpoint.raise_if_fixed()
    load = converters.load_for_images
    loaded = without_preprocessing(load(checkpoint, **overrides))
    found = loaded.input_shape[1:]
    size = height_and_width(image_size) if image_size else found[:2]
    if found[:2] not in (size, (None, None)):
        overrides["input_shape"] = (*size, found[2])
    if loaded.output.ndim == 3:  # the output is tokens
        names = {layer.name for layer in loaded.layers}
        overrides["pooling"] = "token" if "class_token" in names else "gap"
    if not overrides.keys() - {"patch_size"}:
        return loaded
    return without_preprocessing(load(checkpoint, **overrides))


def head_of(model: keras.Model) -> keras.Layer | None:
    """Returns the layer whose outputs are the logits, or None."""
    layers = {layer.name: layer for layer in model.layers}
    if "head" not in layers:
        return None
    return layers.get("distilled_mean", layers["head"])


def num_classes_of(trained: LoadedClassifier) -> int:
    """Returns the number of classes of a `LoadedClassifier`; raises a
    `ValueError` if it has no classification head."""
    if head_of(trained.model) is None or trained.model.output.ndim != 2:
        raise ValueError(
            f"The model {trained.model.name!r} has no classification head. "
            "Train one, as `keras-vit train` does, or evaluate the features, as "
            "`keras_vit.evaluation.few_shot_of_model` does."
        )
    return trained.model.output.shape[-1]


def probabilities(
    model: keras.Model, outputs: ArrayLike, loss: str = "softmax"
) -> Array:
    """Converts the outputs of a classifier to probabilities.

    Args:
        model: Keras model with a layer "head".
        outputs: Array of shape `(images, classes)`, the outputs of the model.
        loss: String. "sigmoid" for a probability of each class on its own, or
            "softmax" for probabilities that sum to 1.

    Returns:
        Array of the same shape in float64: the outputs themselves if the head ends in
        the function that `loss` names, or this function of the outputs if they are
        logits.

    Raises:
        ValueError: if the head has another activation.
    """
    activation = output_activation(model)
    if activation == loss:
        return np.asarray(outputs, np.float64)
    if activation != "linear":
        raise ValueError(
            f"The model's head must give logits or end in {loss}. It ends in "
            f"{activation!r}."
        )
    return (sigmoid if loss == "sigmoid" else softmax)(outputs)


def feature_model(model: keras.Model) -> keras.Model:
    """Returns a model that outputs the features that the classification head receives.

    They are called "pre_logits" in the published code. A model without a head
    is returned unchanged.

    Args:
        model: Keras model.

    Returns:
        A Keras model with outputs of shape `(images, columns)`.

    Raises:
        ValueError: if the model has no head and its output is not one vector
            per image.
    """
    if head_of(model) is None:
        shapes = keras.tree.map_structure(lambda x: x.shape, model.output)
        if len(model.outputs) > 1 or model.outputs[0].ndim != 2:
            raise ValueError(
                "A model without a head must output one vector per image. "
                f"{model.name!r} outputs the shape {shapes}."
            )
        return model
    graph = Graph(model)
    features = Model(
        graph.inputs[0],
        graph.input(model.get_layer("head")),
        name=f"{model.name}_features",
    )
    return _for_inference(features)


def _for_inference(model: keras.Model) -> keras.Model:
    """Returns a model without tokens that it does not read."""
    model = inference_model(model)
    if jit_compile() is True:
        model.jit_compile = True
    return model


def match_class_names(
    trained: LoadedClassifier, data: ImageDataset
) -> tuple[Array, tuple[str, ...]]:
    """Maps the classes of a dataset to those of a model, by name.

    If the class names of the model are unknown and the numbers of classes are
    equal, the classes are assumed to be the same in the same order, with a
    warning.

    Args:
        trained: `LoadedClassifier`.
        data: `keras_vit.data.ImageDataset`.

    Returns:
        Tuple of an integer array, with the model's class for each class of the dataset,
        and the model's class names.

    Raises:
        ValueError: if a class of the dataset is not a class of the model, or the
            numbers of classes differ and the names are unknown.
    """
    count, wanted = num_classes_of(trained), data.class_names
    known = trained.class_names
    remedy = (
        "Name the classes as in training, evaluate on what the model was trained "
        f"on, or train a head on {data.name!r} with `keras-vit train`."
    )
    # WordNet identifiers, as ImageNet's folders have.
    are_ids = all(re.fullmatch(r"n\d{8}", name) for name in wanted)
    if known is None and count == len(wanted):
        # ImageNet's classes are always in the order of their identifiers.
        if not (are_ids and list(wanted) == sorted(wanted)):
            warn(
                f"The weights do not name their {count} classes, which are "
                f"assumed to be those of {data.name!r}, in the same order: "
                f"{_first(wanted)}. If this is wrong, so is the accuracy.",
            )
        return np.arange(count), tuple(wanted)
    if known is None and are_ids and count == imagenet.IMAGENET_CLASSES:
        known = tuple(str(name) for name, _ in imagenet.imagenet_labels())
    if known is None or len(known) != count:
        named = "no names" if known is None else f"{len(known)} names"
        raise ValueError(
            f"The model has {count} classes with {named}, and {data.name!r} "
            f"has {len(wanted)}. {remedy}"
        )
    strange = [name for name in wanted if name not in known]
    if strange:
        raise ValueError(
            f"The model knows {len(known)} classes by name, such as "
            f"{known[0]!r}, but not all {len(wanted)} of {data.name!r}. It lacks: "
            f"{_first(strange)}. {remedy}"
        )
    return np.array([known.index(name) for name in wanted]), known


def _first(names: Sequence[str]) -> str:
    """Returns the first names of a list as text."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown + ", ..." * (len(names) > _SHOWN)


def class_names(checkpoint: Checkpoint, classes: int) -> list[str] | None:
    """Returns the class names of a checkpoint, or None."""
    try:
        return checkpoint.class_names(classes)
    except (ValueError, OSError):
        return None
