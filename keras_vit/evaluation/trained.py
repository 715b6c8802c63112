"""A trained model, and what is known of the images it was trained on."""

import dataclasses
import json
import pathlib
import re
from typing import Any

import keras
import numpy as np

from keras_vit import converters
from keras_vit._warnings import warn
from keras_vit.evaluation.metrics import softmax
from keras_vit.models import Model
from keras_vit.preprocessing import labels as imagenet
from keras_vit.training.models import model_facts
from keras_vit.training.models import opened
from keras_vit.training.setup import jit_compile

_SHOWN = 5


_SIGMOID = (
    "\nThe model was trained with a sigmoid for each class. Its probabilities "
    "here are the\nsoftmax of its logits: accuracy is right, percentages and "
    "the calibration error are not\nthose of the training."
)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `load_trained` found.

    Attributes:
        model: `keras.Model`.
        image_size: Integer.
        channels: Integer.
        mode: That of `preprocess_input`.
        protocol: String, or None if nothing tells.
        class_names: Tuple of strings, or None if nothing tells.
        dataset: What it was trained on, as `load_dataset` takes it, or None.
        test_split: The split of that data set that the run named to be
            evaluated on, or None.
        told_by: Path of the config.json that told, or None.
        loss: Name of the loss it was trained with, or None.
    """

    model: Any
    image_size: int
    channels: int
    mode: str
    protocol: str | None = None
    class_names: tuple | None = None
    dataset: str | None = None
    test_split: str | None = None
    told_by: str | None = None
    loss: str | None = None

    def reading(self, data, batch_size, protocol="vit_jax"):
        """Returns the arguments of `ImageDataset.test` that the model needs.

        `protocol` is used for a model whose own protocol is not known.
        """
        plain = "simple" if _is_digits(data) else protocol
        return {
            "image_size": self.image_size,
            "batch_size": batch_size,
            "mode": self.mode,
            "protocol": self.protocol or plain,
        }

    def describe(self):
        """Returns lines for people."""
        name, size = self.model.name, self.image_size
        source = "flags and defaults (no config.json beside the weights)"
        if self.told_by:
            source = f"{self.told_by}, unless flags say otherwise"
        return (
            f"model     {name}: {self.model.count_params():,} weights, images "
            f"{size} x {size} x {self.channels}\n"
            f"taken from {source}: image size {size}, mode {self.mode}, "
            f"protocol {self.protocol or 'not told'}, "
            f"{len(self.class_names or ())} names of classes"
            + _SIGMOID
            * (self.loss == "sigmoid")
        )


def load_trained(
    weights, model=None, image_size=None, mode=None, protocol=None
):
    """Loads a model to use as it is, with its head.

    Args:
        weights: Path of a run's folder, of its model.keras, or of any
            checkpoint that `keras_vit.converters.load` reads; an address; or
            the name of weights, with `model`.
        model: Name of a model function, or None.
        image_size: Integer. None takes what the model was trained with.
        mode: That of `preprocess_input`; None likewise.
        protocol: How images are cut; None likewise.

    Returns:
        A `Trained`. A recipe's config.json beside the file tells what is not
        given: sizes, mode, protocol, and the names of the classes.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if weights could not be downloaded.
        ValueError: if they cannot be read, or do not fit the arguments.
    """
    path = pathlib.Path(weights).expanduser()
    if (path / "model.keras").is_file():
        path = path / "model.keras"
        weights = str(path)
    told, told_by = _run_facts(path.parent) if path.is_file() else ({}, None)
    config, data = told.get("config", {}), told.get("data", {})
    image_size = image_size or config.get("image_size")
    facts = {"mode": "tf"}
    # A .keras file may hold any model: it is compared with a name only.
    if model is not None or not weights.endswith(".keras"):
        facts = model_facts(model, weights)
    loaded = _use_xla(_load(opened(model, weights), image_size))
    channels = loaded.input_shape[-1]
    return Trained(
        model=loaded,
        image_size=image_size or loaded.input_shape[1] or 224,
        channels=channels,
        mode=mode or config.get("mode") or facts["mode"],
        protocol=protocol or config.get("protocol"),
        class_names=tuple(data["class_names"]) if data else None,
        dataset=config.get("dataset"),
        test_split=config.get("test_split"),
        told_by=told_by,
        loss=config.get("loss"),
    )


def _run_facts(folder):
    """What a recipe wrote down: Hugging Face's config.json is another."""
    path = folder / "config.json"
    try:
        facts = json.loads(path.read_text())
        known = isinstance(facts["config"], dict), facts["data"]["class_names"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, None
    return (facts, str(path)) if known[0] else ({}, None)


def _load(checkpoint, image_size):
    loaded = converters.load(checkpoint)
    found = loaded.input_shape[1:]
    overrides = {}
    if image_size and found[:2] not in (
        (image_size, image_size),
        (None, None),
    ):
        overrides["input_shape"] = (image_size, image_size, found[2])
    elif found[0] != found[1]:
        raise ValueError(
            f"{checkpoint.path!r} is for images of {found[0]} x {found[1]} "
            "pixels, and square ones are wanted: give --image-size."
        )
    if loaded.output.ndim == 3:  # tokens
        names = {layer.name for layer in loaded.layers}
        overrides["pooling"] = "token" if "class_token" in names else "gap"
    if not overrides:
        return loaded
    return converters.load(checkpoint, **overrides)


def head_of(model):
    """Returns the layer that makes the logits, or None."""
    names = {layer.name for layer in model.layers}
    for name in ("distilled_mean", "head"):
        if name in names and "head" in names:
            return model.get_layer(name)
    return None


def num_classes_of(trained):
    """Returns how many classes the model tells apart.

    Raises:
        ValueError: if it has no head.
    """
    if head_of(trained.model) is None:
        raise ValueError(
            f"The model {trained.model.name!r} has no classification head. "
            "Train one: recipes/finetune_cifar.py --weights ..."
        )
    return trained.model.output.shape[-1]


def probabilities(model, outputs):
    """Returns what a classifier's outputs mean, in float64.

    Raises:
        ValueError: if the head is followed by something else than softmax.
    """
    activation = model.get_layer("head").activation
    if activation is keras.activations.softmax:
        return np.asarray(outputs, np.float64)
    if activation not in (None, keras.activations.linear):
        raise ValueError(
            "The model's head must give logits or end in softmax. It ends in "
            f"{getattr(activation, '__name__', activation)!r}."
        )
    return softmax(outputs)


def feature_model(model):
    """Returns the model up to its head: what "pre_logits" is in the paper.

    Raises:
        ValueError: if the model gives neither classes nor one vector.
    """
    if head_of(model) is None:
        if model.output.ndim != 2:
            raise ValueError(
                "A model without a head must give one vector an image. "
                f"{model.name!r} gives the shape {model.output.shape}."
            )
        return model
    features = Model(
        model.inputs[0],
        model.get_layer("head").input,
        name=f"{model.name}_features",
    )
    return _use_xla(features)


def _use_xla(model):
    """Compiles inference with XLA where Keras would not, and it is quicker."""
    if jit_compile() is True:
        model.jit_compile = True
    return model


def match_class_names(trained, data):
    """Finds the model's class of each of the data's classes.

    Returns:
        An array of the data's classes as classes of the model, and the names
        of the model's classes. Where nothing names the model's classes and
        there are as many as the data's, they are taken to be the same in the
        same order, with a warning.

    Raises:
        ValueError: if the classes do not fit; the message says what to do.
    """
    count, wanted = num_classes_of(trained), data.class_names
    known = trained.class_names
    if known is None and count == len(wanted):
        # ImageNet's classes are always in the order of their identifiers.
        if not (_are_ids(wanted) and list(wanted) == sorted(wanted)):
            _warn_of_order(count, data)
        return np.arange(count), tuple(wanted)
    is_imagenet = count == imagenet.IMAGENET_CLASSES and _are_ids(wanted)
    if known is None and is_imagenet:
        known = tuple(name for name, _ in imagenet.imagenet_labels())
    if known is None:
        raise ValueError(
            f"The model has {count} classes, and {data.name!r} has "
            f"{len(wanted)}. {_hint(count, len(wanted))}Evaluate it on what it "
            f"was trained on, or train a head for these: {_train(data)}."
        )
    strange = [name for name in wanted if name not in known]
    if strange or len(known) != count:
        shown = ", ".join(map(repr, strange[:_SHOWN]))
        raise ValueError(
            f"The model knows {len(known)} classes by name, such as "
            f"{known[0]!r}, and {len(strange)} of the {len(wanted)} classes of "
            f"{data.name!r} are not among them: {shown}"
            f"{', ...' if len(strange) > _SHOWN else ''}. Name the folders as "
            "in training, evaluate on the set it was trained on, or train a "
            f"head for these classes: {_train(data)}."
        )
    return np.array([known.index(name) for name in wanted]), known


def _warn_of_order(count, data):
    first = ", ".join(
        f"{number} is {name!r}"
        for number, name in enumerate(data.class_names[:2])
    )
    warn(
        f"The weights do not name their {count} classes. They are assumed to "
        f"be those of {data.name!r}, in the same order: class {first}, and so "
        "on. If this is wrong, so is the accuracy. A run's folder, with its "
        "config.json, has the names.",
    )


def _train(data):
    return f"recipes/finetune_cifar.py --dataset {data.name} --weights ..."


def _are_ids(names):
    return all(re.fullmatch(r"n\d{8}", name) for name in names)


def _hint(count, wanted):
    if count == wanted + 1:
        return (
            "One more is usually a background, class 0, and needs a head "
            "without it. "
        )
    if count == imagenet.IMAGENET21K_CLASSES:
        return "These are ImageNet-21k's, in which pre-training was done. "
    return ""


def _is_digits(data):
    """Whether these are scikit-learn's, and not a folder of that name."""
    return data.name == "digits" and data.image_size == 8


def fitted(data, trained):
    """Returns the data with as many channels as the model takes.

    Raises:
        ValueError: if they cannot be had.
    """
    if _is_digits(data) and trained.channels == 3:
        raise ValueError(
            "Digits are grey, and the model takes images of 3 channels. Load "
            "it for one: keras_vit.converters.load(..., input_shape=(8, 8, 1))."
        )
    if trained.channels not in (1, 3):
        raise ValueError(
            "Images are decoded to 1 or 3 channels. The model takes "
            f"{trained.channels}."
        )
    return dataclasses.replace(data, channels=trained.channels)
