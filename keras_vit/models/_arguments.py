"""The arguments of `VisionTransformer` and `HybridVisionTransformer`, checked
and with nothing left open."""

import types

from keras_vit import _checks
from keras_vit._warnings import warn
from keras_vit.checkpoints import Checkpoint
from keras_vit.checkpoints import named
from keras_vit.checkpoints import open_checkpoint
from keras_vit.checkpoints._layouts import first_patch_is_possible
from keras_vit.checkpoints._resnet import RULES
from keras_vit.layers import initializers
from keras_vit.layers.patches import grid_size
from keras_vit.models import _positions
from keras_vit.models import _resnet
from keras_vit.models._input_shape import shape_of

DEFAULT_IMAGE_SIZE = 224
CLASSES_21K = 21843
POOLINGS = ("token", "gap", "token_gap", "first_patch", "map", None)
FINAL_NORMS = ("before_pooling", "after_pooling", "none")
SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")

# What is neither said nor told by the weights is as in the paper's code.
PAPER = {
    "num_registers": 0,
    "distillation": False,
    "mask_token": False,
    "position_prefix": "all",
    "resampling": "bilinear_align_corners",
    "patch_bias": True,
    "pre_norm": False,
    "qkv_bias": True,
    "qk_norm": False,
    "layer_scale": None,
    "activation": "gelu_tanh",
    "norm_epsilon": 1e-6,
    "final_norm": "before_pooling",
}


def resolve(said):
    """Returns a namespace of settings with nothing left open.

    Args:
        said: Dict of all arguments of `VisionTransformer`, and for a hybrid
            those of its ResNet; None stands for what is not said.
    """
    hybrid = "resnet_layers" in said
    s = types.SimpleNamespace(**{"resnet_layers": None, "stride": 1, **said})
    s.family = "hybrid" if hybrid else "vit"
    s.input_shape = shape_of(s.input_shape, s.input_tensor)
    s.checkpoint, told = _open(s)
    # A head was trained on what its pooling gave. timm's files do not tell
    # the pooling, so there naming it is no change.
    s.keeps_head = (
        s.pooling in (None, told.get("pooling"))
        or s.checkpoint is None
        or s.checkpoint.layout in ("timm", "mae")
        or (s.pooling == "first_patch" and _may_pool_first_patch(s, told))
        or (s.pooling == "first_patch" and _is_bare_keras_file(s, told))
    )
    if s.include_top and s.pooling is None and _may_pool_first_patch(s, told):
        warn(
            f"{s.checkpoint.path!r} is read as a model whose head takes the "
            "mean of the patches. Its arrays are the same as those of "
            'big_vision\'s `pool_type="0"`, which takes the first patch '
            'instead. Give `pooling="gap"` if the mean is right, or '
            '`pooling="first_patch"`.'
        )
    s.position_embedding, s.position_placement = _positions.settle(
        s.position_embedding, s.position_placement, told
    )
    for name in SIZES:
        if getattr(s, name) is None:
            setattr(s, name, told.get(name))
    for name, value in PAPER.items():
        if getattr(s, name) is None:
            setattr(s, name, told.get(name, value))
    if hybrid:
        _resnet.resolve(s, told, RULES["vit_jax"])
    _check_sizes(s)
    s.patch_size = _checks.positive_pair("patch_size", s.patch_size)
    _resolve_grid(s, told)
    _resolve_pooling(s, told)
    resolve_classes(s, told)
    _warn_of_zero_head(s)
    s.prefix_tokens, s.num_positioned = _prefix_tokens(s)
    s.num_prefix_tokens = sum(count for _, count, _ in s.prefix_tokens)
    return s


def _may_pool_first_patch(s, told):
    """Whether the file may be one of big_vision's `pool_type="0"`."""
    return (
        s.checkpoint is not None
        and first_patch_is_possible(s.checkpoint.layout, told)
        and "pooling" not in s.checkpoint.config
    )


