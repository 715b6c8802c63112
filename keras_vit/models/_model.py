import contextlib
import functools
import itertools

import keras

from keras_vit.layers import PatchEmbedding
from keras_vit.layers import Pooling
from keras_vit.layers import TransformerBlock
from keras_vit.layers import _fast
from keras_vit.layers import _reading


@keras.saving.register_keras_serializable("keras_vit")
class Model(keras.Model):
    """A functional model that leaves out what nobody reads.

    Where the class token alone is pooled, the last block computes that token
    and no other: its keys and values are of all tokens, all else of one. The
    graph is what it was. `feature_extractor`, or another model on the same
    tensors, has all tokens where it gives them out; and so have a PyTorch hook
    and a `call` that was replaced in the instance, in the last block, the
    norms after it and the pooling layer.

    `fit`, `evaluate` and `predict` check the shape of an array or of a
    `tf.data.Dataset` of images before they begin: with JAX, Keras's trainer
    loses the weights of a model if an error occurs later.

    With PyTorch, `fit` also frees the gradients of the last step before the
    next one, and not in the midst of it.

    Args:
        inputs: As of a functional `keras.Model`.
        outputs: As of a functional `keras.Model`.
        name: String. Name of the model.

    Example:

    >>> features = vit.get_layer("pre_logits").output
    >>> model = keras_vit.models.Model(vit.input, my_head(features))
    """

    # A subclass, as Keras has no other place that `model(x)`, `fit`, `predict`
    # and `export` all come through. The arguments' names let it load itself.
    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(inputs, outputs, name=name, **kwargs)
        nodes = itertools.chain(*self._nodes_by_depth.values())
        self._first_read = _first_read(tuple(nodes), self.outputs)

    def call(self, inputs, training=None, mask=None, **kwargs):
        with self._leaving_out():
            return super().call(inputs, training=training, mask=mask, **kwargs)

    def _leaving_out(self):
        if self._first_read is None:
            return contextlib.nullcontext()
        block, readers, count = self._first_read
        layers = [self.get_layer(name) for name in (block, *readers)]
        if any(_fast.is_watched(layer) for layer in layers):
            return contextlib.nullcontext()
        return _reading.first_of(layers[0], count)

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
        """Raises a ValueError if images cannot be those of the model.

        Arrays have a shape, and a `tf.data.Dataset` an `element_spec`. What
        is known only batch by batch is not checked here.
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

    if keras.config.backend() == "torch":

        def train_step(self, data):
            self.zero_grad()  # Keras does so when the images have gone through
            return super().train_step(data)


def _first_read(nodes, outputs):
    """Finds the block of whose tokens only the first are read.

    Returns:
        Its name, the names of the layers that read its tokens, and how many
        tokens; None if all tokens of all blocks are read.
    """
    for node in nodes:
        block = node.operation
        if type(block) is TransformerBlock:  # another may do more
            calls = sum(other.operation is block for other in nodes)
            readers, count = _readers(node.outputs[0], nodes, outputs)
            if calls == 1 and count is not None:
                return block.name, readers, count
    return None


def _readers(tokens, nodes, outputs):
    """Returns the names of the norms and poolings that read tokens, and how
    many of the first are read at most; None for all."""
    names, most = (), 0
    if any(tokens is x for x in outputs):
        return names, None
    for node in nodes:
        if not any(tokens is x for x in node.input_tensors):
            continue
        reader, count = node.operation, None
        if isinstance(reader, Pooling) and reader.mode == "token":
            names, count = (*names, reader.name), reader.index + 1
        elif isinstance(reader, keras.layers.LayerNormalization):
            if reader.axis in (-1, 2, [-1], [2]):
                more, count = _readers(node.outputs[0], nodes, outputs)
                names = (*names, reader.name, *more)
        if count is None:
            return names, None
        most = max(most, count)
    return names, most
