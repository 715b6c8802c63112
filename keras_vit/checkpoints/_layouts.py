"""Which layout a checkpoint has, and what only its layout tells."""

from keras_vit.checkpoints import _resnet
from keras_vit.checkpoints._architecture import positioned
from keras_vit.checkpoints._convert import raise_if
from keras_vit.checkpoints._formats import FORMATS
from keras_vit.checkpoints._positions import reasons_against

# What arrays cannot say and a code base always does.
_GOOGLE = {
    "activation": "gelu_tanh",
    "norm_epsilon": 1e-6,
    "resampling": "bilinear_align_corners",
}
MEANINGS = {
    "vit_jax": _GOOGLE,
    "big_vision": _GOOGLE,
    "timm": {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_antialias",
    },
    "huggingface": {
        "activation": "gelu",
        "norm_epsilon": 1e-12,
        "resampling": "bicubic",
    },
    "torchvision": {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_align_corners",
    },
    "dinov2": {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_offset",
    },
    "mae": {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic",
    },
}

# Which tokens before the patches can have a position, the likeliest first.
POSITION_PREFIXES = {
    "vit_jax": ("all",),
    "big_vision": ("none", "all"),  # old files have a row for the class token
    "timm": ("all", "class", "none"),
    "huggingface": ("class",),
    "torchvision": ("all",),
    "dinov2": ("class",),
    "mae": ("all",),
}

# transformers' DeiT whose head or pooler reads the class token alone.
_ONE_HEAD = ("deit", "deit-v5", "deit-bare", "deit-bare-v5")


def position_prefixes(layout, spelling):
    """Returns the values of `position_prefix` that are possible, the likeliest
    first, of a layout and the name of a spelling."""
    if layout == "huggingface" and spelling in _ONE_HEAD:
        return ("all",)  # also the distillation token that no head reads
    if layout == "timm" and spelling == "deit3":
        return ("none",)  # Meta's own files of DeiT III
    return POSITION_PREFIXES.get(layout, ("all", "class", "none"))


def meaning(layout, spelling, paths):
    """Returns the arguments of a model's function that a layout implies.

    Args:
        layout: A key of `FORMATS`.
        spelling: The `Format` that the file is in.
        paths: Our paths of its arrays.
    """
    family = _resnet.family(paths)
    if family == "bit":
        return dict(_resnet.RULES[_bit_rules(layout, spelling)])
    arguments = dict(MEANINGS[layout])
    if family == "hybrid":
        arguments.update(_resnet.RULES[layout])
    if layout == "huggingface" and spelling.name.startswith("dinov2"):
        arguments["norm_epsilon"] = 1e-6
    # DINOv2 resamples in another way where it has registers. transformers'
    # DeiT has one too here, a distillation token that its head does not read,
    # but resamples as its ViT does.
    with_registers = "register_tokens/tokens" in paths
    dinov2 = layout == "dinov2" or spelling.name.startswith("dinov2")
    if dinov2 and with_registers:
        arguments["resampling"] = "bicubic_antialias"
    return arguments


def _bit_rules(layout, spelling):
    """The code whose constants a file of a ResNet alone was made with."""
    if layout == "timm":
        return "timm_bit"
    kind = spelling.name.partition(",")[0]
    return {"": "bit", "v1": "vit_jax", "bit_paper": "bit_paper"}[kind]


def detect(arrays, layout=None):
    """Returns `(layout, spelling)` of a checkpoint.

    Args:
        arrays: Dict of the checkpoint's keys to arrays.
        layout: A key of `FORMATS`, optionally with `:spelling`; None finds
            it by the keys, if only one fits.

    Raises:
        ValueError: if the layout is unknown, or keys fit none or several.
    """
    name, _, wanted = (layout or "").partition(":")
    known(name or None)
    layouts = [name] if name else list(FORMATS)
    fits, nearest = {}, (len(arrays) + 1, None, None)
    for candidate in layouts:
        for spelling in FORMATS[candidate]:
            if wanted and spelling.name != wanted:
                continue
            if not all(key.startswith(spelling.prefix) for key in arrays):
                continue
            absent = any(key not in arrays for key in spelling.required)
            if absent and not wanted:
                continue
            if spelling.signs and not name:
                if not any(sign in arrays for sign in spelling.signs):
                    continue
            left = len(spelling.unknown(arrays))
            nearest = min(
                nearest, (left, candidate, spelling), key=lambda n: n[0]
            )
            if not left:
                # Spellings of like names can differ in their axes.
                bad = len(spelling.misshaped(arrays))
                best = fits.setdefault(candidate, (bad, spelling))
                fits[candidate] = min(
                    best, (bad, spelling), key=lambda fit: fit[0]
                )
    fits = {candidate: spelling for candidate, (_, spelling) in fits.items()}
    if "bit" in fits:
        fits.pop("vit_jax", None)  # the ResNet of a hybrid, without the rest
    # Google's two mean the same where their keys are the same.
    if len(fits) == 1 or fits.keys() == {"vit_jax", "big_vision"}:
        return next(iter(fits.items()))
    if name and nearest[2] is not None:
        # The reader then lists what is left over.
        return name, nearest[2]
    if fits:
        raise ValueError(
            f"The keys fit several layouts: {', '.join(fits)}. Say which with "
            f"`layout`."
        )
    if any(key.startswith("_torch_params.") for key in arrays):
        raise ValueError(
            "These are the names that Keras gives its `state_dict`, which are "
            "no layout. Write the model with `model.save(PATH.keras)`, or "
            "`keras_vit.converters.save`."
        )
    left, candidate, spelling = nearest
    if spelling is None or left == len(arrays):
        raise ValueError(
            "The keys fit no layout. The first are: "
            f"{', '.join(sorted(arrays)[:5])}. Known layouts: "
            f"{', '.join(FORMATS)}."
        )
    raise_if(
        {"Arrays that it has no place for": spelling.unknown(arrays)},
        f"The keys fit no layout. The nearest is {candidate!r}.",
    )


