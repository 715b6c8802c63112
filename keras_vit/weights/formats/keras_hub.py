"""keras-hub's presets (format "keras_hub"): ViT, DeiT and DINOv2.

https://github.com/keras-team/keras-hub. A preset is a folder of the backbone's
config.json and model.weights.h5 and a classifier's task.json and
task.weights.h5. A DINOv2 contains its position embeddings twice: for the size
of images of pre-training, and for that of its own. The latter are those that
the model computes with and trains, and are read; keras-hub resamples the former
when it loads a file.
"""

import re

import numpy as np

from keras_vit.utils.scaling import Mode, mean_and_std
from keras_vit.utils.types import Array, Config
from keras_vit.weights.files import PRESET_FILES
from keras_vit.weights.formats.format import (
    QKV,
    Checkpoint,
    Format,
    Values,
    block_layers,
    check_option,
    image_size,
    square,
)
from keras_vit.weights.weight_map import IDENTITY, Layers, WeightMap, rename_keys

_TYPES = {
    "array": {"": ("", IDENTITY)},
    "vector": {"": ("", "1 d -> 1 1 d")},
    "embedding": {"": ("", "t d -> 1 t d")},
    "norm": {"gamma": ("0", IDENTITY), "beta": ("1", IDENTITY)},
    **dict.fromkeys(
        ("linear", "conv", "heads", "merge"),
        {"kernel": ("0", IDENTITY), "bias": ("1", IDENTITY)},
    ),
}


def _map(
    variant: str,
    patches: str,
    tokens: Layers,
    block: str,
    names: tuple[str, ...],
    norm: str,
    head: Layers = (),
) -> WeightMap:
    norm_1, norm_2, attention, *mlp = names
    return WeightMap(
        variant,
        _TYPES,
        (
            ("patch_embedding/*", f"{patches}/*", "conv"),
            *tokens,
            *block_layers(
                f"{block}/",
                tuple(f"{attention}/{name}_dense/*" for name in QKV),
                f"{attention}/output_dense/*",
                (f"{mlp[0]}/*", f"{mlp[1]}/*"),
                (f"{norm_1}/*", f"{norm_2}/*"),
                ("layer_scale1/0", "layer_scale2/0"),
            ),
            ("encoder_norm/*", f"{norm}/*", "norm"),
            *head,
        ),
    )


_VIT, _DEIT = "vi_t_patching_and_embedding", "dei_t_embeddings"
_DINOV2, _POSITIONS = "dinov2_embedding", "position_embedding/embedding"
_HEADS = ("pre_logits", "predictions")
_TOKENS = tuple(
    f"{_DINOV2}/{name}"
    for name in (
        "cls_token",
        "mask_token",
        "register_tokens",
        "position_embeddings",
    )
)
_HEAD = (
    ("pre_logits/*", "task/pre_logits/*", "linear"),
    ("head/*", "task/predictions/*", "linear"),
)
_MAPS = (
    _map(
        "vit",
        f"{_VIT}/patch_embedding",
        (
            ("class_token/tokens", f"{_VIT}/0", "array"),
            (_POSITIONS, f"{_VIT}/position_embedding/0", "embedding"),
        ),
        "vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}",
        ("layer_norm_1", "layer_norm_2", "mha", "mlp/dense_1", "mlp/dense_2"),
        "vi_t_encoder/layer_norm",
        _HEAD,
    ),
    # The head does not read the distillation token, which is thus a register.
    _map(
        "deit",
        f"{_DEIT}/patch_embedding",
        (
            ("class_token/tokens", f"{_DEIT}/0", "array"),
            ("register_tokens/tokens", f"{_DEIT}/1", "array"),
            (_POSITIONS, f"{_DEIT}/2", "array"),
        ),
        "dei_t_encoder/encoder_layers/dei_t_encoder_block_{i}",
        (
            "layer_norm_1",
            "layer_norm_2",
            "mha",
            "mlp/dense",
            "output_layer/dense",
        ),
        "dei_t_encoder/layer_norm",
        _HEAD,
    ),
    *(
        _map(
            variant,
            f"{_DINOV2}/patch_embeddings/projection",
            (
                ("class_token/tokens", _TOKENS[0], "array"),
                ("mask_token/tokens", _TOKENS[1], "vector"),
                ("register_tokens/tokens", _TOKENS[2], "array"),
                (_POSITIONS, _TOKENS[3], "array"),
            ),
            "dinov2_encoder/layers/dinov2_layer_{i}",
            ("norm1", "norm2", "attention/attention", *layers),
            "layer_normalization",
        )
        for variant, layers in (
            ("dinov2", ("mlp/fc1", "mlp/fc2")),
            ("dinov2-swiglu", ("mlp/weights_in", "mlp/weights_out")),
        )
    ),
)

# The first block, whose name has no digits, and what Keras numbers.
_FIRST = re.compile(
    r"(encoder_layers/(?:vi_t|dei_t)_encoder_block|layers/dinov2_layer)(?=/)"
)
_CLASSES = {"vit": "ViT", "deit": "DeiT", "dinov2": "DINOV2"}
_POOLINGS = {  # of keras-hub, with a class token or without one
    ("token", True): "token",
    ("token", False): "first_patch",
    ("gap", False): "gap",
}


