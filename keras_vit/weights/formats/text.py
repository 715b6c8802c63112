"""Text towers of CLIP and SigLIP in transformers and in open_clip.

The paths of their weights begin with `text/`. The image towers of the same files are in
`siglip_clip.py` and `open_clip.py`.
"""

from collections.abc import Mapping

from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.formats.format import QKV, Layers, block_layers, check_option
from keras_vit.weights.formats.huggingface_config import (
    ACTIVATIONS,
    SIGLIP2,
    hidden_act,
)
from keras_vit.weights.weight_map import (
    TORCH,
    Layer,
    WeightMap,
    from_checkpoint,
    to_checkpoint,
)

PREFIX = "text/"
CLIP, SIGLIP, PLAIN, CUSTOM, CUSTOM_BIAS = (
    *("clip", "siglip", "plain", "custom", "custom-bias"),
)
_TYPES = {**TORCH, "one": {"": ("", "1 -> ")}}
_TRANSFORMERS = "text_model."
# Buffers and settings in files, which no weights depend on.
_NO_WEIGHTS = (
    *("position_ids", "attn_mask"),
    *("input_resolution", "context_length", "vocab_size"),
)
# The old `eos_token_id` of CLIP in transformers, with which it takes the highest id.
_OLD_END = 2
_POOLINGS = {"argmax": "highest_id", "eos": "first_end", "last": "last"}


def _tower(
    start: str, embeddings: tuple[str, str], blocks: Layers, norm: str, *head: Layer
) -> Layers:
    return (
        ("token_embedding/embeddings", f"{start}{embeddings[0]}.weight", "array"),
        ("position_embedding/embedding", start + embeddings[1], "embedding"),
        *blocks,
        ("encoder_norm/*", f"{start}{norm}.*", "norm"),
        *head,
    )


def _transformers(head: str) -> Layers:
    start = _TRANSFORMERS
    blocks = block_layers(
        f"{start}encoder.layers.{{i}}.",
        tuple(f"self_attn.{name[0]}_proj.*" for name in QKV),
        "self_attn.out_proj.*",
        norms=("layer_norm1.*", "layer_norm2.*"),
    )
    names = "embeddings.token_embedding", "embeddings.position_embedding.weight"
    return _tower(start, names, blocks, "final_layer_norm", ("head/*", head, "linear"))


def _open_clip(start: str, head: Layer) -> Layers:
    blocks = block_layers(
        f"{start}transformer.resblocks.{{i}}.",
        "attn.in_proj_*",
        "attn.out_proj.*",
        ("mlp.c_fc.*", "mlp.c_proj.*"),
        ("ln_1.*", "ln_2.*"),
    )
    names = "token_embedding", "positional_embedding"
    path, key, kind = head
    return _tower(start, names, blocks, "ln_final", (path, f"{start}{key}", kind))


