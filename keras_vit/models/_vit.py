import keras
import numpy as np

from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import AttentionPooling
from keras_vit.layers import ClassToken
from keras_vit.layers import MaskToken
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import Pooling
from keras_vit.layers import TransformerBlock
from keras_vit.models import _arguments
from keras_vit.weights import load_into


def VisionTransformer(
    *,
    patch_size=None,
    hidden_size=None,
    num_layers=None,
    num_heads=None,
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
    num_registers=None,
    distillation=None,
    mask_token=None,
    position_embedding=None,
    position_prefix=None,
    grid_size=None,
    resampling=None,
    patch_bias=None,
    pre_norm=None,
    qkv_bias=None,
    qk_norm=None,
    layer_scale=None,
    activation=None,
    norm_epsilon=None,
    final_norm=None,
    dropout=0.0,
    attention_dropout=0.0,
    drop_path=0.0,
    remat=False,
    pad_to_patch=False,
    name="vision_transformer",
):
    """Builds a Vision Transformer of any size as a functional Keras model.

    From "An Image is Worth 16x16 Words", Section 3.1
    (https://arxiv.org/abs/2010.11929). The defaults are those of its code,
    google-research/vision_transformer; the other options are what timm,
    Hugging Face, torchvision and big_vision do differently.

    An architecture argument that is None is what `weights` tell, else what
    the paper's code has, which is given below as the default. The sizes must
    be given where there are no weights.

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
        weights: None for random weights, or the path of a checkpoint: a file
            of google-research/vision_transformer, big_vision, timm, Hugging
            Face (or its folder), torchvision, DINOv2 or MAE. See below.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`. None takes what the weights
            were made for, else `(224, 224, 3)`. Height and width may be None:
            the model then takes images of any size and aspect.
        pooling: "token" (the class token), "gap" (mean of the patches),
            "token_gap" (both, one behind the other: DINOv2's classifier),
            "map" (attention pooling), or None: "token", or "gap" without a
            class token, if `include_top`; else no pooling.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        representation_size: Integer. Width of the tanh layer `pre_logits`
            before the head, which the paper has in pre-training; None for
            none.
        class_token: Boolean. None has one unless `weights` has none or the
            pooling is "gap" or "map" with random weights.
        num_registers: Integer. Register tokens behind the class token; 0.
        distillation: Boolean. Whether to have DeiT's distillation token; with
            a head, the output is the mean of the two tokens' heads.
        mask_token: Boolean. Whether to hold a token for masked patches; False.
        position_embedding: "learned" (default), "sincos2d" or "none".
        position_prefix: Which tokens before the patches have a position:
            "all" (default), "class" (registers have none: DINOv2) or
            "none" (big_vision
            and timm's `no_embed_class`).
        grid_size: `(rows, columns)` of the learned positions. None takes that
            of `input_shape`; where this is unknown, that of `weights`, else
            that of 224 x 224 pixels.
        resampling: How positions are fitted to another grid;
            "bilinear_align_corners". See `AddPositionEmbs`.
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
            or "none".
        dropout: Float in [0, 1). After the positions, the attention and both
            dense layers of the MLP.
        attention_dropout: Float in [0, 1). On attention probabilities.
        drop_path: Float in [0, 1). Rate of stochastic depth in the last
            block; it grows linearly from 0 in the first.
        remat: Boolean. Whether training computes the blocks a second time
            for the gradients instead of keeping their values.
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
    s = _arguments.resolve(dict(locals()))

    def norm(layer_name):
        return keras.layers.LayerNormalization(
            epsilon=s.norm_epsilon, name=layer_name
        )

    # B batch, h w grid of patches, N = h w, D hidden size, P prefix tokens
    images = input_tensor
    if images is None:
        images = keras.Input(s.input_shape, name="images")
    grid = PatchEmbedding(
        s.hidden_size,
        s.patch_size,
        use_bias=s.patch_bias,
        pad_to_patch=pad_to_patch,
        name="patch_embedding",
    )(images)  # (B, h, w, D)
    x = keras.layers.Reshape((-1, s.hidden_size), name="tokens")(grid)
    if s.mask_token:
        x = MaskToken(name="mask_token", trainable=False)(x)

    # Tokens join from the front; those that have a position join before it.
    positions = AddPositionEmbs(
        s.position_embedding,
        grid_size=s.grid_size,
        num_prefix_tokens=s.num_positioned,
        resampling=s.resampling,
        name="position_embedding",
    )
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
    x = keras.layers.Dropout(s.dropout, name="dropout")(x)
    if s.pre_norm:
        x = norm("pre_norm")(x)

    for i, rate in enumerate(np.linspace(0, s.drop_path, s.num_layers)):
        x = TransformerBlock(
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
            remat=remat,
            name=f"block_{i}",
        )(x)
    if s.final_norm == "before_pooling":
        x = norm("encoder_norm")(x)

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
    elif s.pooling is not None:
        if s.distillation and s.pooling == "token":
            distilled = Pooling("token", index=1, name="distillation")(x)
        x = Pooling(
            s.pooling, num_prefix_tokens=s.num_prefix_tokens, name="pooling"
        )(x)
    if s.final_norm == "after_pooling":
        x = norm("head_norm")(x)

    if distilled is not None:
        if include_top:
            heads = [
                _head(s.classes, classifier_activation, layer_name)
                for layer_name in ("head", "distillation_head")
            ]
            pairs = zip(heads, (x, distilled), strict=True)
            x = [head(token) for head, token in pairs]
        else:
            x = [x, distilled]
        # In the heads' precision: under mixed precision the mean of float32
        # logits would be rounded.
        mean_dtype = x[0].dtype if include_top else None
        x = keras.layers.Average(name="distilled_mean", dtype=mean_dtype)(x)
    elif s.pooling is not None:
        x = _pre_logits(s.representation_size)(x)  # (B, representation size)
        if include_top:
            x = _head(s.classes, classifier_activation, "head")(x)

    model = keras.Model(images, x, name=name)
    if s.checkpoint is not None:
        load_into(model, s.checkpoint, s.checkpoint_grid, s.keeps_head)
    if input_tensor is not None:
        # Only now: layers before the tensor are none of the checkpoint's.
        inputs = keras.utils.get_source_inputs(input_tensor)
        inputs = inputs[0] if len(inputs) == 1 else inputs
        model = keras.Model(inputs, x, name=name)
    return model


def _pre_logits(size):
    if size is None:
        return keras.layers.Identity(name="pre_logits")
    return keras.layers.Dense(
        size,
        activation="tanh",
        kernel_initializer="lecun_normal",  # Flax's default
        name="pre_logits",
    )


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
