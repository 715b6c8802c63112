"""What the config.json beside a checkpoint tells: Hugging Face's and timm's."""

from keras_vit._warnings import warn

_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
_OF_MAE = (
    ("mask_ratio", "mask_ratio"),
    ("norm_pixels", "norm_pix_loss"),
    ("decoder_num_heads", "decoder_num_attention_heads"),
)


def _is_count(value):
    return type(value) is int and 0 < value < 2**31


def _is_share(value):
    return type(value) in (int, float) and 0 < value < 1


_VALUES = {  # name: what it must be, for people and for us
    "hidden_act": ("text", lambda value: isinstance(value, str)),
    "layer_norm_eps": ("between 0 and 1", _is_share),
    "num_attention_heads": ("a whole number above 0", _is_count),
    "mask_ratio": ("between 0 and 1", _is_share),
    "norm_pix_loss": ("true or false", lambda value: type(value) is bool),
    "decoder_num_attention_heads": ("a whole number above 0", _is_count),
}
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}


def told_by(config, layout):
    """Returns the arguments of `VisionTransformer` that a config tells.

    A config that is neither Hugging Face's nor timm's, which happens to be in
    the same folder, is not read: `belongs` is then False. One of the other of
    the two is a sign of a mistake, so there is a warning.
    """
    if belongs(config, layout):
        return (_huggingface if layout == "huggingface" else _timm)(config)
    for other in _MARKS:
        if belongs(config, other):
            warn(
                f"The config.json in the checkpoint's folder is ignored: it is "
                f"one of {other}, and the arrays are in the layout {layout!r}. "
                "Move it elsewhere, or give what it holds as arguments."
            )
    return {}


# The key by which each library knows its config.json.
_MARKS = {"huggingface": "model_type", "timm": "architecture"}


def belongs(config, layout):
    """Whether a config.json is one of the layout's library."""
    return layout in _MARKS and _MARKS[layout] in config


def _huggingface(config):
    for name, (what, fits) in _VALUES.items():
        if name in config and not fits(config[name]):
            raise ValueError(
                f"{name!r} in its config.json must be {what}. Received: "
                f"{config[name]!r:.100}"
            )
    facts = {}
    if "hidden_act" in config:
        name = config["hidden_act"]
        facts["activation"] = _ACTIVATIONS.get(name, name)
    if config.get("use_swiglu_ffn"):
        facts["activation"] = "swiglu"
    for name, theirs in (
        ("norm_epsilon", "layer_norm_eps"),
        ("num_heads", "num_attention_heads"),
    ):
        if theirs in config:
            facts[name] = config[theirs]
    if config.get("model_type") == "vit_mae":
        for name, theirs in _OF_MAE:
            if theirs in config:
                facts[name] = config[theirs]
    image = _pair(config.get("image_size"))
    patch = _pair(config.get("patch_size"))
    if image and patch:
        facts["grid_size"] = (image[0] // patch[0], image[1] // patch[1])
    return facts


def _timm(config):
    facts = {}
    pooling = config.get("global_pool")
    if pooling:
        if str(pooling) not in _POOLINGS:
            raise ValueError(
                "'global_pool' in its config.json must be one of "
                f"{', '.join(map(repr, _POOLINGS))}: this package has no other "
                f"pooling of timm's. Received: {pooling!r:.100}"
            )
        facts["pooling"] = _POOLINGS[pooling]
    name = str(config["architecture"])
    if "quickgelu" in name:
        facts["activation"] = "quick_gelu"
    if "_clip_" in name:
        facts["norm_epsilon"] = 1e-5
    # timm's `no_embed_class`, which its configs do not name.
    if name.startswith("deit3_") or "_reg" in name:
        facts["position_prefix"] = "none"
    elif "dinov2" in name:
        facts["position_prefix"] = "all"
    return facts


def _pair(size):
    if type(size) is int:
        size = (size, size)
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return tuple(size) if all(map(_is_count, size)) else None
    return None
