"""Base class of the pre-training models, and the stages of their encoder."""

import functools
from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit.layers import Patches
from keras_vit.layers.composite import with_arguments
from keras_vit.models.assigning import weights_by_path
from keras_vit.utils import checks, replicas
from keras_vit.utils.memory import free_gradients
from keras_vit.utils.types import Array, Config, Tensor

# Arguments of `compile` that require labels.
_LABEL_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics")


class PretrainingModel(keras.Model):
    """Base class of models that learn from images without labels.

    A subclass implements `call` and `compute_loss`. `fit` takes images only;
    labels are ignored. The encoder is a `VisionTransformer` for images of one size that
    outputs all tokens. Its weights are shared, not copied.
    """

    def __init__(self, encoder: keras.Model, **kwargs: Any) -> None:
        # By default the encoder's dtype policy, not the global one.
        kwargs.setdefault("dtype", getattr(encoder, "dtype_policy", None))
        # Without autocast, since noise in half precision would have ties.
        # Each layer casts its own inputs.
        super().__init__(autocast=False, **kwargs)
        self.stages = EncoderStages(encoder)
        self.encoder = encoder

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        **kwargs: Any,
    ) -> None:
        """Configures the model for training; raises a `ValueError` if a loss or
        a metric is given, since the model computes its loss from the images."""
        given = [x for x in _LABEL_ARGUMENTS if kwargs.get(x) is not None]
        if given:
            raise ValueError(
                f"{type(self).__name__} computes its own loss from the images "
                f"and reads no labels. Leave out: {', '.join(given)}"
            )
        super().compile(optimizer, **kwargs)

    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        checks.averages_fit_norms(self)
        return super().fit(*args, **kwargs)

    def train_step(self, *args: Any) -> Any:
        free_gradients(self)
        return super().train_step(*args)  # type: ignore[misc]

    def compile_from_config(self, config: Config) -> None:
        # While loading, Keras does not call a `compile` that is overridden.
        config = keras.saving.deserialize_keras_object(config)
        # Files of earlier versions may contain a loss or metrics, which never
        # had an effect.
        self.compile(**{**config, **dict.fromkeys(_LABEL_ARGUMENTS)})
        self.optimizer.build(self.trainable_variables)

    @property
    def pretrained_encoder(self) -> keras.Model:
        """The encoder to use after training."""
        return self.encoder

    def variables_by_path(self) -> dict[str, keras.Variable]:
        """Returns `{path: variable}`, with the paths of `converters`.

        The paths of `pretrained_encoder` have no prefix. Those of another encoder begin
        with `student/` or `teacher/`, and those of a decoder or any other layer with
        the layer's name.
        """
        paths = {}
        for layer in self.layers:
            if isinstance(layer, keras.Model):
                prefix = f"{layer.name}/"
                if layer is self.encoder:
                    prefix = "student/"
                if layer is self.pretrained_encoder:
                    prefix = ""
                for path, variable in weights_by_path(layer).items():
                    paths[prefix + path] = variable
            elif not isinstance(layer, keras.metrics.Metric):
                for variable in layer.weights:
                    # Below the name of the model, if it is in the path.
                    path = variable.path.split(f"{layer.name}/", 1)[-1]
                    paths[f"{layer.name}/{path}"] = variable
        return paths

    def add_extra_losses(self, loss: Tensor) -> Tensor:
        """Adds the losses of regularizers and `add_loss` to the mean loss of
        the batch, and divides by the number of replicas of a TensorFlow
        strategy, which sums the losses of its replicas."""
        for extra in self.losses:
            loss = loss + ops.cast(ops.sum(extra), loss.dtype)
        return loss / replicas.count()

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        return self.get_metrics_result()  # only the loss

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        dtype = serialize(self.dtype_policy)
        return with_arguments(self, {"name": self.name, "dtype": dtype})

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: dict[str, Any] | None = None
    ) -> Self:
        objects = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            for name, value in config.items()
            if isinstance(value, dict)
        }
        return cls(**{**config, **objects})


def freeze(layer: keras.Layer) -> None:
    """Makes the weights of a layer non-trainable, but not the layer itself.

    A file stores the flags of layers, not those of weights: a saved encoder can
    therefore be fine-tuned. Moreover, batch norms of a frozen layer would use their
    moving statistics instead of those of the batch.
    """
    for variable in layer.trainable_weights:
        variable.trainable = False