def _intermediate_dim(arguments: Config) -> int | None:
    """Returns the width from which an MLP is made, None if there is none.

    A SwiGLU has 2/3 of it, rounded up to a multiple of 8. Several widths give
    the same; a multiple of the hidden size, as in released models, is first.
    """
    width, hidden_size = arguments["mlp_dim"], arguments["hidden_size"]
    if arguments["activation"] != "swiglu":
        return width
    candidates = [
        candidate
        for candidate in range(width, 2 * width)
        if (int(candidate * 2 / 3) + 7) // 8 * 8 == width
    ]
    return min(candidates, key=lambda c: (c % hidden_size, c), default=None)


FOLDER_FILES = (
    *PRESET_FILES,
    "config.json",
    "task.json",
    "preprocessor.json",
    "image_converter.json",
    "metadata.json",
)


class KerasHub(Format):
    """keras-team/keras-hub."""

    name = "keras_hub"
    maps = _MAPS
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic",
    }
    position_prefixes = {
        "": ("all",),
        "dinov2": ("class",),
        "dinov2-swiglu": ("class",),
    }
    config_files = ("task.json", "config.json")
    config_key = "registered_name"
    folder_files = FOLDER_FILES

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Numbers the first block, and names what Keras numbers."""
        dense = (re.match(r"task/dense(_\d+)?(?=/)", key) for key in arrays)
        heads = sorted({match[0] for match in dense if match}, reverse=True)
        names = {
            f"{head}/{i}": f"task/{name}/{i}"
            for head, name in zip(heads, _HEADS[::-1], strict=False)
            for i in (0, 1)
        }
        pattern = rf"{_DINOV2}/\d+"
        numbered = sorted(key for key in arrays if re.fullmatch(pattern, key))
        if len(numbered) >= 3:
            cls, *others, positions, dropped = numbered
            names |= {cls: _TOKENS[0], positions: _TOKENS[-1]}
            for key in others:
                is_mask = np.ndim(arrays[key]) == 2
                names[key] = _TOKENS[1 if is_mask else 2]
            arrays = {key: a for key, a in arrays.items() if key != dropped}
        return rename_keys(arrays, lambda key: names.get(key, _FIRST.sub(r"\1_0", key)))

    @staticmethod
    def to_file(arrays: dict[str, Array]) -> dict[str, Array]:
        """Undoes `normalize`."""
        heads = [name for name in _HEADS if f"task/{name}/0" in arrays]
        names = {
            f"task/{name}/{i}": f"task/dense{'_1' * number}/{i}"
            for number, name in enumerate(heads)
            for i in (0, 1)
        }
        tokens = [key for key in _TOKENS if key in arrays]
        names |= {key: f"{_DINOV2}/{i}" for i, key in enumerate(tokens)}
        if tokens:
            copy = {f"{_DINOV2}/{len(tokens)}": arrays[tokens[-1]]}
            arrays = {**arrays, **copy}
        first = re.compile(r"(encoder_block|dinov2_layer)_0(?=/)")
        return rename_keys(arrays, lambda key: names.get(key, first.sub(r"\1", key)))

    @staticmethod
    def read_config(config: Config) -> Config:
        """Returns the arguments that task.json or config.json imply."""
        try:
            task = config["config"] if "backbone" in config["config"] else None
            backbone = config if task is None else task["backbone"]
            name, options = backbone["class_name"], backbone["config"]
            is_known = name.removesuffix("Backbone") in _CLASSES.values()
            known = "ViTBackbone, DeiTBackbone or DINOV2Backbone"
            check_option(is_known, "class_name", name, known)
            for bias in ("use_mha_bias", "use_mlp_bias"):
                check_option(options.get(bias, True), bias, False, "True")
            image = options["image_shape"]
            if image[0] <= 4 < image[2]:  # saved with channels first
                image = image[1:]
            patch = np.broadcast_to(options["patch_size"], 2)
            pairs = zip(image, patch, strict=False)
            arguments = {
                "norm_epsilon": float(options.get("layer_norm_epsilon", 1e-6)),
                "grid_size": tuple(int(size) // int(p) for size, p in pairs),
            }
            if options.get("antialias_in_interpolation"):
                arguments["resampling"] = "bicubic_antialias"
            if task is None:
                return arguments
            pooling, activation = task["pooling"], task.get("activation")
            key = (pooling, options.get("use_class_token", True))
            # The mean of keras-hub includes the class token.
            expected = "'token', or 'gap' without a class token"
            check_option(key in _POOLINGS, "pooling", pooling, expected)
            is_name = isinstance(activation, (str, type(None)))
            check_option(is_name, "activation", activation, "a name")
        except (
            LookupError,
            TypeError,
            AttributeError,
            ZeroDivisionError,
        ) as error:
            raise ValueError(
                "its config is not that of a keras-hub ViT, DeiT or DINOv2 "
                f"({type(error).__name__}: {error})"
            ) from error
        return {
            **arguments,
            "pooling": _POOLINGS[key],
            "classifier_activation": activation,
        }

    def nearest_variant(self, arguments: Config) -> str:
        """Returns the variant of the keras-hub model that fits best."""
        if arguments["layer_scale"] is not None:
            is_gated = arguments["activation"] == "swiglu"
            return "dinov2-swiglu" if is_gated else "dinov2"
        return "deit" if arguments["num_registers"] else "vit"

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        a, dinov2 = arguments, variant.startswith("dinov2")
        gated = variant.endswith("swiglu")
        values: Values = {
            "activation": ("swiglu",) if gated else ("gelu",),
            "qkv_bias": (True,),
            "final_norm": ("before_pooling",),
            "position_embedding": ("learned",),
            "grid_size": (a["grid_size"] or "one that is given",),
        }
        if a["classes"]:
            token = a["class_token"]
            values["pooling"] = ("token",) if token else ("gap", "first_patch")
        if variant != "vit":
            values |= {
                "class_token": (True,),
                "patch_bias": (True,),
                "representation_size": (None,),
            }
        elif not a["classes"]:
            values["representation_size"] = (None,)
        if variant == "deit":
            values["num_registers"] = (1,)
        if not dinov2:
            return values
        width = a["mlp_dim"] if _intermediate_dim(a) else 4 * a["hidden_size"]
        return values | {
            "classes": (None,),
            "norm_epsilon": (1e-6,),
            "mlp_dim": (width,),
            **square(a),
        }

    def folder_configs(
        self,
        arguments: Config,
        variant: str,
        dtype: str,
        source: Checkpoint | None = None,
        preprocess_mode: Mode | None = None,
    ) -> dict[str, Config]:
        """Returns the contents of a preset's JSON files."""
        a, folder = arguments, variant.removesuffix("-swiglu")

        def serialized(name: str, module: str, config: Config) -> Config:
            name = _CLASSES[folder] + name
            return {
                "module": f"keras_hub.src.models.{folder}.{folder}_{module}",
                "class_name": name,
                "config": config,
                "registered_name": f"keras_hub>{name}",
            }

        image = (*image_size(a), a["channels"])
        policy = {"module": "keras", "class_name": "DTypePolicy"}
        policy |= {"config": {"name": dtype}, "registered_name": None}
        options = {
            "name": f"{folder}_backbone",
            "trainable": True,
            "dtype": policy,
            "image_shape": image,
            "patch_size": a["patch_size"],
            "num_layers": a["num_layers"],
            "num_heads": a["num_heads"],
            "hidden_dim": a["hidden_size"],
        }
        antialias = a["resampling"] == "bicubic_antialias"
        options |= {
            "vit": {
                "mlp_dim": a["mlp_dim"],
                "layer_norm_epsilon": a["norm_epsilon"],
                "use_class_token": a["class_token"],
                "use_patch_bias": a["patch_bias"],
            },
            "deit": {
                "intermediate_dim": a["mlp_dim"],
                "layer_norm_epsilon": a["norm_epsilon"],
            },
            "dinov2": {
                "patch_size": a["patch_size"][0],
                "intermediate_dim": _intermediate_dim(a),
                "num_register_tokens": a["num_registers"],
                "use_mask_token": a["mask_token"],
                "use_swiglu_ffn": a["activation"] == "swiglu",
                "position_embedding_shape": image,
                "antialias_in_interpolation": antialias,
            },
        }[folder]
        backbone = serialized("Backbone", "backbone", options)
        configs, preprocessor = {"config.json": backbone}, None
        mode = preprocess_mode or (source and source.preprocess_mode)
        if mode:
            mean, std = map(np.array, mean_and_std(mode, a["channels"]))
            converter = serialized(
                "ImageConverter",
                "image_converter",
                {
                    "image_size": image[:2],
                    "crop_to_aspect_ratio": False,
                    "scale": (1 / 255 / std).tolist(),
                    "offset": (-mean / std).tolist(),
                },
            )
            configs["image_converter.json"] = converter
            preprocessor = serialized(
                "ImageClassifierPreprocessor",
                "image_classifier_preprocessor",
                {"image_converter": converter},
            )
        if not a["classes"]:
            return configs
        if preprocessor:
            configs["preprocessor.json"] = preprocessor
        task = {
            "backbone": backbone,
            "preprocessor": preprocessor,
            "name": f"{folder}_image_classifier",
            "num_classes": a["classes"],
            "pooling": "gap" if a["pooling"] == "gap" else "token",
            "activation": a.get("classifier_activation"),
            "dropout": 0.0,
        }
        if folder == "vit":
            task["intermediate_dim"] = a["representation_size"]
        configs["task.json"] = serialized("ImageClassifier", "image_classifier", task)
        return configs

    def weight_files(self, arrays: dict[str, Array]) -> dict[str, dict[str, Array]]:
        files: dict[str, dict[str, Array]] = {}
        for key, array in arrays.items():
            name = PRESET_FILES[key.startswith("task/")]
            files.setdefault(name, {})[key.removeprefix("task/")] = array
        return files
