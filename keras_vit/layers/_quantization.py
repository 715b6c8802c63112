"""Saving of quantised sublayers.

`model.quantize("int8")` reaches the dense layers inside a block, but a saved
block is created from its own arguments, which say nothing of them. Keras stores
a second record of every layer, its build config, and the sublayers'
quantisation configs are added to that.
"""

import keras


def add(build_config, layer):
    """Returns the build config with the quantisation of the sublayers."""
    records = {
        _path_inside(sublayer, layer): _record(sublayer)
        for sublayer in layer._flatten_layers(include_self=False)
        if sublayer.quantization_mode is not None
    }
    return (
        {**build_config, "quantization": records} if records else build_config
    )


def restore(layer, build_config):
    """Quantises a newly built layer's sublayers as they were when saved."""
    records = build_config.get("quantization", {})
    for sublayer in layer._flatten_layers(include_self=False):
        record = records.get(_path_inside(sublayer, layer))
        if isinstance(record, str):  # a mode, as files of before store it
            sublayer.quantize(record)
        elif record is not None:
            sublayer.quantize(
                config=keras.saving.deserialize_keras_object(record)
            )


def _record(sublayer):
    """Returns the serialised quantisation config, or the mode's name if the
    layer, or this version of Keras, has no config."""
    config = getattr(sublayer, "quantization_config", None)
    if config is None:
        return sublayer.quantization_mode
    return keras.saving.serialize_keras_object(config)


def _path_inside(sublayer, layer):
    """Returns a sublayer's path from the layer on, since the layer's own path
    may differ when it is loaded."""
    return (sublayer.path or "").partition(f"{layer.name}/")[2]
