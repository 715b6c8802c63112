"""Which weights of a model are trained."""

import keras

HEADS = ("head", "distillation_head")


def freeze_weights(layer: keras.Layer) -> None:
    """Makes the weights of a layer non-trainable, but not the layer itself.

    A file stores the flags of layers, not those of weights: training can be continued
    with the model that a run saves.

    Args:
        layer: `keras.Layer` or `keras.Model`.
    """
    for variable in layer.trainable_weights:
        variable.trainable = False


def set_trainable(model: keras.Model, train: str, lora_rank: int = 8) -> None:
    """Sets which variables of a model are trainable.

    Args:
        model: Model of this package that has not been compiled.
        train: String. "all"; "head", only the classification head; or "lora",
            the head and low-rank updates of the query and value kernels
            ("LoRA", https://arxiv.org/abs/2106.09685, Section 4.2).
        lora_rank: Integer. Rank of the low-rank updates.

    Raises:
        ValueError: if `train` is "lora" and the model has no encoder blocks.
    """
    if train == "all":
        return
    for layer in model.layers:
        if layer.name not in HEADS:
            freeze_weights(layer)
    if train == "head":
        return
    blocks = [
        layer
        for layer in model.layers
        if layer.name.startswith("block_") and hasattr(layer, "attention")
    ]
    if not blocks:
        raise ValueError(
            "`train='lora'` updates the attention of Vision Transformers and hybrids. "
            f"{model.name} has none: use `train='head'` or `train='all'`."
        )
    for block in blocks:
        block.attention.query.enable_lora(lora_rank)
        block.attention.value.enable_lora(lora_rank)
