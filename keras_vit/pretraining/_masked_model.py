"""What the three pre-training models share: they learn from images alone."""

import keras
from keras import ops

from keras_vit.models import weights_by_path
from keras_vit.pretraining._parts import Parts

# Arguments of `compile` that need labels.
_UNUSED = ("loss", "loss_weights", "metrics", "weighted_metrics")


class MaskedModel(keras.Model):
    """A model whose loss compares what it gives with the images it got.

    A subclass has `call`, which returns a dict of the patches' `prediction`
    and of `masked`, 1 for those that count; `patch_losses`, and `pixels`.
    `model.fit(images)` and a tf.data of images suffice: labels are not read,
    and sample weights weigh images.

    Args:
        encoder: A `VisionTransformer` whose output is all tokens. Its weights
            are shared, not copied: it learns, and can be saved alone.
        seed: Integer. Seed of the masks; None for any.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, encoder, seed=None, **kwargs):
        # The encoder's precision, also where it is read from a file.
        kwargs.setdefault("dtype", getattr(encoder, "dtype_policy", None))
        # Noise in half precision would have ties; layers cast for themselves.
        super().__init__(autocast=False, **kwargs)
        self.parts = Parts(encoder)
        self.encoder = encoder
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True  # all layers are, in the constructors

    def variables_by_path(self):
        """Returns the weights as `converters` name them, `{path: variable}`:
        the encoder's, those of layers beside it, and `decoder/...`."""
        layers = [x for x in self.layers if not isinstance(x, keras.Model)]
        beside = {
            f"{layer.name}/{variable.name}": variable
            for layer in layers
            for variable in layer.weights
        }
        decoder = getattr(self, "decoder", None)
        inside = weights_by_path(decoder) if decoder is not None else {}
        return {
            **weights_by_path(self.encoder),
            **beside,
            **{f"decoder/{path}": value for path, value in inside.items()},
        }

    def patch_losses(self, images, outputs):
        """Returns the loss of each patch, `(batch, num_patches)`."""
        raise NotImplementedError

    def pixels(self, prediction, patches):
        """Returns a prediction as patches of pixels, to look at."""
        raise NotImplementedError

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        **kwargs,
    ):
        """Configures the model for training.

        The loss is the model's own, and there are no labels to measure
        against: `loss`, `loss_weights`, `metrics` and `weighted_metrics` must
        be None. Override `patch_losses` to change the loss.

        Args:
            optimizer: Optimizer or its name.
            loss: None.
            loss_weights: None.
            metrics: None.
            weighted_metrics: None.
            **kwargs: As for `keras.Model.compile`, such as `jit_compile`.

        Raises:
            ValueError: if a loss or a metric is given.
        """
        values = (loss, loss_weights, metrics, weighted_metrics)
        given = [
            f"{name}={value!r}"
            for name, value in zip(_UNUSED, values, strict=True)
            if value is not None
        ]
        if given:
            raise ValueError(
                f"{type(self).__name__} computes its own loss from the images "
                "and reads no labels. Leave out `loss`, `loss_weights`, "
                "`metrics` and `weighted_metrics`. Received: "
                f"{', '.join(given)}"
            )
        super().compile(optimizer, **kwargs)

    def compile_from_config(self, config):
        # Keras calls `compile` while loading only if it is not overridden.
        config = keras.saving.deserialize_keras_object(config)
        # Files of earlier versions may hold a loss or metrics, which never
        # took effect.
        unused = dict.fromkeys(_UNUSED)
        self.compile(**{**config, **unused})
        self.optimizer.build(self.trainable_variables)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        losses = self.patch_losses(x, y_pred)
        weights = ops.cast(y_pred["masked"], losses.dtype)
        if sample_weight is not None:
            image = ops.cast(ops.reshape(sample_weight, (-1, 1)), losses.dtype)
            weights = weights * image
        # Sample weights may all be zero.
        loss = ops.sum(losses * weights) / (ops.sum(weights) + 1e-6)
        for extra in self.losses:  # of regularizers and `add_loss`
            loss = loss + ops.cast(ops.sum(extra), loss.dtype)
        return loss / _num_replicas()

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return self.get_metrics_result()  # the loss; labels are not read

    def reconstruct(self, images, **given):
        """Fills masked patches with what the model predicts.

        Args:
            images: Array of shape `(batch, height, width, channels)`.
            **given: As in a call: the mask or its noise.

        Returns:
            Two tensors of the images' shape: with masked patches grey (0),
            and with the prediction in their place.
        """
        outputs = self(images, **given)
        patches = self.parts.cut(images)
        masked = outputs["masked"][..., None]
        seen = patches * (1 - masked)
        filled = seen + masked * self.pixels(outputs["prediction"], patches)
        return self.parts.join(seen), self.parts.join(filled)

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "seed": self.seed,
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        read = keras.saving.deserialize_keras_object
        return cls(
            **{
                **config,
                "encoder": read(config["encoder"], custom_objects),
                "dtype": read(config["dtype"], custom_objects),
            }
        )


def _num_replicas():
    """TensorFlow adds up what its devices have; a mean is a share of it."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync
