import keras
import numpy as np

from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import AttentionPooling
from keras_vit.layers import ClassToken
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import Pooling
from keras_vit.layers import TransformerBlock
from keras_vit.models import _arguments
from keras_vit.weights import load_into


def VisionTransformer(
    *,
    patch_size,
    hidden_size,
    num_layers,
    num_heads,
    mlp_dim=None,
    include_top=True,
    weights=None,
    input_tensor=None,
    input_shape=None,
    pooling=None,
    classes=None,
    classifier_activation=None,
    representation_size=None,
    class_token=None,
    num_registers=0,
    distillation=False,
    position_embedding="learned",
    position_prefix="all",
    grid_size=None,
    resampling="bilinear_align_corners",
    patch_bias=True,
    pre_norm=False,
    qkv_bias=True,
    qk_norm=False,
    layer_scale=None,
    activation="gelu_tanh",
    norm_epsilon=1e-6,
    final_norm="before_pooling",
    dropout=0.0,
    attention_dropout=0.0,
    drop_path=0.0,
    pad_to_patch=False,
    name="vision_transformer",
):
    """Builds a Vision Transformer of any size as a functional Keras model.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929). The defaults are those of its code,
    google-research/vision_transformer; the other options are what timm,
    Hugging Face, torchvision and big_vision do differently.

    Images go in as `(batch, height, width, channels)` floats in [-1, 1] (see
    `preprocess_input`). Layers are named `patch_embedding`, `class_token`,
    `position_embedding`, `block_0` ..., `encoder_norm`, `pooling`,
    `pre_logits` and `head`; `feature_extractor` reads any of them.

    Args:
        patch_size: Integer or `(rows, columns)`, in pixels.
        hidden_size: Integer. Length of a token, D in the paper.
        num_layers: Integer. Number of encoder blocks.
        num_heads: Integer. It must divide `hidden_size`.
        mlp_dim: Integer. Width of the MLPs; None for 4 times `hidden_size`.
        include_top: Boolean. Whether to end in a classification head, which
            is zero at first. Without it the output is the pooled vector
            (after `pre_logits`), or all tokens if `pooling` is None.
        weights: None for random weights, or the path of an `.npz` file in
            the layout of google-research/vision_transformer. See below.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`. None takes what the weights
            were made for, else `(224, 224, 3)`. Height and width may be None:
            the model then takes images of any size and aspect.
        pooling: "token" (the class token), "gap" (mean of the patches),
            "map" (attention pooling), or None: "token", or "gap" without a
            class token, if `include_top`; else no pooling.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        representation_size: Integer. Width of the tanh layer `pre_logits`
            before the head, which the paper has in pre-training; None for
            none.
        class_token: Boolean. None has one unless `weights` has none or the
            pooling is "gap" or "map" with random weights.
        num_registers: Integer. Register tokens behind the class token.
        distillation: Boolean. Whether to have DeiT's distillation token; with
            a head, the output is the mean of the two tokens' heads.
        position_embedding: "learned", "sincos2d" or "none".
        position_prefix: Which tokens before the patches have a position:
            "all", "class" (registers have none: DINOv2) or "none" (big_vision
            and timm's `no_embed_class`).
        grid_size: `(rows, columns)` of the learned positions. None takes that
            of `input_shape`; where this is unknown, that of `weights`, else
            that of 224 x 224 pixels.
        resampling: How positions are fitted to another grid; see
            `AddPositionEmbs`.
        patch_bias: Boolean. Whether the patch embedding has a bias.
        pre_norm: Boolean. Whether tokens are normalised before the blocks.
        qkv_bias: Boolean. Whether query, key and value have a bias.
        qk_norm: Boolean. Whether queries and keys are normalised.
        layer_scale: Float. Where the factors of `LayerScale` start; None for
            none.
        activation: "gelu_tanh" (Google's weights), "gelu" (exact: PyTorch's
            weights), "quick_gelu", or a Keras activation's name.
        norm_epsilon: Float. Epsilon of every layer norm: 1e-6, and 1e-12 in
            some of Hugging Face's weights.
        final_norm: "before_pooling" (layer `encoder_norm`, on all tokens),
            "after_pooling" (layer `head_norm`, as in timm's average pooling)
            or None.
        dropout: Float in [0, 1). After the positions, the attention and both
            dense layers of the MLP.
        attention_dropout: Float in [0, 1). On attention probabilities.
        drop_path: Float in [0, 1). Rate of stochastic depth in the last
            block; it grows linearly from 0 in the first.
        pad_to_patch: Boolean. Whether to accept images that the patch does
            not divide, adding zeros at the bottom and at the right.
        name: String. Name of the model.

    Loading `weights` is exact and strict: an array that is missing, left over
    or of another shape is an error that lists all of them. Four things may
    differ, and are adapted: another number of `classes` keeps the body and
    starts a zero head; another `input_shape` resamples the positions; other
    channels sum (for one) or repeat and rescale the patch kernel; and without
    `representation_size` a stored `pre_logits` is left out, together with the
    head that was trained on it.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if an argument is wrong, the patch does not divide the
            image, or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.

    Example:

    >>> model = keras_vit.VisionTransformer(
    ...     input_shape=(32, 32, 3), patch_size=4, hidden_size=192,
    ...     num_layers=6, num_heads=3, classes=10)
    """
    settings = _arguments.resolve(
        patch_size=patch_size,
        mlp_dim=mlp_dim,
        hidden_size=hidden_size,
        num_layers=num_layers,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        input_shape=input_shape,
        pooling=pooling,
        classes=classes,
        representation_size=representation_size,
        class_token=class_token,
        num_registers=num_registers,
        distillation=distillation,
        position_prefix=position_prefix,
        grid_size=grid_size,
        final_norm=final_norm,
        drop_path=drop_path,
        pad_to_patch=pad_to_patch,
    )
    pooling, prefix = settings.pooling, settings.num_prefix_tokens

    def norm(layer_name):
        return keras.layers.LayerNormalization(
            epsilon=norm_epsilon, name=layer_name
        )

    # B batch, h w grid of patches, N = h w, D hidden size, P prefix tokens
    images = settings.images(input_tensor)
    grid = PatchEmbedding(
        hidden_size,
        patch_size,
        use_bias=patch_bias,
        pad_to_patch=pad_to_patch,
        name="patch_embedding",
    )(images)  # (B, h, w, D)
    x = keras.layers.Reshape((-1, hidden_size), name="tokens")(grid)

    # Tokens join from the front; those that have a position join before it.
    positions = AddPositionEmbs(
        position_embedding,
        grid_size=settings.grid_size,
        num_prefix_tokens=settings.num_positioned,
        resampling=resampling,
        name="position_embedding",
    )
    joined = 0
    for layer_name, count, initializer in settings.prefix_tokens:
        if joined == settings.num_positioned and positions is not None:
            x, positions = positions(x, grid), None
        x = ClassToken(
            count, index=joined, initializer=initializer, name=layer_name
        )(x)
        joined += count
    if positions is not None:
        x = positions(x, grid)  # (B, P + N, D)
    x = keras.layers.Dropout(dropout, name="dropout")(x)
    if pre_norm:
        x = norm("pre_norm")(x)

    for i, rate in enumerate(np.linspace(0, drop_path, num_layers)):
        x = TransformerBlock(
            num_heads,
            settings.mlp_dim,
            activation=activation,
            norm_epsilon=norm_epsilon,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            layer_scale=layer_scale,
            dropout=dropout,
            attention_dropout=attention_dropout,
            drop_path=float(rate),
            name=f"block_{i}",
        )(x)
    if final_norm == "before_pooling":
        x = norm("encoder_norm")(x)

    distilled = None
    if pooling == "map":
        x = AttentionPooling(
            num_heads,
            settings.mlp_dim,
            activation=activation,
            norm_epsilon=norm_epsilon,
            num_prefix_tokens=prefix,
            name="pooling",
        )(x)
    elif pooling is not None:
        if distillation and pooling == "token":
            distilled = Pooling("token", index=1, name="distillation")(x)
        x = Pooling(pooling, num_prefix_tokens=prefix, name="pooling")(x)
    if final_norm == "after_pooling":
        x = norm("head_norm")(x)

    if distilled is not None:
        if include_top:
            heads = [
                _head(settings.classes, classifier_activation, layer_name)
                for layer_name in ("head", "distillation_head")
            ]
            pairs = zip(heads, (x, distilled), strict=True)
            x = [head(token) for head, token in pairs]
        else:
            x = [x, distilled]
        x = keras.layers.Average(name="distilled_mean")(x)
    elif pooling is not None:
        x = _pre_logits(representation_size)(x)  # (B, representation size)
        if include_top:
            x = _head(settings.classes, classifier_activation, "head")(x)

    inputs = images
    if input_tensor is not None:
        inputs = keras.utils.get_source_inputs(input_tensor)
    model = keras.Model(inputs, x, name=name)
    if settings.checkpoint is not None:
        load_into(model, settings.checkpoint, settings.checkpoint_grid)
    return model


def _pre_logits(size):
    if size is None:
        return keras.layers.Identity(name="pre_logits")
    return keras.layers.Dense(size, activation="tanh", name="pre_logits")


def _head(classes, activation, name):
    # Outputs are float32 under mixed precision, as losses and softmax want.
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer="zeros",
        dtype="float32" if half else policy,
        name=name,
    )
