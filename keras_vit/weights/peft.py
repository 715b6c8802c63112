"""LoRA adapters of PEFT: changes of the weights of another file.

https://github.com/huggingface/peft. The kernel of a layer is changed by the product
of two matrices, times a scale, as in PEFT's `merge_and_unload`.
"""

import os
import pathlib
import re

import numpy as np

from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.detect import detect_format
from keras_vit.weights.files import locate, read, read_config
from keras_vit.weights.weight_map import raise_problems

_LORA = re.compile(r"(.+)\.lora_([AB])\.weight")
# Options with which a kernel is not changed by one product, or the base is changed
# before, also those with names such as use_dora and corda_config.
_OTHERS = re.compile(
    r"use_(?!rslora)|(?!eva|megatron)\w+_config|alora_|fan_in_fan_out|lora_bias|"
    r"layer_replication|trainable_token_indices|target_parameters"
)
_INITIALIZERS = (True, False, None, "gaussian", "eva", "orthogonal")


def read_merged(
    adapter: pathlib.Path, base: StrPath | None, format: str | None
) -> tuple[pathlib.Path, dict[str, Array]]:
    """Returns the path of the weights that an adapter changes, and their arrays with
    the changes."""
    config = read_config(adapter, "adapter_config.json")
    name = config.get("base_model_name_or_path")
    if base is None and isinstance(name, str) and name and os.path.exists(name):
        base = name
    if base is None:
        hub = re.fullmatch(r"[\w-]+/[\w.-]+", str(name))
        raise ValueError(
            f"{str(adapter)!r} is an adapter that PEFT trained for the weights "
            f"{name!r}. Give the path of these as `base`"
            + (f", such as base='hf://{name}'" if hub else "")
            + ", or merge both with PEFT's `merge_and_unload` and save the model."
        )
    try:
        changes = _changes(read(adapter), config)
        path = locate(base)
        return path, _merge(read(path, finite=False), *changes, format)
    except ValueError as error:
        raise ValueError(
            f"The adapter {str(adapter)!r} cannot be merged with {str(base)!r}. {error}"
        ) from error


def _changes(
    arrays: dict[str, Array], config: Config
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns what is added to the kernels of layers, by the names of these, and
    arrays that replace others, such as a head and biases."""
    kind, start = config.get("peft_type"), config.get("init_lora_weights")
    others = [
        f"{x}={config[x]!r:.50}" for x in config if _OTHERS.match(x) and config[x]
    ]
    others += [f"peft_type={kind!r:.50}"] if kind != "LORA" else []
    others += [f"init_lora_weights={start!r:.50}"] if start not in _INITIALIZERS else []
    if others:
        raise ValueError(
            f"It was trained with {', '.join(others)}, and only plain LoRA is read. "
            "Merge both with PEFT's `merge_and_unload` and save the model."
        )
    matrices: dict[str, dict[str, Array]] = {}
    added, replaced = {}, {}
    for key, array in arrays.items():
        key = key.removeprefix("base_model.model.").replace(".base_layer", "")
        if match := _LORA.fullmatch(key):
            matrices.setdefault(match[1], {})[match[2]] = array.astype("float32")
        else:
            replaced[key] = array
    for layer, pair in matrices.items():
        a, b = pair.get("A", np.zeros(())), pair.get("B", np.zeros(()))
        if a.ndim < 2 or b.shape[1:2] != a.shape[:1] or b.size != b.shape[0] * len(a):
            raise ValueError(f"{layer!r} has no two matrices that fit each other.")
        rank = len(a) ** 0.5 if config.get("use_rslora") else len(a)
        product = np.tensordot(b.reshape(b.shape[:2]), a, 1)
        added[layer] = product * np.float32(_alpha(layer, config) / rank)
    return added, replaced


def _alpha(layer: str, config: Config) -> float:
    """Returns the factor of a layer before the division by the rank."""
    found = config.get("lora_alpha", 8)
    for name, alpha in reversed((config.get("alpha_pattern") or {}).items()):
        if re.search(r"[^\w.]", name):
            raise ValueError(
                f"'alpha_pattern' in its config must have names of layers, not regular "
                f"expressions. Received: {name!r:.100}"
            )
        found = alpha if f".{layer}".endswith(f".{name}") else found
    if type(found) not in (int, float):
        raise ValueError(f"'lora_alpha' in its config must be a number: {found!r:.100}")
    return found


def _merge(
    arrays: dict[str, Array],
    added: dict[str, Array],
    replaced: dict[str, Array],
    format: str | None,
) -> dict[str, Array]:
    """Returns arrays of a file with changes, under the keys that are written today.

    The projections of PyTorch's `MultiheadAttention` have no key that ends in
    "weight", and are refused: PEFT 0.21 adds the change of its output twice.
    """
    match = detect_format(arrays, format)
    arrays = {key: arrays[name] for key, name in match.own_keys.items()}
    code_base = match.code_base
    merged = code_base.normalize(arrays)
    kernels = {f"{layer}.weight": array for layer, array in added.items()}
    dropped = {k: a for k, a in arrays.items() if k in code_base.left_out(arrays)}
    unknown, wrong, prefix = [], [], ""
    for key, array in code_base.normalize(kernels).items():
        name = _match(key, merged)
        if name is None:
            unknown += [] if _match(key, dropped) else [key]
        elif merged[name].shape != array.shape:
            wrong.append(f"{name}: {merged[name].shape}, not {array.shape}")
        else:
            merged[name] = (merged[name] + array).astype(merged[name].dtype)
            prefix = prefix or key.removesuffix(name)
    raise_problems(
        {"It has no such kernels": unknown, "Kernels of another shape": wrong},
        "The layers do not fit.",
    )
    # A file of a model without a head lacks the prefix that a classifier's layers have,
    # and may have a pooler, which transformers leaves out of a classifier.
    if prefix:
        merged = {prefix + k: a for k, a in merged.items() if "pooler." not in k}
    for key, array in code_base.normalize(replaced).items():
        merged[_match(key, merged) or key] = array
    return {**dropped, **merged}


def _match(key: str, arrays: dict[str, Array]) -> str | None:
    """Returns the key of an array that is the same except for a prefix, or None."""
    if key in arrays:
        return key
    found = [x for x in arrays if x.endswith(f".{key}") or key.endswith(f".{x}")]
    return found[0] if len(found) == 1 else None
