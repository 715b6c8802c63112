"""Hugging Face's transformers (layout "huggingface"): ViT, DeiT, DINOv2, MAE.

The image towers of SigLIP and CLIP are in `siglip_clip.py`.

https://github.com/huggingface/transformers. A folder contains what
`from_pretrained` loads: the weights, config.json and preprocessor_config.json.
"""

import math
import pathlib
import re
import tempfile
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_vit._published import PREPROCESSING
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import Tensor
from keras_vit.weights.files import class_names_of
from keras_vit.weights.files import read
from keras_vit.weights.files import read_config
from keras_vit.weights.formats import dinov3
from keras_vit.weights.formats import naflex
from keras_vit.weights.formats import siglip_clip
from keras_vit.weights.formats.format import QKV
from keras_vit.weights.formats.format import Checkpoint
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.format import Reference
from keras_vit.weights.formats.format import ReferenceUnavailable
from keras_vit.weights.formats.format import Values
from keras_vit.weights.formats.format import block_layers
from keras_vit.weights.formats.format import square
from keras_vit.weights.formats.format import write_folder
from keras_vit.weights.formats.huggingface_config import ACTIVATIONS
from keras_vit.weights.formats.huggingface_config import check_config
from keras_vit.weights.formats.huggingface_config import dinov3_config
from keras_vit.weights.formats.huggingface_config import hidden_act
from keras_vit.weights.formats.huggingface_config import mlp_ratio
from keras_vit.weights.formats.huggingface_config import read_arguments
from keras_vit.weights.formats.meta import mae_decoder
from keras_vit.weights.weight_map import TORCH
from keras_vit.weights.weight_map import Layers
from keras_vit.weights.weight_map import WeightMap
from keras_vit.weights.weight_map import rename_keys

MULTI_LABEL = "multi_label_classification"  # a `problem_type`
_DISTILLATION = ("distillation_token/tokens", "distillation_token", "array")
# In a DeiT with one head, or with a pooler of the class token, the distillation
# token's output is not used, so that it is a register token.
_UNREAD_DISTILLATION = ("register_tokens/tokens", "distillation_token", "array")
_REGISTERS = ("register_tokens/tokens", "register_tokens", "array")
_VIT_MASK = ("mask_token/tokens", "mask_token", "array")
_DINOV2_MASK = ("mask_token/tokens", "mask_token", "vector")


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
    tokens: Layers,
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
            for path_name, name, parameter_type in (*tokens, positions)
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


