"""Image and text towers whose embeddings are compared."""

import math
from typing import Any, Self

import keras
from keras import ops

from keras_vit.layers import initializers
from keras_vit.models import Model
from keras_vit.models.assigning import weights_by_path
from keras_vit.text.losses import contrastive_loss, sigmoid_loss
from keras_vit.text.tokenizer import Tokenizer
from keras_vit.utils import replicas
from keras_vit.utils.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class DualEncoder(keras.Model):
    """Compares images with texts: CLIP or SigLIP.

    The logit of an image and a text is the cosine similarity of their embeddings times
    the exponential of `logit_scale`, plus `logit_bias`, if there is one. From "Learning
    Transferable Visual Models From Natural Language Supervision"
    (https://arxiv.org/abs/2103.00020) and "Sigmoid Loss for Language Image
    Pre-Training" (https://arxiv.org/abs/2303.15343). `keras_vit.load` builds a dual
    encoder from files of transformers, open_clip and OpenAI.

    `fit` takes dicts as in a call, with as many texts as images, in the same order. The
    loss is `keras_vit.text.sigmoid_loss` if there is a bias, otherwise
    `contrastive_loss`, over the images and texts of all devices. With
    `encoder.trainable = False`, training is that of "LiT"
    (https://arxiv.org/abs/2111.07991).

    Args:
        encoder: A model that maps images to embeddings, such as a
            `keras_vit.VisionTransformer` whose head is the projection. A head of zeros
            is replaced by random values, as in CLIP. The encoder is available as
            `model.encoder`, an ordinary model to save, export and explain.
        text_encoder: A `keras_vit.text.TextEncoder` whose embeddings have the same
            number of channels; available as `model.text_encoder`.
        logit_scale: Float. Initial logarithm of the scale, which is 1 / 0.07 in CLIP
            and 10 in SigLIP.
        logit_bias: Float. Initial bias, -10 in SigLIP; None for no bias.
        tokenizer: A `keras_vit.text.Tokenizer`, which is saved with the model and lets
            it take strings; None for token ids only.
        name: String. Name of the model.

    Call arguments:
        inputs: Dict with "images", `(number of images, height, width, channels)`, and
            "texts", token ids `(number of texts, length)`.

    Output shape:
        `(number of images, number of texts)`

    Raises:
        ValueError: if the towers have embeddings of different sizes.

    Example:

    >>> model = keras_vit.load("clip-vit-base-patch32")
    >>> texts = model.tokenizer(["a photo of a cat", "a photo of a dog"])
    >>> logits = model({"images": images, "texts": texts})
    """

    def __init__(
        self,
        encoder: keras.Model,
        text_encoder: Model,
        logit_scale: float = math.log(1 / 0.07),
        logit_bias: float | None = None,
        tokenizer: Tokenizer | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        sizes = encoder.output_shape[1:], text_encoder.output_shape[1:]
        if len(sizes[0]) != 1 or sizes[0] != sizes[1]:
            raise ValueError(
                "Both towers must return embeddings with the same number of "
                f"channels. Received: images {encoder.output_shape}, texts "
                f"{text_encoder.output_shape}"
            )
        # A new head is zero, and embeddings of length 0 have no gradient.
        head = weights_by_path(encoder).get("head/kernel")
        if head is not None and not ops.convert_to_numpy(head).any():
            head.assign(initializers.Normal(head.shape[0] ** -0.5)(head.shape))
        self.encoder = encoder
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        self.logit_scale = self._scalar("logit_scale", logit_scale)
        self.logit_bias = None
        if logit_bias is not None:
            self.logit_bias = self._scalar("logit_bias", logit_bias)
        self.built = True

    def _scalar(self, name: str, value: float) -> keras.Variable:
        initializer = keras.initializers.Constant(value)
        return self.add_weight((), initializer, "float32", name=name, autocast=False)

    def encode_images(self, images: Tensor, normalize: bool = True) -> Tensor:
        """Computes embeddings of images.

        Args:
            images: Tensor of shape `(batch, height, width, channels)`, scaled as by
                `keras_vit.preprocess_input` with the mode
                `model.encoder.preprocess_mode`.
            normalize: Boolean. Whether embeddings are scaled to length 1.

        Returns:
            Tensor of shape `(batch, channels)`.
        """
        return _unit(self.encoder(images, training=False), normalize)

    def encode_texts(self, texts: Any, normalize: bool = True) -> Tensor:
        """Computes embeddings of texts.

        Args:
            texts: Token ids `(batch, length)`; or a string or a list of strings, for
                the tokenizer.
            normalize: Boolean. Whether embeddings are scaled to length 1.

        Returns:
            Tensor of shape `(batch, channels)`.

        Raises:
            ValueError: if strings are given and the model has no tokenizer.
        """
        return _unit(self.text_encoder(self.ids_of(texts), training=False), normalize)

    def ids_of(self, texts: Any) -> Any:
        """Returns the token ids of texts, which may already be ids; raises a
        `ValueError` for strings if there is no tokenizer."""
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, (list, tuple)) or not isinstance(texts[0], str):
            return ops.convert_to_tensor(texts, "int32")
        if self.tokenizer is None:
            raise ValueError(
                f"The model {self.name!r} has no tokenizer. Set `model.tokenizer = "
                "keras_vit.text.Tokenizer.of(...)`, or give token ids."
            )
        return self.tokenizer(texts)

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        images = _unit(self.encoder(inputs["images"], training=training))
        texts = _unit(self.text_encoder(inputs["texts"], training=training))
        return self.logits(replicas.gather(images)[0], replicas.gather(texts)[0])

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Computes the logits of embeddings of length 1.

        Args:
            images: Tensor of shape `(number of images, channels)`.
            texts: Tensor of shape `(number of texts, channels)`.

        Returns:
            Tensor of shape `(number of images, number of texts)`, in float32.
        """
        images, texts = (ops.cast(x, "float32") for x in (images, texts))
        logits = ops.matmul(images, ops.transpose(texts)) * ops.exp(self.logit_scale)
        return logits if self.logit_bias is None else logits + self.logit_bias

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        loss = contrastive_loss if self.logit_bias is None else sigmoid_loss
        total = loss(y_pred) + sum(ops.sum(extra) for extra in self.losses)
        return total / replicas.count()  # which TensorFlow sums

    def variables_by_path(self) -> dict[str, keras.Variable]:
        """Returns `{path: variable}`, with the paths of `converters`; those of the
        text tower begin with `text/`."""
        texts = weights_by_path(self.text_encoder)
        scalars = {"logit_scale": self.logit_scale}
        if self.logit_bias is not None:
            scalars["logit_bias"] = self.logit_bias
        return {
            **weights_by_path(self.encoder),
            **{f"text/{path}": variable for path, variable in texts.items()},
            **{f"text/{path}": variable for path, variable in scalars.items()},
        }

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "encoder": serialize(self.encoder),
            "text_encoder": serialize(self.text_encoder),
            "logit_bias": None if self.logit_bias is None else 0.0,
            "tokenizer": self.tokenizer and self.tokenizer.get_config(),
            "dtype": serialize(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Self:
        config = dict(config)
        tokenizer = config.pop("tokenizer")
        config = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            if isinstance(value, dict)
            else value
            for name, value in config.items()
        }
        return cls(**config, tokenizer=tokenizer and Tokenizer(**tokenizer))


def _unit(embeddings: Tensor, normalize: bool = True) -> Tensor:
    """Returns embeddings of length 1, as Keras's `UnitNormalization`."""
    if not normalize:
        return embeddings
    return ops.normalize(embeddings, axis=-1, order=2, epsilon=1e-12)