def spelling_of(layout, weights=()):
    """Returns the `Format` of a layout's name, `layout` or `layout:spelling`.

    Args:
        layout: The name; without a spelling the first is taken that has a
            place for all weights, or the first.
        weights: Our paths of what is to be written.

    Raises:
        ValueError: if there is no such layout or spelling.
    """
    known(layout)
    name, _, wanted = layout.partition(":")
    if not wanted:
        spellings = FORMATS[name]
        whole = (f for f in spellings if not f.homeless(weights))
        return next(whole, spellings[0])
    for spelling in FORMATS[name]:
        if spelling.name == wanted:
            return spelling
    names = [spelling.name for spelling in FORMATS[name] if spelling.name]
    raise ValueError(
        f"The layout {name!r} has the spellings "
        f"{', '.join(map(repr, names)) or 'none'}. Received: {layout!r}"
    )


# What each layout's code always does.
_POOLINGS = {
    "vit_jax": {"token": True, "gap": False},  # pooling: with class token?
    "big_vision": {
        "token": True,
        "gap": False,
        "first_patch": False,
        "map": False,
    },
}
_NEEDS_CLASS_TOKEN = ("huggingface", "torchvision", "dinov2", "mae")


def raise_unless_held(told, layout):
    """Raises a `ValueError` if a layout's code would run weights otherwise.

    Weights without a row are found when they are moved; this is about what
    arrays do not show.

    Args:
        told: Dict of arguments of `VisionTransformer`.
        layout: Name of the layout to write.
    """
    name, _, spelling = layout.partition(":")
    if "hidden_size" not in told:
        _raise_unless_resnet(name, told)
        return
    reasons = reasons_against(told, name)
    if told["position_embedding"] == "learned":
        prefix = told["position_prefix"]
        possible = position_prefixes(name, spelling)
        counts = [positioned(other, told) for other in possible]
        if positioned(prefix, told) not in counts:
            reasons.append(
                f"positions for {prefix!r} of the tokens before the patches; "
                f"it has them for {possible[0]!r}"
            )
    if name in _NEEDS_CLASS_TOKEN and not told["class_token"]:
        reasons.append("a model without a class token")
    pools = _POOLINGS.get(name, {})
    if pools and pools.get(told["pooling"]) != told["class_token"]:
        reasons.append(
            f"pooling {told['pooling']!r} "
            f"{'with' if told['class_token'] else 'without'} a class token"
        )
    if told["classes"] and not pools:
        possible = ("token", "token_gap")
        if name not in ("huggingface", "torchvision"):
            possible += ("gap", "map")
        if told["pooling"] not in possible:
            reasons.append(f"pooling {told['pooling']!r}")
    if name == "huggingface" and told["classes"]:
        if told["representation_size"]:
            reasons.append("it has no layer `pre_logits` before a head")
    gated = told["activation"] == "swiglu"
    if name == "dinov2" and gated != (spelling == "swiglu"):
        reasons.append(
            f"activation {told['activation']!r}; "
            f"{'write' if gated else 'that is not'} 'dinov2:swiglu'"
        )
    if reasons:
        raise ValueError(
            f"The layout {name!r} cannot hold the model: {'; '.join(reasons)}."
        )


def _raise_unless_resnet(name, told):
    """What `raise_unless_held` says of a ResNet alone."""
    kinds = {"bit": (True, False), "timm": (True,)}
    if told["preactivation"] not in kinds.get(name, ()):
        kind = "v2" if told["preactivation"] else "v1"
        raise ValueError(
            f"The layout {name!r} cannot hold the model: a ResNet {kind} "
            "without a Vision Transformer. The layout 'bit' can."
        )


def first_patch_is_possible(layout, told):
    """Whether arrays that are read as a mean over the patches may be those of
    big_vision's `pool_type="0"`, which takes the first patch.

    Args:
        layout: Name of the layout.
        told: Dict of arguments of `VisionTransformer`.
    """
    return (
        layout.partition(":")[0] == "big_vision"
        and told.get("pooling") == "gap"
        and told.get("classes") is not None
    )


def known(layout):
    """Raises a `ValueError` unless a layout is known, or None."""
    name = (layout or "").partition(":")[0]
    if layout is not None and name not in FORMATS:
        raise ValueError(
            f"`layout` must be one of {', '.join(map(repr, FORMATS))}. "
            f"Received: layout={layout!r}"
        )
