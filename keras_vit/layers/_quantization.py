"""Quantised sublayers survive saving.

`model.quantize("int8")` reaches the dense layers inside a block, but a saved
block is made anew from its arguments, which say nothing of it. Keras keeps a
second record of every layer, what it was built with; the modes go there.
"""


def add(build_config, layer):
    """Returns the record with the modes of the layer's quantised sublayers."""
    modes = {
        sublayer.path: sublayer.quantization_mode
        for sublayer in layer._flatten_layers(include_self=False)
        if sublayer.quantization_mode is not None
    }
    return {**build_config, "quantization": modes} if modes else build_config


def restore(layer, build_config):
    """Quantises a newly built layer's sublayers as the record says."""
    modes = build_config.get("quantization", {})
    for sublayer in layer._flatten_layers(include_self=False):
        if sublayer.path in modes:
            sublayer.quantize(modes[sublayer.path])
