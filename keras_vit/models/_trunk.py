"""The one body of `VisionTransformer` and `HybridVisionTransformer`."""

import keras
import numpy as np

from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import AttentionPooling
from keras_vit.layers import ClassToken
from keras_vit.layers import LayerNormalization
from keras_vit.layers import MaskToken
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import Pooling
from keras_vit.layers import RelativePositionEmbs
from keras_vit.layers import TransformerBlock
from keras_vit.layers import initializers
from keras_vit.models._load import load_into
from keras_vit.models._model import Model
from keras_vit.models._resnet import resnet


def build(s):
    """Returns the model of settings that `_arguments.resolve` has settled."""

    # B batch, h w grid of patches, N = h w, D hidden size, P prefix tokens
    def layers(x):
        if s.resnet_layers is not None:
            x = resnet(x, s)  # a feature map, of which the patches are cut
        x, grid = _tokens(x, s)
        x = _encoder(x, grid, s)  # (B, P + N, D)
        return x if s.pooling is None else _head(x, s)

    return model_of(layers, s)


def model_of(layers, s):
    """Returns the model that ends in `layers(images)`, with its weights."""
    images = _images_of(s)

    def make():
        x = layers(images)
        return Model(images, x, name=s.name), x

    if s.checkpoint is None:
        model, x = make()
    else:
        # `load_into` sets every variable except a new head, which is zero.
        with initializers.skip_init():
            model, x = make()
        load_into(model, s.checkpoint, s.checkpoint_grid, s.keeps_head)
    if s.input_tensor is not None:
        # Only now: layers before the tensor are none of the checkpoint's.
        inputs = keras.utils.get_source_inputs(s.input_tensor)
        inputs = inputs[0] if len(inputs) == 1 else inputs
        model = Model(inputs, x, name=s.name)
    return model


def _images_of(s):
    if s.input_tensor is not None:
        return s.input_tensor
    return keras.Input(s.input_shape, name="images")


def _tokens(x, s):
    """Images, or a feature map, to tokens (B, P + N, D), with positions if
    they have theirs here, and the grid that they come from."""
    grid = PatchEmbedding(
        s.hidden_size,
        s.patch_size,
        use_bias=s.patch_bias,
        pad_to_patch=s.pad_to_patch,
        name="patch_embedding",
    )(x)  # (B, h, w, D)
    x = keras.layers.Reshape((-1, s.hidden_size), name="tokens")(grid)
    if s.mask_token:
        x = MaskToken(name="mask_token", trainable=False)(x)

    # Tokens join from the front; those that have a position join before it.
    positions = None
    if s.position_placement == "stem":
        positions = _positions(s, "position_embedding")
    joined = 0
    for layer_name, count, initializer in s.prefix_tokens:
        if joined == s.num_positioned and positions is not None:
            x, positions = positions(x, grid), None
        x = ClassToken(
            count, index=joined, initializer=initializer, name=layer_name
        )(x)
        joined += count
    if positions is not None:
        x = positions(x, grid)  # (B, P + N, D)
    return x, grid


def _positions(s, name, num_skipped_tokens=0):
    return AddPositionEmbs(
        s.position_embedding,
        grid_size=s.grid_size,
        num_prefix_tokens=s.num_positioned,
        resampling=s.resampling,
        num_skipped_tokens=num_skipped_tokens,
        name=name,
    )


def _positions_of_blocks(s):
    """Returns each block's layer of positions: its own, or one for all; None
    if they were added before the blocks."""
    if s.position_placement == "stem":
        return [None] * s.num_layers

    def make(name):
        if s.position_embedding != "relative":
            skipped = s.num_prefix_tokens - s.num_positioned
            return _positions(s, name, skipped)
        return RelativePositionEmbs(
            s.hidden_size // s.num_heads,
            grid_size=s.grid_size,
            resampling=s.resampling,
            name=name,
        )

    # The names tell which: see `converters/_positions.py`.
    if s.position_placement == "every_layer_shared":
        return [make("position_embedding_shared")] * s.num_layers
    return [make(f"position_embedding_{i}") for i in range(s.num_layers)]