def _is_bare_keras_file(s, told):
    """Whether a `.weights.h5` file without a config has the arrays of "gap",
    which are those of "first_patch"."""
    return (
        s.checkpoint is not None
        and s.checkpoint.layout == "keras"
        and told.get("pooling") == "gap"
        # Arrays do not tell the activation, so the file holds a config if it
        # is there.
        and "activation" not in s.checkpoint.config
    )


def _warn_of_zero_head(s):
    """The paper's ImageNet-21k files; those of AugReg have a true head."""
    head = s.checkpoint and s.checkpoint.weights.get("head/kernel")
    if head is None or not s.include_top or s.classes != head.shape[1]:
        return
    if s.classes == CLASSES_21K and not head.any():
        warn(
            f"{s.checkpoint.path!r} was released with a head of zeros: all "
            f"{CLASSES_21K:,} logits of this model are 0 whatever the image. "
            "Give `classes` for a new head to train, or `include_top=False` "
            "for features; AugReg's weights ('augreg-imagenet21k') have a "
            "trained head.",
        )


def _open(s):
    """Returns the checkpoint and what it tells; None and {} without one."""
    if s.weights is None:
        return None, {}
    checkpoint = opened(s.weights, s.family, s.num_heads)
    s.stride = checkpoint.stride
    grid = s.grid_size and _checks.positive_pair("grid_size", s.grid_size)
    image_grid = None
    if s.input_shape:
        patch = s.patch_size or checkpoint.patch_size or 1
        patch = _checks.positive_pair("patch_size", patch)
        image_grid = _grid(s, s.input_shape[:2], patch)
    told = checkpoint.arguments(grid, image_grid, None, s.position_prefix)
    if told["grid_size"] is None and s.class_token is not None:
        # Its class token may be what is missing.
        told = checkpoint.arguments(
            grid, image_grid, s.class_token, s.position_prefix
        )
    count = told["num_positions"]
    if count is not None and told["grid_size"] is None:
        raise ValueError(
            f"{checkpoint.path!r} has {count} positions, which are no square "
            "grid and not that of the image. Give `grid_size=(rows, columns)` "
            f"of the file, with rows * columns = {count}. Received: "
            f"grid_size={s.grid_size}, input_shape={s.input_shape}"
        )
    return checkpoint, told


_BUILDERS = {
    "vit": "VisionTransformer",
    "hybrid": "HybridVisionTransformer",
    "bit": "BiT",
}


def opened(weights, family, num_heads=None):
    """Returns the checkpoint at a path, if it holds a model of the family."""
    checkpoint = named(weights)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, num_heads=num_heads)
    if checkpoint.family != family:
        raise ValueError(
            f"{checkpoint.path!r} holds a model that "
            f"`{_BUILDERS[checkpoint.family]}` builds, not "
            f"`{_BUILDERS[family]}`. Call that one, or "
            "`converters.load`, which finds it."
        )
    return checkpoint


