"""Hugging Face's transformers (format "huggingface"): ViT, DeiT, DINOv2, MAE.

The image towers of SigLIP and CLIP are in `siglip_clip.py`.

https://github.com/huggingface/transformers. A folder contains what
`from_pretrained` loads: the weights, config.json and preprocessor_config.json.
"""

import math
import re
from collections.abc import Collection, Sequence

import numpy as np

from keras_vit.utils.scaling import Mode, mean_and_std
from keras_vit.utils.types import Array, Config
from keras_vit.utils.warnings import warn
from keras_vit.weights.files import INTERPOLATIONS, read_config
from keras_vit.weights.formats import dinov3, naflex, siglip_clip
from keras_vit.weights.formats.format import (
    QKV,
    Checkpoint,
    Format,
    Values,
    block_layers,
    square,
)
from keras_vit.weights.formats.huggingface_config import (
    ACTIVATIONS,
    DINOV3,
    SIGLIP2,
    check_config,
    mlp_ratio,
    model_config,
    read_arguments,
)
from keras_vit.weights.formats.meta import mae_decoder
from keras_vit.weights.weight_map import TORCH, Layers, WeightMap, rename_keys

IJEPA = "ijepa"  # a variant and a model type
MULTI_LABEL = "multi_label_classification"  # a `problem_type`
_TOKENS = {
    "distilled": (
        "distillation_token/tokens",
        "distillation_token",
        "array",
    ),
    # In a DeiT with one head, or with a pooler of the class token, the
    # distillation token's output is not used, so that it is a register token.
    "unread": ("register_tokens/tokens", "distillation_token", "array"),
    "registers": ("register_tokens/tokens", "register_tokens", "array"),
    "mask": ("mask_token/tokens", "mask_token", "array"),
    "mask_vector": ("mask_token/tokens", "mask_token", "vector"),
}
# Names of the layers of a block: two norms and an MLP.
_VIT = (
    ("layernorm_before.*", "layernorm_after.*"),
    ("intermediate.dense.*", "output.dense.*"),
)
_DINOV2 = (("norm1.*", "norm2.*"), ("mlp.fc1.*", "mlp.fc2.*"))
_SWIGLU = (_DINOV2[0], ("mlp.weights_in.*", "mlp.weights_out.*"))


def _layers(
    prefix: str,
    names: tuple[tuple[str, str], tuple[str, str]],
    tokens: tuple[str, ...],
    head: str = "classifier",
) -> Layers:
    embeddings = f"{prefix}embeddings"
    positions = ("position_embedding/embedding", "position_embeddings", "array")
    return (
        (
            "patch_embedding/*",
            f"{embeddings}.patch_embeddings.projection.*",
            "conv",
        ),
        ("class_token/tokens", f"{embeddings}.cls_token", "array"),
        *(
            (path_name, f"{embeddings}.{name}", parameter_type)
            for path_name, name, parameter_type in (
                *(_TOKENS[token] for token in tokens),
                positions,
            )
        ),
        *block_layers(
            f"{prefix}encoder.layer.{{i}}.",
            tuple(f"attention.attention.{name}.*" for name in QKV),
            "attention.output.dense.*",
            names[1],
            names[0],
            ("layer_scale1.lambda1", "layer_scale2.lambda1"),
        ),
        ("encoder_norm/*", f"{prefix}layernorm.*", "norm"),
        ("pre_logits/*", f"{prefix}pooler.dense.*", "linear"),
        ("head/*", f"{head}.*", "linear"),
        ("distillation_head/*", "distillation_classifier.*", "linear"),
    )


_VIT_LAYERS = _layers("vit.", _VIT, ("mask",))
_MAE_DECODER = mae_decoder(
    _VIT_LAYERS, "vit.encoder.layer.", "decoder.decoder_layers.", "decoder."
)
_MAPS = tuple(
    WeightMap(variant, TORCH, layers, required=required)
    for variant, layers, required in (
        ("", _VIT_LAYERS, ()),
        ("mae", (*_VIT_LAYERS, *_MAE_DECODER), ()),
        (
            "mim",
            (*_VIT_LAYERS, ("decoder/pixels/*", "decoder.0.*", "pointwise")),
            (),
        ),
        # `DeiTModel` with a pooler. `ViTModel` has the same keys except for the
        # distillation token.
        (
            "deit-bare",
            _layers("", _VIT, ("unread", "mask")),
            ("embeddings.distillation_token", "pooler.dense.weight"),
        ),
        ("vit", _layers("", _VIT, ("distilled", "mask")), ()),
        (IJEPA, _layers("ijepa.", _VIT, ("mask",)), ()),
        ("deit", _layers("deit.", _VIT, ("unread", "mask")), ()),
        (
            "deit-teacher",
            _layers("deit.", _VIT, ("distilled", "mask"), "cls_classifier"),
            (),
        ),
        *(
            (
                f"{variant}{suffix}",
                _layers(prefix, blocks, ("registers", "mask_vector")),
                (),
            )
            for variant, prefix in (
                ("dinov2", "dinov2."),
                ("dinov2-reg", "dinov2_with_registers."),
                ("dinov2-bare", ""),
            )
            for suffix, blocks in (("", _DINOV2), ("-swiglu", _SWIGLU))
        ),
    )
)

