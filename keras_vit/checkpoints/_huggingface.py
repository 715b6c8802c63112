"""A folder that transformers loads: config.json and preprocessor_config.json
beside the weights."""

import json
import pathlib

from keras_vit.checkpoints.files import atomic_write
from keras_vit.checkpoints.files import read_config
from keras_vit.checkpoints.files import write

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "swiglu": "gelu",  # a block of its own there, whose activation is fixed
}
_FILES = ("model.safetensors", "config.json", "preprocessor_config.json")
# spelling: (model type, class of the headless model, and with a head)
_MODELS = {
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
# ImageNet's mean and deviation; Google's models took [-1, 1].
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406]}
_IMAGENET["image_std"] = [0.229, 0.224, 0.225]
_GOOGLE = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def spelling(told):
    """Returns the spelling of the nearest model of transformers.

    A model without a head has no prefix before its keys there.
    """
    if told.get("pretraining") in ("mae", "mim"):
        return told["pretraining"]
    swiglu = "-swiglu" if told["activation"] == "swiglu" else ""
    bare = told["classes"] is None
    if told["layer_scale"] is not None:
        if bare:
            return f"dinov2-bare{swiglu}"
        return f"dinov2{'-reg' if told['num_registers'] else ''}{swiglu}"
    if bare:
        return "deit-bare" if told["num_registers"] == 1 else "vit"
    if told["distillation"]:
        return "deit-teacher"
    return "deit" if told["num_registers"] == 1 else ""


def configs(told, layout, dtype, source=None):
    """Returns the contents of the two JSON files, `{name: dict}`.

    Args:
        told: Dict of arguments of `VisionTransformer`.
        layout: "huggingface:" and a spelling.
        dtype: String. Type of the weights.
        source: The `Checkpoint` that the weights came from, or None. If it
            is another folder, its labels and its preprocessing are kept.

    Raises:
        ValueError: if no model of transformers has the architecture.
    """
    theirs = {} if source is None else read_config(source.path)
    config = {**_config(told, layout), "dtype": dtype}
    if told["classes"] is not None:
        config |= _labels(theirs, told["classes"])
    preprocessor = _preprocessor(told, config, source, theirs)
    return {_FILES[1]: config, _FILES[2]: preprocessor}


def raise_if_there(folder, overwrite):
    """Raises a `FileExistsError` if a file would be replaced unasked."""
    there = [name for name in _FILES if (folder / name).exists()]
    if there and not overwrite:
        raise FileExistsError(
            f"{str(folder)!r} already has {', '.join(there)}. Choose another "
            "folder, or pass --overwrite."
        )


