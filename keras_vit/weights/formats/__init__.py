"""The supported checkpoint layouts, one module per code base."""

from collections.abc import Collection
from collections.abc import Iterator

from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._warnings import warn
from keras_vit.weights import infer
from keras_vit.weights.formats import google
from keras_vit.weights.formats.dinov3 import DINOV3
from keras_vit.weights.formats.google import BIG_VISION
from keras_vit.weights.formats.google import BIT
from keras_vit.weights.formats.google import VIT_JAX
from keras_vit.weights.formats.huggingface import HUGGINGFACE
from keras_vit.weights.formats.keras_hub import KERAS_HUB
from keras_vit.weights.formats.layout import Layout as Layout
from keras_vit.weights.formats.meta import DINO
from keras_vit.weights.formats.meta import DINOV2
from keras_vit.weights.formats.meta import MAE
from keras_vit.weights.formats.meta import MOCOV3
from keras_vit.weights.formats.timm import TIMM
from keras_vit.weights.formats.torchvision import TORCHVISION
from keras_vit.weights.weight_map import WeightMap

LAYOUTS = {
    layout.name: layout
    for layout in (
        VIT_JAX,
        BIG_VISION,
        TIMM,
        HUGGINGFACE,
        TORCHVISION,
        DINOV2,
        DINOV3,
        MAE,
        DINO,
        MOCOV3,
        BIT,
        KERAS_HUB,
    )
}

# Constants of ResNets that cannot be inferred from arrays, by code base.
RESNET_CONSTANTS = {
    "vit_jax": google.VIT_JAX_CONSTANTS,
    "bit": google.BIT_CONSTANTS,
}
_MASK_TOKEN = "mask_token/tokens"


def check_layout(layout: str | None) -> None:
    """Raises a `ValueError` if a layout is unknown."""
    name = (layout or "").partition(":")[0]
    if layout is not None and name not in LAYOUTS:
        raise ValueError(
            f"`layout` must be one of {', '.join(map(repr, LAYOUTS))}. "
            f"Received: layout={layout!r}"
        )


def get_weight_map(layout: str, weights: Collection[str] = ()) -> WeightMap:
    """Returns the `WeightMap` of a layout, `"name"` or `"name:variant"`.

    Without a variant, it is the first that has a key for every weight, or else
    the first.
    """
    check_layout(layout)
    name, _, variant = layout.partition(":")
    maps = LAYOUTS[name].maps
    if not variant:
        complete = (m for m in maps if not m.unmapped_paths(weights))
        return next(complete, maps[0])
    for weight_map in maps:
        if weight_map.variant == variant:
            return weight_map
    variants = [repr(m.variant) for m in maps if m.variant]
    raise ValueError(
        f"The variants of the layout {name!r} are "
        f"{', '.join(variants) or 'none'}. Received: layout={layout!r}"
    )


def map_to_write(layout: str, weights: dict) -> tuple[dict, WeightMap]:
    """Returns weights and the `WeightMap` that writes them.

    A mask token that has no place is left out with a warning: it replaces
    patches in pre-training only, and code bases without it drop it, too.
    """
    weight_map = get_weight_map(layout, weights)
    if _MASK_TOKEN in weight_map.unmapped_paths(weights):
        warn(
            f"The layout {layout!r} has no mask token, which has no effect on "
            "outputs: it is left out."
        )
        weights = {k: v for k, v in weights.items() if k != _MASK_TOKEN}
        weight_map = get_weight_map(layout, weights)
    return weights, weight_map


def resolve_variant(layout: str, arguments: Config) -> str:
    """Returns a layout with the variant of a model with rotary positions, if
    the code base has such models."""
    name, _, variant = layout.partition(":")
    variants = LAYOUTS[name].rotary_variants
    if variant or not variants or not _is_rotary(arguments):
        return layout
    variant = variants[arguments["activation"] == "swiglu"]
    return f"{name}:{variant}" if variant else name


def _is_rotary(arguments: Config) -> bool:
    return arguments.get("position_embedding") == "rope"


