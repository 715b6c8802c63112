"""The functional model class, and how a model and its head are built."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_vit.config import ResNetConfig, TextConfig, ViTConfig, from_json, to_json
from keras_vit.layers import (
    ImagePreprocessing,
    PatchEmbedding,
    TransformerBlock,
    initializers,
)
from keras_vit.models.resolution import Resolved
from keras_vit.utils import checks, replicas
from keras_vit.utils.memory import free_gradients
from keras_vit.utils.scaling import Mode, as_mode
from keras_vit.utils.types import Config, Tensor

# Options in which blocks of one model may differ: outputs without training do
# not depend on them.
_OF_ONE_BLOCK = frozenset(
    (
        *("name", "trainable", "dtype", "drop_path", "remat", "kernel_regularizer"),
        *("sublayer_trainable", "sublayer_quantization"),
    )
)


@keras.saving.register_keras_serializable("keras_vit")
class Model(keras.Model):
    """A functional model that checks the shape of images before it runs.

    `fit`, `evaluate`, `predict` and `predict_on_batch` check the shape of an
    array or of a `tf.data.Dataset` of images before they begin: with JAX,
    Keras's trainer loses the weights of a model if an error occurs later.

    Args:
        inputs: Inputs of a functional `keras.Model`.
        outputs: Outputs of a functional `keras.Model`.
        name: String. Name of the model.

    Attributes:
        config: The `ViTConfig`, `HybridConfig`, `BiTConfig` or `ResNetConfig` from
            which the model, or its encoder, was built; `keras_vit.config_of` returns
            it. A model that is assembled from layers has no config until one is
            assigned. `keras.models.clone_model` does not copy these attributes.
        class_names: Sequence of strings, the names of the classes, or None. They are
            saved in a `.keras` file with the model, as are `config` and
            `preprocess_mode`. Loading weights from a file with class names sets them,
            if the model keeps the head of these weights.
        preprocess_mode: The `mode` of `keras_vit.preprocess_input` that the weights
            were trained with, which is also the mode of the model's own
            `preprocessing`; None if it is unknown.
        resizing: Dict of timm's `interpolation`, `crop_pct` and `crop_mode`, with which
            the file of the weights says that images are resized; None if it does not
            say. They are written back, but this package does not apply them.

    Example:

    >>> features = vit.get_layer("pre_logits").output
    >>> model = keras_vit.models.Model(vit.input, my_head(features))
    """

    config: ViTConfig | ResNetConfig | TextConfig | None = None
    class_names: Sequence[str] | None = None
    preprocess_mode: Mode | None = None
    resizing: Config | None = None
    # Returns the model that `mixed_sizes` made this one of; no other has it.
    one_size: Callable[[], keras.Model]

    def get_config(self) -> Config:
        config = super().get_config()
        if self.config is not None:
            config["architecture"] = described(self)
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        if self.preprocess_mode is not None:
            config["preprocess_mode"] = self.preprocess_mode
        if self.resizing is not None:
            config["resizing"] = self.resizing
        return config

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Self:
        config = dict(config)
        architecture = config.pop("architecture", None)
        class_names = config.pop("class_names", None)
        mode = config.pop("preprocess_mode", None)
        resizing = config.pop("resizing", None)
        model = super().from_config(config, custom_objects)
        if architecture is not None:
            kinds = [type(x) for x in _blocks(model)[:1]]
            names = {keras.saving.get_registered_name(kind): kind for kind in kinds}
            block = architecture.get("block")
            if block is not None:
                architecture = {**architecture, "block": names.get(block, block)}
            model.config = from_json(architecture)
        model.class_names = class_names and tuple(class_names)
        model.preprocess_mode = mode and as_mode(mode)
        model.resizing = resizing
        return model

    @functools.wraps(keras.Model.fit)
    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        checks.averages_fit_norms(self)
        self._check_images(x)
        return super().fit(x, *args, **kwargs)

    def train_step(self, *args: Any) -> Any:
        free_gradients(self)
        return super().train_step(*args)  # type: ignore[misc]

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_images(x)
        return super().evaluate(x, *args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_images(x)
        return super().predict(x, *args, **kwargs)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, x: Any) -> Any:
        self._check_images(x)
        return super().predict_on_batch(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        """Computes the loss that `compile` was given.

        A loss with `ignore_class` is divided by the number of labels of the
        whole batch that are not ignored. Under a TensorFlow strategy, Keras would
        divide by the number of labels of each replica's part, so that labels in parts
        with fewer of them would count more.
        """
        ignored = getattr(getattr(self, "loss", None), "ignore_class", None)
        if ignored is not None and replicas.context() is not None:
            count = ops.sum(ops.cast(ops.not_equal(y, ignored), "float32"))
            mean = replicas.sum_of_all(count) / replicas.count()
            share = ops.divide_no_nan(count, mean)
            weighted = sample_weight is not None
            sample_weight = share * sample_weight if weighted else share
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _check_images(self, x: Any) -> None:
        """Raises a `ValueError` if the model does not accept the images' shape.

        The shape is that of an array, or is in the `element_spec` of a
        `tf.data.Dataset`. Data whose shape is known only per batch, such as a
        generator's, is not checked.
        """
        spec = getattr(x, "element_spec", x)
        spec = spec[0] if isinstance(spec, tuple) and spec else spec
        leaves = keras.tree.flatten(spec)  # a list or dict may hold one
        spec = leaves[0] if len(leaves) == 1 else spec
        shape: tuple[Any, ...] = tuple(getattr(spec, "shape", None) or ())
        if len(self.inputs) != 1 or len(self.inputs[0].shape) != 4 or not shape:
            return
        known = all(isinstance(n, int) for n in shape[1:])
        if len(shape) == 4 and not known:
            return
        # Under JAX, Keras's `predict` runs a model on images of another size.
        expected = self.inputs[0].shape[1:]
        if len(shape) != 4 or any(
            a not in (None, b) for a, b in zip(expected, shape[1:], strict=True)
        ):
            raise ValueError(
                f"{self.name!r} takes images of shape (batch, height, width, "
                f"channels) = {self.inputs[0].shape}. Received: images of "
                f"shape {shape}. Give one image as a batch, `images[None]`, "
                "and leave out an alpha channel; a model with "
                "`input_shape=(None, None, 3)` takes any size."
            )
        for layer in self.layers[1:]:
            if isinstance(layer, PatchEmbedding):
                layer.compute_output_shape(shape)
            if not isinstance(layer, ImagePreprocessing) or layer.image_size:
                return  # it changes the size


def _blocks(model: keras.Model) -> list[TransformerBlock]:
    return [x for x in model.layers if isinstance(x, TransformerBlock)]


def described(model: Any) -> Config:
    """Returns the config of a model as a file stores it.

    Its `block` is None if the blocks are those that the other fields describe.
    Otherwise, it is the registered name of their class, or a description of how a block
    differs, so that no code mistakes them for standard blocks.
    """
    config = to_json(model.config)
    blocks = _blocks(model)
    if blocks and isinstance(model.config, ViTConfig):
        config["block"] = _block_class(blocks, model.config)
    return config


def _block_class(blocks: list[TransformerBlock], config: ViTConfig) -> str | None:
    found = [
        {**x.get_config(), "class": keras.saving.get_registered_name(type(x))}
        for x in blocks
    ]
    first = found[0]
    expected = {**first, **config.block_arguments(0)}
    for block, own in zip(blocks, found, strict=True):
        for other, name in ((expected, "the config"), (first, "block_0")):
            keys = (own.keys() | other.keys()) - _OF_ONE_BLOCK
            differing = sorted(x for x in keys if own.get(x) != other.get(x))
            if differing:
                return f"{block.name} differs from {name} in {', '.join(differing)}"
    kind = first["class"]
    return None if kind == "keras_vit>TransformerBlock" else kind


def build_model(
    forward: Callable[[Tensor], Tensor],
    resolved: Resolved[Any],
    input_tensor: Tensor | None,
    name: str,
) -> Model:
    """Builds a functional model and loads its weights, if there are any.

    With a mode, its first layer is an `ImagePreprocessing`.
    """
    images, mode, load = input_tensor, resolved.mode, resolved.load
    if mode is not None:
        height, width, channels = resolved.input_shape
        images = keras.Input((None, None, channels), name="images")
        images = ImagePreprocessing(
            None if height is None or width is None else (height, width),
            mode,
            name="preprocessing",
        )(images)
    elif input_tensor is None:
        images = keras.Input(resolved.input_shape, name="images")
    # `load` sets every variable except a new head, which is zero anyway.
    with initializers.skip_init() if load else contextlib.nullcontext():
        outputs = forward(images)
    model = Model(images, outputs, name=name)
    model.config = resolved.config
    if load is not None:
        load(model)
    if input_tensor is not None or mode is not None:
        # Only after loading, since the checkpoint has no weights of the layers
        # before `images`.
        inputs = keras.utils.get_source_inputs(images)
        inputs = inputs[0] if len(inputs) == 1 else inputs
        inner, model = model, Model(inputs, outputs, name=name)
        copy_attributes(inner, model)
    model.preprocess_mode = mode or model.preprocess_mode
    return model


def copy_attributes(model: keras.Model, to: Any, new_head: bool = False) -> None:
    """Copies the config, the class names, the preprocessing mode and the resizing of
    one model to another, but no class names if the other has a head of its own."""
    to.config = getattr(model, "config", None)
    to.class_names = None if new_head else getattr(model, "class_names", None)
    to.preprocess_mode = getattr(model, "preprocess_mode", None)
    to.resizing = getattr(model, "resizing", None)


def unique_name(name: str) -> str:
    """Returns a name that is numbered from its second use on, as Keras numbers the
    names of layers: a model can contain two others only if their names differ."""
    count = keras.backend.get_uid(name)
    return name if count == 1 else f"{name}_{count - 1}"


def classification_head(
    classes: int | None,
    activation: str | Callable[[Tensor], Tensor] | None,
    name: str,
) -> keras.layers.Dense:
    """Returns the last dense layer of a model, initialized to zero."""
    # Under mixed precision, outputs are float32 for the loss and the softmax.
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer=initializers.Constant(0.0),
        bias_initializer=initializers.Constant(0.0),
        dtype="float32" if half else policy,
        name=name,
    )