def _map(variant: str, layers: Layers, scalar: str = "array") -> WeightMap:
    rows = (*layers, *((name, name, scalar) for name in ("logit_scale", "logit_bias")))

    def below(names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(names, str):
            return PREFIX + names
        return tuple(PREFIX + name for name in names)

    return WeightMap(variant, _TYPES, tuple((below(x), *row) for x, *row in rows))


_MATRIX: Layer = ("head/kernel", "text_projection", "array")
_LINEAR: Layer = ("head/*", "text_projection.*", "linear")
MAPS = {
    "huggingface": (
        _map(CLIP, _transformers("text_projection.*")),
        _map(SIGLIP, _transformers(f"{_TRANSFORMERS}head.*"), "one"),
    ),
    "open_clip": (
        _map(PLAIN, _open_clip("", _MATRIX)),
        _map(CUSTOM, _open_clip("text.", _MATRIX)),
        _map(CUSTOM_BIAS, _open_clip("text.", _LINEAR)),
    ),
}


def read(
    arrays: Mapping[str, Array], format: str, config: Config, image: Config
) -> tuple[dict[str, Array], Config] | None:
    """Returns the weights of a text tower and its arguments, given the arrays that no
    image tower has, and what is known of the image tower; None if there is none that
    this package has."""
    arrays = {k: x for k, x in arrays.items() if not k.endswith(_NO_WEIGHTS)}
    fitting = (
        x
        for x in MAPS.get(format, ())
        if x.key("text/token_embedding/embeddings") in arrays
        and not x.unmapped_keys({**arrays})
    )
    weight_map = next(fitting, None)
    if weight_map is None:
        return None
    table = arrays[weight_map.key("text/token_embedding/embeddings")]
    if format == "open_clip":
        arguments = _of_open_clip(config.get("model_cfg", {}), weight_map, image)
    else:
        arguments = _of_transformers(config, weight_map.variant)
    width = table.shape[-1]
    if "num_heads" not in arguments and width % 64:
        raise ValueError(
            "The number of heads of its text tower is not stored. Give the folder "
            f"with its config. Received: texts of {width} channels, not a multiple of "
            "64"
        )
    # SigLIP's SO400M has heads of 72 channels.
    usual = 16 if width == 1152 else width // 64
    heads = arguments.setdefault("num_heads", usual)
    weights = from_checkpoint({**arrays}, weight_map, heads)
    shapes = {path.removeprefix(PREFIX): x.shape for path, x in weights.items()}
    blocks = {path.partition("/")[0] for path in shapes if path.startswith("block_")}
    return weights, arguments | {
        "vocabulary_size": shapes["token_embedding/embeddings"][0],
        "context_length": shapes["position_embedding/embedding"][1],
        "hidden_size": width,
        "num_layers": len(blocks),
        "mlp_dim": shapes["block_0/mlp/dense_1/kernel"][1],
        "projection_size": shapes.get("head/kernel", (0, None))[1],
        "projection_bias": "head/bias" in shapes,
    }


def _of_transformers(config: Config, variant: str) -> Config:
    """Returns the arguments of a text tower that a config.json has, or its class
    implies."""
    clip = variant == CLIP
    text = config.get("text_config")
    if clip:  # its old key prevails
        text = config.get("text_config_dict") or text
    text = text if isinstance(text, dict) else {}
    act = text.get("hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh")
    check_option(act in ACTIVATIONS, "hidden_act", act, f"one of {[*ACTIVATIONS]}")
    end = text.get("eos_token_id", 49407) if config else _OLD_END
    arguments: Config = {
        "causal": clip,
        "pooling": "last",
        "activation": ACTIVATIONS[act],
        "norm_epsilon": text.get("layer_norm_eps", 1e-5 if clip else 1e-6),
    }
    if clip:
        check_option(type(end) is int, "eos_token_id", end, "a whole number")
        old = end == _OLD_END
        arguments["pooling"] = "highest_id" if old else "first_end"
        arguments["end_id"] = None if old else end
    if config:
        arguments["num_heads"] = text.get("num_attention_heads", 8 if clip else 12)
    return arguments


def _of_open_clip(model: Config, weight_map: WeightMap, image: Config) -> Config:
    """Returns the arguments of a text tower in an open_clip_config.json; without one,
    those of SigLIP for a projection with a bias, and of CLIP for others."""
    text = model.get("text_cfg")
    if not isinstance(text, dict):
        if weight_map.variant == CUSTOM_BIAS:
            return {**_of_transformers({}, SIGLIP)}
        activation = image.get("activation", "gelu")
        return {**_of_transformers({}, CLIP), "activation": activation}
    pool, act = text.get("pool_type", "argmax"), text.get("act_kwargs") or {}
    file = "open_clip_config.json"
    check_option(pool in _POOLINGS, "pool_type", pool, f"one of {[*_POOLINGS]}", file)
    for name in ("embed_cls", "use_pad_mask", "ls_init_value", "hf_model_name"):
        check_option(not text.get(name), name, text.get(name), "false", file)
    gelu = "gelu_tanh" if act.get("approximate") == "tanh" else "gelu"
    pooling = _POOLINGS[pool]
    return {
        "causal": not text.get("no_causal_mask", False),
        "pooling": pooling,
        "end_id": text.get("eos_id", 2) if pooling == "first_end" else None,
        "activation": "quick_gelu" if model.get("quick_gelu") else gelu,
        "norm_epsilon": (text.get("norm_kwargs") or {}).get("eps", 1e-5),
        "num_heads": text.get("heads", 8),
    }


def write(weights: dict[str, Array], text: Config, format: str) -> dict[str, Array]:
    """Returns the arrays of a text tower with the arguments `text`, or raises a
    `ValueError` if the format or its code has none such."""
    if format not in MAPS:
        raise ValueError(
            f"It has no text tower, which {' and '.join(map(repr, MAPS))} have. Write "
            "`model.encoder`, the image tower."
        )
    biased = f"{PREFIX}head/bias" in weights
    names = (CLIP, SIGLIP) if format == "huggingface" else (PLAIN, CUSTOM_BIAS)
    usual = (not biased, biased, biased or format == "open_clip")
    found = (
        text["causal"],
        text["pooling"] == "last",
        f"{PREFIX}logit_bias" in weights or format == "open_clip",
    )
    if found != usual or text["projection_size"] is None:
        what = (
            f"causal={text['causal']}, pooling={text['pooling']!r}, projection_size="
            f"{text['projection_size']}, projection_bias={biased}"
        )
        if format == "huggingface":
            raise ValueError(
                "transformers has the text towers of CLIP (causal, a projection "
                "without a bias) and of SigLIP (the last token, both biases). "
                f"Received: {what}"
            )
        warn(
            f"A file of open_clip does not store {what}. Put an open_clip_config.json "
            "with its 'text_cfg' next to it."
        )
    maps = {x.variant: x for x in MAPS[format]}
    return to_checkpoint(weights, maps[names[biased]], text["num_heads"])


def whole_config(vision: Config, text: Config) -> Config:
    """Returns the config.json of transformers of both towers, given that of the image
    tower."""
    vision = {"num_channels": 3, **vision}
    kinds = {"clip_vision_model": ("clip", "CLIPModel")}
    kinds["siglip_vision_model"] = ("siglip", "SiglipModel")
    kinds[SIGLIP2] = ("siglip2", "Siglip2Model")
    if vision["model_type"] not in kinds:
        raise ValueError(
            "transformers has dual encoders with the image towers of CLIP "
            '(`pre_norm=True`, `pooling="token"`) and of SigLIP (`pooling="map"`). '
            f"Received: an image tower of the type {vision['model_type']!r}. Write a "
            ".keras file."
        )
    kind, architecture = kinds[vision["model_type"]]
    size, end = text["projection_size"], text["end_id"]
    end = _OLD_END if end is None else end
    own = {"projection_dim": size, "eos_token_id": end}
    if kind != "clip":
        own = {"projection_size": size}
    tower = {x: y for x, y in vision.items() if x not in ("architectures", "dtype")}
    return {
        "model_type": kind,
        "architectures": [architecture],
        "dtype": vision["dtype"],
        **({"projection_dim": size} if kind == "clip" else {}),
        "vision_config": tower,
        "text_config": {
            "model_type": f"{kind}_text_model",
            "vocab_size": text["vocabulary_size"],
            "max_position_embeddings": text["context_length"],
            "hidden_size": text["hidden_size"],
            "num_hidden_layers": text["num_layers"],
            "num_attention_heads": text["num_heads"],
            "intermediate_size": text["mlp_dim"],
            "hidden_act": hidden_act(text["activation"]),
            "layer_norm_eps": text["norm_epsilon"],
            **own,
        },
    }
