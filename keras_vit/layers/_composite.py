import keras


class CompositeLayer(keras.Layer):
    """Base class of layers that contain layers: keeps what is frozen inside.

    A Keras config holds the `trainable` flag of a layer, but not those of the
    layers inside it. They are created again as trainable, and a model counts
    their variables even if the outer layer is frozen: a frozen block would
    be trained after loading or cloning. Here sublayers take the flag of the
    layer that contains them, and flags that differ from it are in the config.

    A subclass calls `restore_trainable` at the end of `build`, when all of
    its sublayers exist.

    Args:
        sublayer_trainable: Dict of booleans by the names of sublayers, such
            as `{"attention": False, "mlp/dense_1": False}`. Sublayers that
            are not listed are as the layer that contains them.
        **kwargs: Arguments of `keras.Layer`.
    """

    def __init__(self, *, sublayer_trainable=None, **kwargs):
        super().__init__(**kwargs)
        # Pairs, as Keras would wrap a dict. None once they are applied.
        self._pending_flags = tuple((sublayer_trainable or {}).items())

    def restore_trainable(self):
        """Sets the flags of the sublayers, from the outermost inwards."""
        flags = dict(self._pending_flags or ())
        found = {""}
        for path, sublayer, parent in _sublayers(self):
            found.add(path)
            # With TensorFlow, Keras's setter of an equal value does nothing
            # and so does not reach deeper layers: each of them is set.
            inherited = parent.trainable and sublayer.trainable
            sublayer.trainable = flags.get(path, inherited)
        unknown = sorted(set(flags) - found)
        if unknown:
            raise ValueError(
                f"`sublayer_trainable` of {self.name!r} must name layers "
                f"inside it: {', '.join(sorted(found - {''}))}. "
                f"Received: {', '.join(unknown)}"
            )
        self._pending_flags = None

    def get_config(self):
        config = super().get_config()
        flags = self._pending_flags
        if flags is None:
            flags = [
                (path, sublayer.trainable)
                for path, sublayer, parent in _sublayers(self)
                if sublayer.trainable != parent.trainable
            ]
        if flags:
            config["sublayer_trainable"] = dict(flags)
        return config


def _sublayers(layer, prefix=""):
    """Yields `(path, sublayer, parent)` of all layers inside a layer."""
    for sublayer in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + sublayer.name
        yield path, sublayer, layer
        yield from _sublayers(sublayer, f"{path}/")
