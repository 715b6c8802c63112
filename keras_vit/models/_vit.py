from keras_vit.models import _arguments
from keras_vit.models import _trunk


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
    position_placement=None,
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
    `pre_logits` and `head`; `feature_extractor` reads any of them. Positions
    in every layer are `position_embedding_0` ..., or, shared,
    `position_embedding_shared`.

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
            "first_patch" (the token of the first patch, at the top left:
            big_vision's `pool_type="0"`, whose files look like those of
            "gap"), "map" (attention pooling), or None: "token", or "gap"
            without a class token, if `include_top`; else no pooling.
        classes: Integer. None takes the number in `weights`, else 1000.
        classifier_activation: Activation of the head; None for logits.
        representation_size: Integer. Width of the tanh layer `pre_logits`
            before the head, which the paper has in pre-training; None for
            none.
        class_token: Boolean. None has one unless `weights` has none or the
            pooling is "gap", "first_patch" or "map" with random weights.
        num_registers: Integer. Register tokens behind the class token; 0.
        distillation: Boolean. Whether to have DeiT's distillation token; with
            a head, the output is the mean of the two tokens' heads.
        mask_token: Boolean. Whether to hold a token for masked patches; False.
        position_embedding: "learned" (default; also called "learned_1d"),
            "learned_2d", "relative", "sincos2d" or "none": the variants of
            the paper's Appendix D.4 and big_vision's fixed one. See
            `AddPositionEmbs` and `RelativePositionEmbs`.
        position_placement: Where positions are added: "stem" (once before the
            blocks; default), "every_layer" (at the start of every block, each
            time others) or "every_layer_shared" (the same ones). Relative
            ones are part of every block's attention: "every_layer" (default
            for them) or "every_layer_shared". Where nothing is added,
            nothing is said by it.
        position_prefix: Which tokens before the patches have a position:
            "all" (default), "class" (registers have none: DINOv2) or
            "none" (big_vision and timm's `no_embed_class`). Relative
            positions are of patches alone.
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
    return _trunk.build(_arguments.resolve(dict(locals())))