def detect_layout(
    arrays: dict[str, Array], layout: str | None = None
) -> tuple[str, WeightMap]:
    """Returns the name and the map of the layout that keys fit; a given
    layout is the only candidate."""
    check_layout(layout)
    name, _, variant = (layout or "").partition(":")
    matches: dict[str, WeightMap] = {}
    nearest: tuple[int, str, WeightMap | None, list[str]]
    nearest = (len(arrays) + 1, "", None, [])
    for candidate in [name] if name else LAYOUTS:
        marker = LAYOUTS[candidate].marker
        normalized = LAYOUTS[candidate].normalize(arrays)
        if marker and not name and marker not in normalized:
            continue
        for weight_map in LAYOUTS[candidate].maps:
            if variant and weight_map.variant != variant:
                continue
            unmapped = weight_map.unmapped_keys(normalized)
            if len(unmapped) < nearest[0]:
                names = file_keys(arrays, normalized)
                in_file = [str(names.get(key, key)) for key in unmapped]
                nearest = (len(unmapped), candidate, weight_map, in_file)
            complete = all(key in normalized for key in weight_map.required)
            if not unmapped and (complete or variant):
                matches.setdefault(candidate, weight_map)
    if "bit" in matches:
        # Also fits "vit_jax", as a hybrid without a Vision Transformer.
        matches.pop("vit_jax", None)
    # Keys that both of Google's layouts have mean the same in both.
    if len(matches) == 1 or matches.keys() == {"vit_jax", "big_vision"}:
        return next(iter(matches.items()))
    count, candidate, weight_map, unmapped = nearest
    if name and weight_map is not None:
        return name, weight_map  # the reader lists what does not fit
    if matches:
        raise ValueError(
            f"The keys fit several layouts: {', '.join(matches)}. Give one as "
            "`layout`."
        )
    if any(key.startswith("_torch_params.") for key in arrays):
        raise ValueError(
            "These are the names that Keras gives its `state_dict`, which are "
            "no layout. Write the model with `model.save(PATH.keras)`, or "
            "`keras_vit.converters.save`."
        )
    if weight_map is None or count == len(arrays):
        raise ValueError(
            "The keys fit no layout. The first are: "
            f"{', '.join(sorted(arrays)[:5])}. Known layouts: "
            f"{', '.join(LAYOUTS)}."
        )
    lines = "\n".join(f"  {key}" for key in sorted(unmapped))
    raise ValueError(
        f"The keys fit no layout. The nearest is {candidate!r}.\n"
        f"Arrays that it has no place for:\n{lines}"
    )


def file_keys(
    arrays: dict[str, Array], normalized: dict[str, Array]
) -> dict[str, str]:
    """Returns the keys of a file by their normalized keys; empty if arrays were
    merged."""
    if len(arrays) != len(normalized):
        return {}
    return dict(zip(normalized, arrays, strict=True))


def implied_arguments(
    layout: str, weight_map: WeightMap, paths: Collection[str]
) -> Config:
    """Returns the model arguments that are constants of a code base."""
    code_base = LAYOUTS[layout.partition(":")[0]]
    variant = weight_map.variant
    family = infer.family(paths)
    if family == "bit":
        _, constants = code_base.resnets.get(variant, BIT.resnets[""])
        return dict(constants)
    arguments = {**code_base.arguments, **code_base.implied(variant, paths)}
    if family == "hybrid":
        arguments.update(code_base.stem)
    return arguments


def read_config_arguments(config: Config, layout: str) -> Config:
    """Returns the arguments that a checkpoint's config.json implies.

    A config.json of another code base is ignored with a warning.
    """
    if is_config_of(config, layout):
        return LAYOUTS[layout].read_config(config)
    for other in LAYOUTS:
        if is_config_of(config, other):
            warn(
                f"The config.json in the checkpoint's folder is ignored: it is "
                f"one of {other}, and the arrays are in the layout {layout!r}. "
                "Move it elsewhere, or give what it holds as arguments."
            )
    return {}


def is_config_of(config: Config, layout: str) -> bool:
    """Returns whether a config.json was written by a layout's code base."""
    return layout in LAYOUTS and LAYOUTS[layout].config_key in config