_VIT_LAYERS = _layers("vit.", _VIT, (_VIT_MASK,))
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
            _layers("", _VIT, (_UNREAD_DISTILLATION, _VIT_MASK)),
            ("embeddings.distillation_token", "pooler.dense.weight"),
        ),
        ("vit", _layers("", _VIT, (_DISTILLATION, _VIT_MASK)), ()),
        ("deit", _layers("deit.", _VIT, (_UNREAD_DISTILLATION, _VIT_MASK)), ()),
        (
            "deit-teacher",
            _layers(
                "deit.", _VIT, (_DISTILLATION, _VIT_MASK), "cls_classifier"
            ),
            (),
        ),
        *(
            (
                f"{variant}{suffix}",
                _layers(prefix, blocks, (_REGISTERS, _DINOV2_MASK)),
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
_BLOCK_V5 = re.compile(r"(vit\.|deit\.|)layers\.(\d+)\.(.*)")
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
}


def _is_deit(arguments: Config) -> bool:
    return arguments["distillation"] or arguments["num_registers"] == 1


def _ratio(arguments: Config) -> int | None:
    gated = arguments["activation"] == "swiglu"
    return mlp_ratio(arguments["hidden_size"], arguments["mlp_dim"], gated)


def _model_config(arguments: Config, variant: str) -> Config:
    a = arguments
    if variant in dinov3.VARIANTS:
        return dinov3_config(a)
    variant = variant.removesuffix("-swiglu")
    if variant in ("vit", "deit-bare"):
        variant = "deit" if _is_deit(a) else ""
    elif variant == "dinov2-bare":
        variant = "dinov2-reg" if a["num_registers"] else "dinov2"
    patch_size = a["patch_size"][0]
    common = {
        "hidden_size": a["hidden_size"],
        "num_hidden_layers": a["num_layers"],
        "num_attention_heads": a["num_heads"],
        "hidden_act": hidden_act(a["activation"]),
        "layer_norm_eps": a["norm_epsilon"],
        "image_size": a["grid_size"][0] * patch_size,
        "patch_size": patch_size,
        "num_channels": a["channels"],
    }
    if variant in siglip_clip.VARIANTS:
        return siglip_clip.model_config(a, variant, common)
    model_type, headless, with_head = _CLASSES[variant]
    config = {
        "model_type": model_type,
        "architectures": [with_head if a["classes"] else headless],
        **common,
        "qkv_bias": a["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if variant.startswith("dinov2"):
        config["mlp_ratio"] = _ratio(a)
        config["use_swiglu_ffn"] = a["activation"] == "swiglu"
        if a["num_registers"]:
            config["num_register_tokens"] = a["num_registers"]
        else:
            config["use_mask_token"] = a["mask_token"]
        return config
    config["intermediate_size"] = a["mlp_dim"]
    if a["representation_size"]:
        config["pooler_output_size"] = a["representation_size"]
        config["pooler_act"] = "tanh"
    if a.get("pretraining") == "mim":
        config["encoder_stride"] = patch_size
    if a.get("pretraining") == "mae":
        config |= {
            "decoder_hidden_size": a["decoder_hidden_size"],
            "decoder_intermediate_size": a["decoder_mlp_dim"],
            "decoder_num_attention_heads": a["decoder_num_heads"],
            "decoder_num_hidden_layers": a["decoder_num_layers"],
            # Files may lack these: defaults of `MaskedAutoencoder`.
            "mask_ratio": a.get("mask_ratio", 0.75),
            "norm_pix_loss": a.get("norm_pixels", True),
        }
    return config


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


def label_entries(class_names: list[str]) -> Config:
    """Returns the entries of config.json that name the classes."""
    return {
        "id2label": {str(i): name for i, name in enumerate(class_names)},
        "label2id": {name: i for i, name in enumerate(class_names)},
    }


_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's constants


def _preprocessor_config(
    arguments: Config,
    source: Checkpoint | None,
    old: Config,
    mode: str | None,
    size: int,
) -> Config:
    """Returns the contents of preprocessor_config.json.

    The source's own are kept if its layout is "huggingface". Otherwise, they
    are those of `mode`, else of the source's code base, else "tf".
    """
    layout = source.layout if source else "keras"
    if source and layout == "huggingface":
        kept = read_config(source.path, FOLDER_FILES[2])
        if kept:
            return kept
    if source and mode is None:
        mode = source.preprocess_mode
        meta = arguments["layer_scale"] is not None or _is_deit(arguments)
        if mode is None and arguments["pre_norm"]:
            mode = "clip"
        elif mode is None and meta and layout != "keras":
            mode = "torch"
    mean, std = PREPROCESSING[mode or "tf"]
    resample = _RESAMPLE["bilinear"]
    timm = old.get("pretrained_cfg")
    if layout == "timm" and isinstance(timm, dict) and "mean" in timm:
        mean, std = timm["mean"], timm["std"]
        resample = _RESAMPLE.get(timm.get("interpolation", ""), resample)
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        # In a folder with timm's config.json, transformers chooses the class
        # by the model, and classes differ in their default.
        "resample": resample,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        "rescale_factor": 1 / 255,
        "size": {"height": size, "width": size},
    }


def output_of(outputs: Any, name: str) -> Tensor:
    """Returns one of a model's outputs."""
    if name == "logits" and not hasattr(outputs, "logits"):
        return outputs.image_embeds  # CLIP's projection
    names = {"pooled": "pooler_output", "tokens": "last_hidden_state"}
    return getattr(outputs, names.get(name, name))


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
    config_key = "model_type"
    folder_files = FOLDER_FILES

    def implied(self, variant: str, paths: Collection[str]) -> Config:
        if variant in dinov3.VARIANTS:
            return {**self.arguments, **dinov3.ARGUMENTS}
        if variant in siglip_clip.VARIANTS:
            return {**self.arguments, **siglip_clip.implied(variant, paths)}
        if not variant.startswith("dinov2"):
            return self.arguments
        implied = {**self.arguments, "norm_epsilon": 1e-6}
        if "register_tokens/tokens" in paths:
            implied["resampling"] = "bicubic_antialias"
        return implied

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays = rename_keys(siglip_clip.normalize(arrays), _rename)
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
    read_config = staticmethod(read_arguments)
    check_config = staticmethod(check_config)

    @staticmethod
    def after_reading(
        weights: dict[str, Array], stored: Config, variant: str
    ) -> tuple[dict[str, Array], Config]:
        weights, stored = naflex.after_reading(weights, stored, variant)
        return dinov3.after_reading(weights, stored, variant)

    def nearest_variant(self, arguments: Config) -> str:
        """Returns the variant of the transformers model that fits best.

        Keys of models without a head have no prefix, so these are separate
        variants.
        """
        a = arguments
        if a["position_embedding"] == "rope":
            return dinov3.VARIANTS[a["activation"] == "swiglu"]
        if a.get("pretraining") in ("mae", "mim"):
            return a["pretraining"]
        if tower := siglip_clip.nearest_variant(a):
            return tower
        swiglu = "-swiglu" if a["activation"] == "swiglu" else ""
        headless = a["classes"] is None
        if a["layer_scale"] is not None:
            if headless:
                return f"dinov2-bare{swiglu}"
            return f"dinov2{'-reg' if a['num_registers'] else ''}{swiglu}"
        if headless:
            return "deit-bare" if a["num_registers"] == 1 else "vit"
        if a["distillation"]:
            return "deit-teacher"
        return "deit" if a["num_registers"] == 1 else ""

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        a, dinov2 = arguments, variant.startswith("dinov2")
        if variant in dinov3.VARIANTS and not folder:
            return {"class_token": (True,)}
        if variant in dinov3.VARIANTS:
            return {
                "class_token": (True,),
                "classes": (None,),
                "layer_scale": (a["layer_scale"] or 1.0,),
                "patch_bias": (True,),
                "final_norm": ("before_pooling",),
                "activation": ("gelu", "gelu_tanh", "swiglu"),
            }
        values: Values = {"channels": (3,)} if folder else {}
        if a["classes"]:
            values["representation_size"] = (None,)
        if variant in siglip_clip.VARIANTS:
            values |= siglip_clip.values(a, variant)
            if folder:
                values |= square(a) | {"activation": (*ACTIVATIONS.values(),)}
            return values
        values["class_token"] = (True,)
        if a["classes"]:
            values["pooling"] = ("token", "token_gap")
            if folder:
                values["pooling"] = ("token_gap",) if dinov2 else ("token",)
        if not folder:
            return values
        gated = variant.endswith("swiglu")
        values |= square(a) | {
            "activation": ("swiglu",) if gated else (*ACTIVATIONS.values(),)
        }
        if not dinov2:
            return values | {"layer_scale": (None,), "num_registers": (0, 1)}
        width = a["mlp_dim"] if _ratio(a) else 4 * a["hidden_size"]
        return values | {
            "layer_scale": (a["layer_scale"] or 1.0,),
            "mlp_dim": (width,),
        }

    def before_writing(
        self, weights: dict[str, Array], arguments: Config, variant: str
    ) -> dict[str, Array]:
        weights = naflex.before_writing(weights, arguments, variant)
        return dinov3.before_writing(
            weights, arguments, variant, "transformers"
        )

    def folder_configs(
        self,
        arguments: Config,
        variant: str,
        dtype: str,
        source: Checkpoint | None = None,
        preprocess_mode: str | None = None,
    ) -> dict[str, Config]:
        """Returns the contents of a folder's two JSON files."""
        old = {} if source is None else read_config(source.path)
        config = {**_model_config(arguments, variant), "dtype": dtype}
        projected = variant == siglip_clip.PROJECTED
        if arguments["classes"] is not None and not projected:
            names = class_names_of(old, arguments["classes"])
            default = [f"LABEL_{i}" for i in range(arguments["classes"])]
            config |= label_entries(names or default)
            config |= problem_type(old, arguments.get("classifier_activation"))
        size = config.get("vision_config", config).get("image_size", 0)
        height = size if isinstance(size, int) else size[0]
        preprocessor = _preprocessor_config(
            arguments, source, old, preprocess_mode, height
        )
        if variant in naflex.VARIANTS and "patch_size" not in preprocessor:
            del preprocessor["size"]
            preprocessor |= {
                "image_processor_type": "Siglip2ImageProcessor",
                "patch_size": arguments["patch_size"][0],
                "max_num_patches": math.prod(arguments["grid_size"]),
            }
        return {FOLDER_FILES[1]: config, FOLDER_FILES[2]: preprocessor}

    def reference(
        self, checkpoint: Checkpoint, arguments: Config, output: str
    ) -> Reference:
        import torch
        import transformers

        if output == "tokens" and arguments["pre_norm"]:
            raise ReferenceUnavailable(
                "its tokens are those before the last norm"
            )
        path = pathlib.Path(checkpoint.path)
        with tempfile.TemporaryDirectory() as folder:
            if not path.is_dir():
                path = pathlib.Path(folder)
                variant = self.nearest_variant(arguments)
                problems = self.refusals(arguments, variant, True)
                if problems:
                    raise ReferenceUnavailable("; ".join(problems))
                configs = self.folder_configs(
                    arguments, variant, "float32", checkpoint
                )
                arrays = read(checkpoint.path)
                write_folder(path, {FOLDER_FILES[0]: arrays}, configs)
            if checkpoint.weight_map.variant in naflex.VARIANTS:
                raise ReferenceUnavailable("Siglip2VisionModel is not run")
            config = transformers.AutoConfig.from_pretrained(path)
            name = (config.architectures or [""])[0]
            build = getattr(
                transformers, siglip_clip.TOWERS.get(name, name), None
            )
            if build is None:
                raise ReferenceUnavailable(
                    "config.json names no model of transformers"
                )
            if name in siglip_clip.TOWERS:
                width = getattr(config, "projection_dim", None)
                config = config.vision_config
                if width is not None:  # the tower's own may be another
                    config.projection_dim = width
            model = build.from_pretrained(
                path, config=config, dtype=torch.float32
            )
            model.eval()

        def run(batch: Tensor) -> Tensor:
            return output_of(model(batch), output)

        return f"transformers {transformers.__version__}", run
