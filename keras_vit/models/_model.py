import functools

import keras

from keras_vit.layers import PatchEmbedding


@keras.saving.register_keras_serializable("keras_vit")
class Model(keras.Model):
    """Functional model that checks the shape of images before it runs.

    `fit`, `evaluate` and `predict` check the shape of an array or of a
    `tf.data.Dataset` of images before they begin: with JAX, Keras's trainer
    loses the weights of a model if an error occurs later.

    Args:
        inputs: As of a functional `keras.Model`.
        outputs: As of a functional `keras.Model`.
        name: String. Name of the model.

    Example:

    >>> features = vit.get_layer("pre_logits").output
    >>> model = keras_vit.models.Model(vit.input, my_head(features))
    """

    @functools.wraps(keras.Model.fit)
    def fit(self, x=None, *args, **kwargs):
        self._check_images(x)
        return super().fit(x, *args, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, x=None, *args, **kwargs):
        self._check_images(x)
        return super().evaluate(x, *args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, x, *args, **kwargs):
        self._check_images(x)
        return super().predict(x, *args, **kwargs)

    def _check_images(self, x):
        """Raise a ValueError if the model cannot take images of this shape.

        Arrays have a shape, and a `tf.data.Dataset` an `element_spec`. Shapes
        that are known only batch by batch are not checked.
        """
        spec = getattr(x, "element_spec", x)
        spec = spec[0] if isinstance(spec, tuple) and spec else spec
        shape = tuple(getattr(spec, "shape", None) or ())
        if len(self.inputs) != 1 or len(self.inputs[0].shape) != 4:
            return
        if len(shape) != 4 or not all(isinstance(n, int) for n in shape[1:]):
            return
        channels = self.inputs[0].shape[-1]
        if channels not in (None, shape[-1]):
            raise ValueError(
                f"{self.name!r} takes images of {channels} channels, as "
                "(batch, height, width, channels). Received: images of shape "
                f"{shape}. Channels come last; leave out an alpha channel "
                "with `images[..., :3]`."
            )
        for layer in self.layers:
            if isinstance(layer, PatchEmbedding):
                if layer.input is self.inputs[0]:
                    layer.compute_output_shape(shape)
