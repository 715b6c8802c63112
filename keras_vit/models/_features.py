from keras_vit.models._model import Model


def feature_extractor(model, names):
    """Returns a model that gives the outputs of named layers.

    The new model shares its weights with the old one.

    Args:
        model: A functional `keras.Model`, such as `ViTB16()`.
        names: Name of a layer, or a list of them: "patch_embedding",
            "position_embedding", "block_0" ..., "encoder_norm", "pooling",
            "pre_logits", "head". Of a layer that all blocks share, what it
            gives the first.

    Returns:
        A `keras.Model` that maps images to a dict of name to output; for a
        single name, to that output.

    Raises:
        ValueError: if the model has no layer of that name.

    Example:

    >>> extract = keras_vit.feature_extractor(model, ["block_3", "pre_logits"])
    >>> features = extract(images)["block_3"]
    """
    wanted = [names] if not isinstance(names, (list, tuple)) else list(names)
    layers = {layer.name: layer for layer in model.layers}
    unknown = [name for name in wanted if name not in layers]
    if unknown or not wanted:
        raise ValueError(
            "`names` must be names of the model's layers. Received: "
            f"{unknown or names!r}. The model {model.name!r} has: "
            f"{', '.join(layers)}"
        )
    outputs = {name: _output(layers[name]) for name in wanted}
    if isinstance(names, str):
        outputs = outputs[names]
    inputs = model.inputs
    # A list of one input would make Keras warn at every call with a tensor.
    inputs = inputs[0] if len(inputs) == 1 else inputs
    return Model(inputs, outputs, name=f"{model.name}_features")


def _output(layer):
    if layer.name == "position_embedding_shared":
        return layer._inbound_nodes[0].output_tensors[0]
    return layer.output