def check_representable(arguments: Config, layout: str) -> None:
    """Raises a `ValueError` if a layout cannot represent a model.

    This checks arguments that do not show in the arrays: the layout's code
    would load the weights and compute other outputs. Weights that the layout
    has no key for are reported when they are converted.
    """
    name, _, variant = layout.partition(":")
    code_base = LAYOUTS[name]
    if "hidden_size" not in arguments:
        versions = [version for version, _ in code_base.resnets.values()]
        if arguments["preactivation"] not in versions:
            version = "v2" if arguments["preactivation"] else "v1"
            raise ValueError(
                f"The layout {name!r} cannot hold the model: a ResNet "
                f"{version} without a Vision Transformer. The layout 'bit' can."
            )
        return
    if not variant and code_base.nearest_variant:
        variant = code_base.nearest_variant(arguments)
    reasons = [
        *_block_reasons(arguments, code_base),
        *_position_reasons(arguments, code_base, variant),
        *_pooling_reasons(arguments, code_base),
        *code_base.unsupported(arguments, variant),
    ]
    if reasons:
        raise ValueError(
            f"The layout {name!r} cannot hold the model: {'; '.join(reasons)}."
        )


def _block_reasons(arguments: Config, layout: Layout) -> Iterator[str]:
    if "block" in arguments:
        yield f"blocks of the class {arguments['block']!r}"
    if "resnet_layers" in arguments and not _has_hybrids(layout):
        able = [repr(name) for name in LAYOUTS if _has_hybrids(LAYOUTS[name])]
        yield (
            "it has no hybrids of a ResNet and a Vision Transformer, which "
            f"{' and '.join(able)} have"
        )


def _has_hybrids(layout: Layout) -> bool:
    parts = ("root_conv/kernel", "block_0/mlp/dense_1/kernel")
    return any(not x.unmapped_paths(parts) for x in layout.maps)


def _position_reasons(
    arguments: Config, layout: Layout, variant: str
) -> Iterator[str]:
    mode = arguments["position_embedding"]
    placement = arguments.get("position_placement", "stem")
    if variant in layout.rotary_variants:
        if _is_rotary(arguments):
            gated = arguments["activation"] == "swiglu"
            if variant != layout.rotary_variants[gated]:
                yield f"activation {arguments['activation']!r} in {variant!r}"
            return
        yield "a model without rotary positions"
    if arguments["qkv_bias"] and not arguments.get("key_bias", True):
        yield "queries and values with a bias and keys without one"
    if mode not in ("learned", "sincos2d", "none"):
        yield f"it has no place for {mode} positions"
    elif placement != "stem":
        yield f"it has no place for positions in {placement}"
    elif mode == "sincos2d" and not layout.fixed_positions:
        yield "fixed positions (sincos2d)"
    if mode != "learned":
        return
    prefix = arguments["position_prefix"]
    possible = layout.possible_prefixes(variant)
    counts = [infer.num_tokens_with_position(p, arguments) for p in possible]
    if infer.num_tokens_with_position(prefix, arguments) not in counts:
        yield (
            f"positions for {prefix!r} of the tokens before the patches; it "
            f"has them for {possible[0]!r}"
        )


def _pooling_reasons(arguments: Config, layout: Layout) -> Iterator[str]:
    pooling, class_token = arguments["pooling"], arguments["class_token"]
    if layout.needs_class_token and not class_token:
        yield "a model without a class token"
    # Whether each pooling is tied to a class token, even without a head.
    decided = None not in layout.poolings.values()
    if not (arguments["classes"] or decided):
        return
    if pooling not in layout.poolings or (
        decided and layout.poolings[pooling] != class_token
    ):
        token = f" {'with' if class_token else 'without'} a class token"
        yield f"pooling {pooling!r}" + (token if decided else "")


def first_patch_is_possible(layout: str, arguments: Config) -> bool:
    """Returns whether a model's pooling may be `"first_patch"`.

    big_vision's `pool_type="0"`, which takes the first patch, has the same
    arrays as `pool_type="gap"`, so that it is inferred as `"gap"`.
    """
    code_base = LAYOUTS.get(layout.partition(":")[0])
    return (
        (code_base is None or "first_patch" in code_base.poolings)
        and arguments.get("pooling") == "gap"
        and arguments.get("classes") is not None
    )
