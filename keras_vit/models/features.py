"""Outputs of the layers of a model."""

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.models.model import Model


def feature_extractor(model, names):
    """Builds a model that outputs the features of named layers.

    The new model shares its weights with `model`. Blocks and `encoder_norm`
    output all tokens, even if `model` itself computes only the class token.

    Args:
        model: A functional `keras.Model`, such as `ViTB16()`.
        names: String, or list of strings. Names of layers:
            "patch_embedding", "position_embedding", "block_0" ...,
            "encoder_norm", "pooling", "pre_logits", "head". For a layer that
            all blocks share, "position_embedding_shared" is the output of its
            first call, and "position_embedding_shared/3" of that before block
            3.

    Returns:
        A `keras.Model` that maps images to a dict `{name: output}` if `names`
        is a list, and to the output itself if it is a string.

    Raises:
        ValueError: if the model has no such layer, or the layer no such call.

    Example:

    >>> extract = keras_vit.feature_extractor(model, ["block_3", "pre_logits"])
    >>> features = extract(images)["block_3"]
    """
    requested = list(names) if isinstance(names, (list, tuple)) else [names]
    layers = {layer.name: layer for layer in model.layers}
    unknown = [
        name for name in requested if str(name).partition("/")[0] not in layers
    ]
    if unknown or not requested:
        raise ValueError(
            "`names` must be names of the model's layers. Received: "
            f"{unknown or names!r}. The model {model.name!r} has: "
            f"{', '.join(layers)}"
        )
    outputs = {}
    for name in requested:
        layer, _, call = name.partition("/")
        outputs[name] = _output(model, layers[layer], call)
    if isinstance(names, str):
        outputs = outputs[names]
    inputs = model.inputs
    # With a list of one input, Keras would warn at every call with a tensor.
    inputs = inputs[0] if len(inputs) == 1 else inputs
    return Model(inputs, outputs, name=f"{model.name}_features")


def all_tokens(block):
    """Returns the symbolic output of a `TransformerBlock` for all tokens.

    The graph of a loaded model may contain its last block only with
    `num_queries`. The block is then called again on the same inputs.

    Args:
        block: A `TransformerBlock` of a functional model.

    Returns:
        Keras tensor of shape `(batch, length, hidden_size)`.
    """
    inputs = block.input
    inputs = inputs if isinstance(inputs, list) else [inputs]
    if block.output.shape == inputs[0].shape:
        return block.output
    return block(*inputs)


def _output(model, layer, call):
    if call:
        return _output_of_call(layer, call)
    if isinstance(layer, TransformerBlock):
        return all_tokens(layer)
    if isinstance(layer, keras.layers.LayerNormalization):
        for block in model.layers:
            if isinstance(block, TransformerBlock):
                if layer.input is block.output:
                    tokens = all_tokens(block)
                    if tokens is not block.output:
                        return layer(tokens)
    return layer.output


def _output_of_call(layer, call):
    # The public `layer.output` is always that of the first call.
    nodes = layer._inbound_nodes
    if not call.isdecimal() or int(call) >= len(nodes):
        raise ValueError(
            f"`names` of calls of {layer.name!r} must be from "
            f"'{layer.name}/0' to '{layer.name}/{len(nodes) - 1}'. Received: "
            f"'{layer.name}/{call}'"
        )
    return nodes[int(call)].output_tensors[0]