# transformers 5 has new names for modules in memory, and in files for MAE's
# decoder. Written files have the old names, which all versions read.
_BLOCK_V5 = re.compile(r"((?:vit|deit|ijepa)\.|)layers\.(\d+)\.(.*)")
_NAMES_V5 = {
    ".attention.q_proj.": ".attention.attention.query.",
    ".attention.k_proj.": ".attention.attention.key.",
    ".attention.v_proj.": ".attention.attention.value.",
    ".attention.o_proj.": ".attention.output.dense.",
    ".mlp.down_proj.": ".mlp.weights_out.",
    "decoder.decoder_encoder.layer.": "decoder.decoder_layers.",
}


def _rename(key: str) -> str:
    if key.startswith(("layer.", "model.layer.")):  # DINOv3
        return key.removeprefix("model.")
    if match := _BLOCK_V5.fullmatch(key):
        prefix, number, name = match.groups()
        name = name.replace("mlp.fc1.", "intermediate.dense.")
        name = name.replace("mlp.fc2.", "output.dense.")
        key = f"{prefix}encoder.layer.{number}.{name}"
    for new, old in _NAMES_V5.items():
        key = key.replace(new, old)
    return key


JSON_FILES = ("config.json", "preprocessor_config.json")
FOLDER_FILES = ("model.safetensors", *JSON_FILES)
# variant: (model type, class without a head, class with a head)
_CLASSES = {
    "": ("vit", "ViTModel", "ViTForImageClassification"),
    "mae": ("vit_mae", "ViTMAEForPreTraining", None),
    "mim": ("vit", "ViTForMaskedImageModeling", None),
    "deit": ("deit", "DeiTModel", "DeiTForImageClassification"),
    IJEPA: (IJEPA, "IJepaModel", "IJepaForImageClassification"),
    "deit-teacher": (
        "deit",
        "DeiTModel",
        "DeiTForImageClassificationWithTeacher",
    ),
    "dinov2": ("dinov2", "Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2-reg": (
        "dinov2_with_registers",
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
    **dict.fromkeys(dinov3.VARIANTS, (DINOV3, "DINOv3ViTModel", None)),
    "clip": (
        "clip_vision_model",
        "CLIPVisionModel",
        "CLIPVisionModelWithProjection",
    ),
    "siglip": (
        "siglip_vision_model",
        "SiglipVisionModel",
        "SiglipForImageClassification",
    ),
    "siglip2": (
        SIGLIP2,
        "Siglip2VisionModel",
        "Siglip2ForImageClassification",
    ),
}


def _is_deit(arguments: Config) -> bool:
    return arguments["distillation"] or arguments["num_registers"] == 1


def _model_config(arguments: Config, variant: str) -> Config:
    """Returns the contents of config.json, except for labels."""
    a, variant = arguments, variant.removesuffix("-swiglu")
    if variant in ("vit", "deit-bare"):
        variant = "deit" if _is_deit(a) else "" if a["class_token"] else IJEPA
    elif variant == "dinov2-bare":
        variant = "dinov2-reg" if a["num_registers"] else "dinov2"
    elif variant in siglip_clip.VARIANTS:
        is_flexible = variant in naflex.VARIANTS
        variant = "siglip2" if is_flexible else "siglip"
        variant = "clip" if a["pre_norm"] else variant
    model_type, headless, with_head = _CLASSES[variant]
    config = model_config(a, model_type)
    if a["classes"] and variant.startswith("siglip"):
        model_type, config = variant, {"vision_config": config}
    name = with_head if a["classes"] else headless
    return {"model_type": model_type, "architectures": [name], **config}


def problem_type(old: dict, activation: str | None = None) -> dict:
    """Returns the entry of a multi-label model in config.json, or none."""
    run, data = old.get("config"), old.get("data")
    if (
        activation == "sigmoid"
        or old.get("problem_type") == MULTI_LABEL
        or (isinstance(data, dict) and data.get("multi_label"))
        or (isinstance(run, dict) and run.get("loss") == "sigmoid")
    ):
        return {"problem_type": MULTI_LABEL}
    return {}


def label_entries(class_names: Sequence[str]) -> Config:
    """Returns the entries of config.json that name the classes."""
    return {
        "id2label": {str(i): name for i, name in enumerate(class_names)},
        "label2id": {name: i for i, name in enumerate(class_names)},
    }


def scaling(mode: Mode, channels: int) -> Config:
    """Returns the entries of preprocessor_config.json that scale pixels."""
    mean, std = mean_and_std(mode, channels)
    return {
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        "rescale_factor": 1 / 255,
    }


def _preprocessor_config(
    arguments: Config,
    source: Checkpoint | None,
    mode: Mode | None,
    size: int,
) -> Config:
    """Returns the contents of preprocessor_config.json.

    The source's own are kept if its format is "huggingface", unless `mode` is
    another. Otherwise, they are those of `mode`, or of the source's code base, or "tf".
    """
    if source and source.format == "huggingface":
        kept = read_config(source.path, JSON_FILES[1])
        if kept and mode in (None, source.preprocess_mode):
            return kept
    if source and mode is None:
        mode = source.preprocess_mode
        meta = arguments["layer_scale"] is not None or _is_deit(arguments)
        if mode is None and arguments["pre_norm"]:
            mode = "clip"
        elif mode is None and meta and source.format != "keras":
            mode = "torch"
    resizing = arguments.get("resizing") or (source and source.resizing) or {}
    if mode is None:
        warn(
            "The model does not state how its pixels are scaled, so "
            "preprocessor_config.json has a mean and std of 0.5. If that is wrong, "
            "correct this file, or set `model.preprocess_mode` and save again."
        )
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        # Pillow's constants. In a folder with timm's config.json, transformers
        # chooses the class by the model, and classes differ in their default.
        "resample": INTERPOLATIONS.get(resizing.get("interpolation", ""), 2),
        **scaling(mode or "tf", arguments["channels"]),
        "size": {"height": size, "width": size},
    }


class HuggingFace(Format):
    """huggingface/transformers."""

    name = "huggingface"
    maps = (*_MAPS, *siglip_clip.MAPS, *dinov3.TRANSFORMERS_MAPS)
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-12,
        "resampling": "bicubic",
    }
    position_prefixes = {
        "": ("class",),
        # Includes the distillation token, which is a register token here.
        "deit": ("all",),
        "deit-bare": ("all",),
    }
    rotary_variants = dinov3.VARIANTS
    # The pooler of `ViTModel`, which its classifiers do not have.
    head_reads_pooler = False
    config_key = "model_type"
    folder_files = FOLDER_FILES

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        if variant in dinov3.VARIANTS:
            return {**self.arguments, **dinov3.ARGUMENTS}
        if variant in siglip_clip.VARIANTS:
            return {**self.arguments, **siglip_clip.implied(variant, paths)}
        if variant == IJEPA:
            return {**self.arguments, "norm_epsilon": 1e-6}
        if not variant.startswith("dinov2"):
            return self.arguments
        implied = {**self.arguments, "norm_epsilon": 1e-6}
        if "register_tokens/tokens" in paths:
            implied["resampling"] = "bicubic_antialias"
        return implied

    look_alikes = staticmethod(siglip_clip.look_alikes)
    unstored = staticmethod(siglip_clip.unstored)

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays = rename_keys(siglip_clip.normalize(arrays), _rename)
        # Blocks in files of a `ViTMSNForImageClassification` of transformers 5.
        if "vit.embeddings.cls_token" in arrays:
            arrays = rename_keys(
                arrays, lambda k: re.sub("^encoder.layer", r"vit.\g<0>", k)
            )
        # transformers 5 stores the gate and input projections of DINOv2's
        # SwiGLU separately.
        gates = [key for key in arrays if ".mlp.gate_proj." in key]
        for gate in gates:
            if gate.startswith("layer."):  # DINOv3, which has no older names
                continue
            parts = (gate, gate.replace("gate_proj", "up_proj"))
            joined = gate.replace("gate_proj", "weights_in")
            found = [arrays[key] for key in parts if key in arrays]
            shapes = {array.shape for array in found}
            whole = len(found) == 2 and len(shapes) == 1 and () not in shapes
            if joined not in arrays and whole:
                arrays[joined] = np.concatenate([arrays.pop(k) for k in parts])
        return arrays

    left_out = staticmethod(siglip_clip.left_out)
    to_file = staticmethod(siglip_clip.to_file)
    with_text = staticmethod(siglip_clip.with_text)
    read_config = staticmethod(read_arguments)
    check_config = staticmethod(check_config)

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        if variant == siglip_clip.CLASSIFIER and "pre_norm/gamma" in weights:
            stored = {**stored, "pooling": "gap"}
        weights, stored = naflex.after_reading(weights, stored, variant)
        return dinov3.after_reading(weights, stored, variant)

    def nearest_variant(self, arguments: Config) -> str:
        """Returns the variant of the transformers model that fits best.

        Keys of models without a head have no prefix, so these are separate
        variants.
        """
        a, head = arguments, arguments["classes"] is not None
        if a["position_embedding"] == "rope":
            return super().nearest_variant(a)
        if variant := {"mae": "mae", "simmim": "mim"}.get(a["family"]):
            return variant
        exact = a["activation"] == "gelu" and a["resampling"] == "bicubic"
        if not a["class_token"] and a["pooling"] != "map" and exact:
            return IJEPA if head else "vit"  # has no pooling without a head
        if tower := siglip_clip.nearest_variant(a):
            return tower
        if a["layer_scale"] is not None:
            registers = "-reg" if head and a["num_registers"] else ""
            swiglu = "-swiglu" if a["activation"] == "swiglu" else ""
            return f"dinov2{registers if head else '-bare'}{swiglu}"
        if head and a["distillation"]:
            return "deit-teacher"
        if a["num_registers"] == 1:
            return "deit" if head else "deit-bare"
        return "" if head else "vit"

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        a, dinov2 = arguments, variant.startswith("dinov2")
        scale = (a["layer_scale"] or 1.0,)
        activations = (*ACTIVATIONS.values(),)
        if variant in dinov3.VARIANTS:
            values: Values = {"class_token": (True,), "classes": (None,)}
            if folder:
                values |= {
                    "layer_scale": scale,
                    "patch_bias": (True,),
                    "final_norm": ("before_pooling",),
                    "activation": ("gelu", "gelu_tanh", "swiglu"),
                }
            return values
        ijepa = variant in (IJEPA, "vit") and not a["class_token"]
        values = {"class_token": (not ijepa,)}
        if a["classes"] or ijepa:
            values["representation_size"] = (None,)
        if a["classes"]:
            token = "token_gap" if dinov2 else "gap" if ijepa else "token"
            either = ("gap",) if ijepa else ("token", "token_gap")
            alone = ("token", "token_gap") if dinov2 else (token,)
            values["pooling"] = alone if folder else either
        if variant in siglip_clip.VARIANTS:
            values |= siglip_clip.values(a, variant)
        if not folder:
            return values
        values |= {"channels": (3,), "activation": activations, **square(a)}
        if variant.endswith("swiglu"):
            values["activation"] = ("swiglu",)
        if dinov2:
            width, mlp_dim = a["hidden_size"], a["mlp_dim"]
            gated = a["activation"] == "swiglu"
            whole = mlp_ratio(width, mlp_dim, gated)
            values["layer_scale"] = scale
            values["mlp_dim"] = (mlp_dim if whole else 4 * width,)
        elif variant not in siglip_clip.VARIANTS:
            values |= {"layer_scale": (None,), "num_registers": (0, 1)}
        return values

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        if variant.startswith("dinov2") and arguments["pooling"] == "token":
            kernel = weights.get("head/kernel")
            if kernel is not None:  # its classifier also reads the mean of patches
                padded = np.concatenate([kernel, np.zeros_like(kernel)])
                weights = {**weights, "head/kernel": padded}
        weights = naflex.before_writing(weights, arguments, variant)
        return dinov3.before_writing(weights, arguments, variant, "transformers")

    def folder_configs(
        self,
        arguments: Config,
        variant: str,
        dtype: str,
        source: Checkpoint | None = None,
        preprocess_mode: Mode | None = None,
    ) -> dict[str, Config]:
        """Returns the contents of a folder's two JSON files."""
        old = {} if source is None else read_config(source.path)
        config = {**_model_config(arguments, variant), "dtype": dtype}
        projected = variant == siglip_clip.PROJECTED
        if arguments["classes"] is not None and not projected:
            names = arguments.get("class_names") or (
                source and source.class_names(arguments["classes"])
            )
            default = [f"LABEL_{i}" for i in range(arguments["classes"])]
            config |= label_entries(names or default)
            config |= problem_type(old, arguments.get("classifier_activation"))
        size = config.get("vision_config", config).get("image_size", 0)
        height = size if isinstance(size, int) else size[0]
        preprocessor = _preprocessor_config(arguments, source, preprocess_mode, height)
        if variant in naflex.VARIANTS and "patch_size" not in preprocessor:
            del preprocessor["size"]
            preprocessor |= {
                "image_processor_type": "Siglip2ImageProcessor",
                "patch_size": arguments["patch_size"][0],
                "max_num_patches": math.prod(arguments["grid_size"]),
            }
        return {FOLDER_FILES[1]: config, FOLDER_FILES[2]: preprocessor}
