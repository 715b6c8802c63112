"""Quantised sublayers survive saving.

`model.quantize("int8")` reaches the dense layers inside a block, but a saved
block is made anew from its arguments, which say nothing of it. Keras keeps a
second record of every layer, what it was built with; the modes go there.
"""


def add(build_config, layer):
    """Returns the record with the modes of the layer's quantised sublayers."""
    modes = {
        _inside(sublayer, layer): sublayer.quantization_mode
        for sublayer in layer._flatten_layers(include_self=False)
        if sublayer.quantization_mode is not None
    }
    return {**build_config, "quantization": modes} if modes else build_config


def restore(layer, build_config):
    """Quantises a newly built layer's sublayers as the record says."""
    modes = build_config.get("quantization", {})
    for sublayer in layer._flatten_layers(include_self=False):
        mode = modes.get(_inside(sublayer, layer))
        if mode is not None:
            sublayer.quantize(mode)


def _inside(sublayer, layer):
    """A sublayer's path from the layer on: what is around it may change."""
    return (sublayer.path or "").partition(f"{layer.name}/")[2]