def write_folder(folder, arrays, files, overwrite=False, dtype=None):
    """Writes the weights and the JSON files beside them.

    Args:
        folder: Path; it is made if it does not exist.
        arrays: Dict of keys to arrays.
        files: What `configs` returned.
        overwrite: Boolean. Whether files that exist may be replaced.
        dtype: As in `write`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(arrays, folder / _FILES[0], overwrite, dtype)
    for name, content in files.items():
        with atomic_write(folder / name, overwrite) as temporary:
            pathlib.Path(temporary).write_text(json.dumps(content, indent=2))


def _config(told, layout):
    name = layout.partition(":")[2].removesuffix("-swiglu")
    problems = _problems(told, name)
    if problems:
        raise ValueError(
            "transformers has no model with this architecture: "
            f"{'; '.join(problems)}."
        )
    if name in ("vit", "deit-bare"):
        name = "deit" if _is_deit(told) else ""
    elif name == "dinov2-bare":
        name = "dinov2-reg" if told["num_registers"] else "dinov2"
    model_type, headless, with_head = _MODELS[name]
    rows = told["patch_size"][0]
    config = {
        "model_type": model_type,
        "architectures": [with_head if told["classes"] else headless],
        "hidden_size": told["hidden_size"],
        "num_hidden_layers": told["num_layers"],
        "num_attention_heads": told["num_heads"],
        "hidden_act": _ACTIVATIONS[told["activation"]],
        "layer_norm_eps": told["norm_epsilon"],
        "image_size": told["grid_size"][0] * rows,
        "patch_size": rows,
        "num_channels": told["channels"],
        "qkv_bias": told["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if not name.startswith("dinov2"):
        config["intermediate_size"] = told["mlp_dim"]
        config |= _pretraining(told)
        if told["representation_size"]:
            config["pooler_output_size"] = told["representation_size"]
            config["pooler_act"] = "tanh"
        return config
    config["mlp_ratio"] = _mlp_ratio(told)
    config["use_swiglu_ffn"] = told["activation"] == "swiglu"
    if told["num_registers"]:
        config["num_register_tokens"] = told["num_registers"]
    else:
        config["use_mask_token"] = told["mask_token"]
    return config


def _pretraining(told):
    if told.get("pretraining") == "mim":
        return {"encoder_stride": told["patch_size"][0]}
    if told.get("pretraining") != "mae":
        return {}
    return {
        "decoder_hidden_size": told["decoder_hidden_size"],
        "decoder_intermediate_size": told["decoder_mlp_dim"],
        "decoder_num_attention_heads": told["decoder_num_heads"],
        "decoder_num_hidden_layers": told["decoder_num_layers"],
        # As in the constructor, where nothing tells.
        "mask_ratio": told.get("mask_ratio", 0.75),
        "norm_pix_loss": told.get("norm_pixels", True),
    }


def _is_deit(told):
    return told["distillation"] or told["num_registers"] == 1


def _problems(told, name):
    """Lists what no model of transformers can represent."""
    grid, (rows, columns) = told["grid_size"], told["patch_size"]
    problems = []
    if name not in (*_MODELS, "vit", "deit-bare", "dinov2-bare"):
        problems.append(
            f"its files are not spelled {name!r}; leave out the spelling"
        )
    if rows != columns or grid is None or grid[0] != grid[1]:
        problems.append(
            "patches and grid must be square; they are "
            f"{rows} x {columns} and "
            + (f"{grid[0]} x {grid[1]}" if grid else "unknown")
        )
    if told["channels"] != 3:
        problems.append(
            f"its image processor takes 3 channels, not {told['channels']}"
        )
    if told["activation"] not in _ACTIVATIONS:
        problems.append(f"activation {told['activation']!r}")
    dinov2 = name.startswith("dinov2")
    if dinov2 != (told["layer_scale"] is not None):
        problems.append("layer scale is DINOv2's, which always has it")
    pooling = "token_gap" if dinov2 else "token"
    if told["classes"] and told["pooling"] != pooling:
        problems.append(
            f"its head reads {pooling!r} and not {told['pooling']!r}"
        )
    if dinov2 and _mlp_ratio(told) is None:
        problems.append(
            f"an MLP of {told['mlp_dim']}, which no whole `mlp_ratio` gives"
        )
    if not dinov2 and told["activation"] == "swiglu":
        problems.append("activation 'swiglu'")
    if not dinov2 and told["num_registers"] > 1:
        problems.append("register tokens are DINOv2's")
    if told["classes"] and told["representation_size"]:
        problems.append("no layer `pre_logits` before a head")
    return problems


def _mlp_ratio(told):
    """The ratio, a whole number in its config, that gives the MLP's width in
    DINOv2's code; None if none does. Its gated MLP has 2/3 of the width,
    rounded up to 8s."""
    hidden_size, width = told["hidden_size"], told["mlp_dim"]
    for ratio in range(1, 65):
        total = hidden_size * ratio
        if told["activation"] == "swiglu":
            total = (int(total * 2 / 3) + 7) // 8 * 8
        if total == width:
            return ratio
    return None


def _labels(theirs, classes):
    """The source's own labels, if they are of as many classes."""
    names = theirs.get("id2label")
    if not isinstance(names, dict) or not (
        names.keys() == {str(i) for i in range(classes)}
        and all(isinstance(name, str) for name in names.values())
    ):
        names = {str(i): f"LABEL_{i}" for i in range(classes)}
    return {
        "id2label": names,
        "label2id": {name: int(i) for i, name in names.items()},
    }


def _preprocessor(told, config, source, theirs):
    """The source's own if it has one, else what its code base normalises by;
    weights without a source take what `preprocess_input` gives."""
    layout = source.layout if source else "keras"
    if layout == "huggingface":
        kept = read_config(source.path, _FILES[2])
        if kept:
            return kept
    values = _GOOGLE
    deit = told["layer_scale"] is not None or _is_deit(told)
    if layout in ("torchvision", "dinov2", "mae") or (
        deit and layout in ("timm", "huggingface")
    ):
        values = _IMAGENET
    timm = theirs.get("pretrained_cfg")
    if layout == "timm" and isinstance(timm, dict) and "mean" in timm:
        values = {"image_mean": timm["mean"], "image_std": timm["std"]}
    size = config["image_size"]
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        **values,
        "rescale_factor": 1 / 255,
        "size": {"height": size, "width": size},
    }