class EncoderStages:
    """Runs a `VisionTransformer` in two stages, to mask patches in between.

    `embed` runs the layers before the blocks, `encode` the blocks and the final
    norm. The encoder's layers are called, not copied. `grid_size` is in
    patches, and `patch_area` is the number of values of a patch, rows * columns
    * channels.
    """

    def __init__(self, encoder: keras.Model) -> None:
        _check_encoder(encoder)
        layers = {layer.name: layer for layer in encoder.layers}
        names = list(layers)
        first = names.index("tokens")
        # The dropout before the blocks, whose name depends on the version.
        dropouts = [isinstance(x, keras.layers.Dropout) for x in encoder.layers]
        body = dropouts.index(True)
        self.embedding = layers["patch_embedding"]
        self.positions = layers["position_embedding"]
        self._embedding_layers = [layers[x] for x in names[first + 1 : body]]
        self._block_layers = [layers[x] for x in names[body:]]

        block = layers["block_0"]
        self.activation = block.activation
        self.norm_epsilon = block.norm_epsilon
        self.patch_size = self.embedding.patch_size
        self.hidden_size = self.embedding.hidden_size
        self._image_shape = tuple(encoder.input_shape[1:])
        self._patches = Patches(self.patch_size, dtype="float32")
        shape = self._patches.compute_output_shape((None, *self._image_shape))
        _, self.num_patches, self.patch_area = shape
        rows, columns, self.channels = self._image_shape
        p, q = self.patch_size
        self.grid_size = (rows // p, columns // q)
        self.num_prefix = encoder.output_shape[1] - self.num_patches
        self.has_class_token = "class_token" in layers

    # `training` is passed explicitly: under JAX, Keras's trainer runs `call`
    # outside the call context from which layers would infer it.
    def embed(
        self,
        images: Tensor,
        transform: Callable[[Tensor], Tensor] | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embeds images `(B, H, W, C)` as tokens `(B, P + N, D)`: P prefix
        tokens and N patches, with position embeddings.

        Position embeddings are resampled if the size differs from the encoder's.
        `transform` is applied to the patch embeddings `(B, N, D)` before prefix tokens
        and positions are added.
        """
        grid = self.embedding(images)
        rows, columns = grid.shape[1:3]
        x = ops.reshape(grid, (-1, rows * columns, self.hidden_size))
        if transform is not None:
            x = transform(x)
        for layer in self._embedding_layers:
            inputs = (x, grid) if layer is self.positions else (x,)
            x = layer(*inputs, training=training)
        return x

    def encode(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        """Applies the blocks and the final norm to any number of tokens."""
        for layer in self._block_layers:
            tokens = layer(tokens, training=training)
        return tokens

    def freeze_positions(self, positions: Array) -> None:
        """Replaces the learned position embeddings by fixed ones, `(1,
        num_patches, hidden_size)`, and those of tokens before the patches by
        zeros; raises a `ValueError` if the encoder has no learned positions for
        its grid."""
        layer = self.positions
        if layer.embedding is None or layer.built_grid != self.grid_size:
            raise ValueError(
                "`positions='sincos2d'` replaces the encoder's learned "
                f"positions, for a grid of {self.grid_size}. Received an "
                f"encoder with position_embedding={layer.kind!r} for "
                f"{layer.built_grid}. Give `positions='learned'` to keep its "
                "positions."
            )
        prefix = ((0, 0), (layer.num_prefix_tokens, 0), (0, 0))
        layer.embedding.assign(np.pad(positions, prefix))
        freeze(layer)

    def patchify(self, images: Tensor) -> Tensor:
        """Splits images into flat patches `(B, num_patches, patch_area)`."""
        images = ops.cast(images, "float32")
        return self._patches(ops.reshape(images, (-1, *self._image_shape)))

    def unpatchify(self, patches: Tensor) -> Tensor:
        """Assembles images from flat patches; the inverse of `patchify`."""
        (rows, columns), (p, q) = self.grid_size, self.patch_size
        x = ops.reshape(patches, (-1, rows, columns, p, q, self.channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, *self._image_shape))


def float32_output_policy(policy: keras.DTypePolicy) -> keras.DTypePolicy:
    """Returns the dtype policy of an output layer.

    It is float32 if `policy` computes in half precision, so that losses are
    computed in float32; otherwise `policy`.
    """
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.DTypePolicy("float32") if half else policy


def _check_encoder(encoder: keras.Model) -> None:
    names = [layer.name for layer in getattr(encoder, "layers", ())]
    required = {"patch_embedding", "tokens", "position_embedding", "block_0"}
    fits = (
        required <= set(names)
        and not {"root_conv", "pooling", "mask_token"} & set(names)
        and not any(name.startswith("position_embedding_") for name in names)
        and len(encoder.output_shape) == 3
        and None not in encoder.input_shape[1:]
    )
    if not fits:
        raise ValueError(
            "`encoder` must be a `VisionTransformer` for images of one size "
            "that outputs all tokens: build it with `include_top=False`, no "
            "`pooling`, an `input_shape`, positions in the stem and no "
            f"`mask_token`. Received: {getattr(encoder, 'name', encoder)!r} of "
            f"the input shape {getattr(encoder, 'input_shape', None)} with the "
            f"layers {', '.join(names)}"
        )