def _encoder(x, grid, s):
    x = keras.layers.Dropout(s.dropout, name="dropout")(x)
    if s.pre_norm:
        x = _norm(s, "pre_norm")(x)

    positions = _positions_of_blocks(s)
    relative = {}  # what a layer gives; one that all blocks share runs once
    for i, rate in enumerate(np.linspace(0, s.drop_path, s.num_layers)):
        block = TransformerBlock(
            s.num_heads,
            s.mlp_dim,
            activation=s.activation,
            norm_epsilon=s.norm_epsilon,
            qkv_bias=s.qkv_bias,
            qk_norm=s.qk_norm,
            layer_scale=s.layer_scale,
            dropout=s.dropout,
            attention_dropout=s.attention_dropout,
            drop_path=float(rate),
            remat=s.remat,
            name=f"block_{i}",
        )
        layer = positions[i]
        inputs = [x]
        if s.position_embedding == "relative":
            if layer.name not in relative:
                relative[layer.name] = layer(grid)
            inputs = [x, relative[layer.name]]
        elif layer is not None:
            inputs = [layer(x, grid)]
        x = block(*inputs)
    norm = None
    if s.final_norm == "before_pooling":
        norm = _norm(s, "encoder_norm")
        x = norm(x)
    if s.pooling == "token":
        # The last block computes the pooled tokens alone, 7 % less work for
        # ViT-B/16. The calls above stay outside the model's graph; they give
        # `layer.output` all tokens.
        x = block(*inputs, num_queries=2 if s.distillation else 1)
        x = x if norm is None else norm(x)
    return x


def _head(x, s):
    """Tokens to logits; to a vector without a top."""
    distilled = None
    if s.pooling == "map":
        x = AttentionPooling(
            s.num_heads,
            s.mlp_dim,
            activation=s.activation,
            norm_epsilon=s.norm_epsilon,
            num_prefix_tokens=s.num_prefix_tokens,
            name="pooling",
        )(x)
    else:
        if s.distillation and s.pooling == "token":
            distilled = Pooling("token", index=1, name="distillation")(x)
        x = Pooling(
            s.pooling, num_prefix_tokens=s.num_prefix_tokens, name="pooling"
        )(x)
    if s.final_norm == "after_pooling":
        x = _norm(s, "head_norm")(x)

    if distilled is not None:
        return _distilled_heads(x, distilled, s)
    x = _pre_logits(x, s.representation_size)  # (B, representation size)
    if s.include_top:
        x = head_layer(s.classes, s.classifier_activation, "head")(x)
    return x


def _distilled_heads(x, distilled, s):
    if s.include_top:
        heads = [
            head_layer(s.classes, s.classifier_activation, layer_name)
            for layer_name in ("head", "distillation_head")
        ]
        pairs = zip(heads, (x, distilled), strict=True)
        x = [head(token) for head, token in pairs]
    else:
        x = [x, distilled]
    # In the heads' precision: under mixed precision the mean of float32
    # logits would be rounded.
    mean_dtype = x[0].dtype if s.include_top else None
    return keras.layers.Average(name="distilled_mean", dtype=mean_dtype)(x)


def _norm(s, name):
    return LayerNormalization(epsilon=s.norm_epsilon, name=name)


def _pre_logits(x, size):
    if size is None:
        return keras.layers.Identity(name="pre_logits")(x)
    return keras.layers.Dense(
        size,
        activation="tanh",
        kernel_initializer=initializers.lecun_normal(x.shape[-1]),
        bias_initializer=initializers.Constant(0.0),
        name="pre_logits",
    )(x)


def head_layer(classes, activation, name):
    # Outputs are float32 under mixed precision, as losses and softmax want.
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer=initializers.Constant(0.0),
        bias_initializer=initializers.Constant(0.0),
        dtype="float32" if half else policy,
        name=name,
    )