def _grid(s, image_size, patch_size):
    """Patches of an image, or of the feature map that a ResNet makes of it."""
    size = tuple(n if n is None else -(-n // s.stride) for n in image_size)
    try:
        return grid_size(size, patch_size, s.pad_to_patch)
    except ValueError as error:
        if s.stride == 1:
            raise
        raise ValueError(
            f"The ResNet makes a feature map of {size[0]} x {size[1]} of an "
            f"image of {image_size[0]} x {image_size[1]}; it is cut into "
            f"patches as an image is. {error}"
        ) from error


def _check_sizes(s):
    absent = [name for name in SIZES[:4] if getattr(s, name) is None]
    if absent:
        raise ValueError(
            f"{', '.join(absent)} must be given where there are no `weights` "
            "to tell."
        )
    s.hidden_size = _checks.positive_int("hidden_size", s.hidden_size)
    if s.mlp_dim is None:
        s.mlp_dim = 4 * s.hidden_size
    for name in SIZES[1:]:
        setattr(s, name, _checks.positive_int(name, getattr(s, name)))
    s.num_registers = _checks.non_negative_int("num_registers", s.num_registers)
    for name in ("dropout", "attention_dropout", "drop_path"):
        setattr(s, name, _checks.rate(name, getattr(s, name)))
    _checks.positive_float("norm_epsilon", s.norm_epsilon)
    _checks.one_of("pooling", s.pooling, POOLINGS)
    _checks.one_of("final_norm", s.final_norm, FINAL_NORMS)
    _checks.one_of(
        "position_prefix", s.position_prefix, ("all", "class", "none")
    )
    if s.representation_size is not None:
        s.representation_size = _checks.positive_int(
            "representation_size", s.representation_size
        )


def _resolve_grid(s, told):
    if s.input_shape is None:
        size = (DEFAULT_IMAGE_SIZE,) * 2
        if told.get("grid_size"):
            pairs = zip(told["grid_size"], s.patch_size, strict=True)
            size = tuple(count * patch * s.stride for count, patch in pairs)
        s.input_shape = (*size, told.get("channels", 3))
    grid = _grid(s, s.input_shape[:2], s.patch_size)
    s.checkpoint_grid = told.get("grid_size")
    if s.grid_size is not None:
        s.grid_size = _checks.positive_pair("grid_size", s.grid_size)
    elif None not in grid:
        s.grid_size = grid
    else:
        size = -(-DEFAULT_IMAGE_SIZE // s.stride)
        s.grid_size = s.checkpoint_grid or grid_size(
            (size, size), s.patch_size, pad_to_patch=True
        )


def resolve_classes(s, told):
    if s.include_top not in (True, False):
        # The first argument, of which other packages have others.
        raise ValueError(
            "`include_top` must be True or False. Received: include_top="
            f"{s.include_top!r}. Give all arguments by name, such as "
            'weights="imagenet21k" or input_shape=(224, 224, 3).'
        )
    if s.include_top and s.classes is None:
        s.classes = told.get("classes", 1000)
        if s.classes is None:
            raise ValueError(
                f"{s.checkpoint.path!r} has no classification head. Give "
                "`classes` for a new one, or set `include_top=False`."
            )
    if s.classes is not None:
        s.classes = _checks.positive_int("classes", s.classes)


def _resolve_pooling(s, told):
    if s.class_token is None:
        by_token = s.pooling in (None, "token", "token_gap")
        s.class_token = told.get("class_token", by_token)
    if s.include_top and s.pooling is None:
        s.pooling = told.get("pooling", "token" if s.class_token else "gap")
    if s.pooling in ("token", "token_gap") and not s.class_token:
        raise ValueError(
            f"`pooling={s.pooling!r}` reads the class token, and this model "
            "has none. Set `class_token=True`, or choose `pooling='gap'`, "
            "'first_patch' or 'map'."
        )
    if s.pooling is None:
        if s.representation_size:
            raise ValueError(
                "`representation_size` needs a `pooling`, whose vector it "
                f"reads. Received: representation_size={s.representation_size} "
                "with pooling=None and include_top=False."
            )
        if s.final_norm == "after_pooling":
            if s.checkpoint is None:
                raise ValueError(
                    "`final_norm='after_pooling'` needs a `pooling`. "
                    "Received: pooling=None with include_top=False."
                )
            s.final_norm = "none"  # the file's norm comes after its pooling
    late = s.final_norm == "after_pooling"
    if s.distillation and (not s.class_token or s.representation_size or late):
        raise ValueError(
            "`distillation=True` needs `class_token=True`, no "
            "`representation_size` and no norm after the pooling. Received: "
            f"class_token={s.class_token}, pooling={s.pooling!r}, "
            f"representation_size={s.representation_size}, "
            f"final_norm={s.final_norm!r}"
        )


def _prefix_tokens(s):
    """Returns `(layer name, count, initializer)` of the tokens before the
    patches, in order, and how many of them have a position."""
    tokens, positioned = [], 0
    if s.class_token:
        tokens.append(("class_token", 1, initializers.Constant(0.0)))
    if s.distillation:
        tokens.append(("distillation_token", 1, initializers.Normal(0.02)))
    if s.position_prefix == "class":
        positioned = len(tokens)
    if s.num_registers:
        small = initializers.Normal(0.02)
        tokens.append(("register_tokens", s.num_registers, small))
    if s.position_prefix == "all":
        positioned = sum(count for _, count, _ in tokens)
    return tuple(tokens), positioned
