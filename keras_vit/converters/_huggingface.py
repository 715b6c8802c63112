"""A folder that transformers loads: config.json beside the weights."""

import json
import pathlib

from keras_vit.converters._files import replacing
from keras_vit.converters._files import write

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
}


def write_folder(folder, arrays, told, overwrite=False):
    """Writes config.json, model.safetensors and preprocessor_config.json.

    Args:
        folder: Path; it is made if it does not exist.
        arrays: Dict of keys to arrays, in the layout of transformers' ViT.
        told: Dict of arguments of `VisionTransformer`.
        overwrite: Boolean. Whether files that exist may be replaced.
    """
    folder = pathlib.Path(folder)
    config = config_of(told)
    if not any(key.startswith("vit.") for key in arrays):
        raise ValueError(
            "Only transformers' ViT can be written as a folder so far; these "
            "weights are of another of its models. Write a .safetensors file."
        )
    files = ("model.safetensors", "config.json", "preprocessor_config.json")
    there = [name for name in files if (folder / name).exists()]
    if there and not overwrite:
        raise FileExistsError(
            f"{str(folder)!r} already has {', '.join(there)}. Choose another "
            "folder, or pass --overwrite."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write(arrays, folder / files[0], overwrite)
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5] * told["channels"],
        "image_std": [0.5] * told["channels"],
        "rescale_factor": 1 / 255,
        "size": {
            "height": config["image_size"],
            "width": config["image_size"],
        },
    }
    for name, content in ((files[1], config), (files[2], preprocessor)):
        with replacing(folder / name, overwrite) as temporary:
            pathlib.Path(temporary).write_text(json.dumps(content, indent=2))


def config_of(told):
    """Returns transformers' config of a ViT.

    Raises:
        ValueError: if it has no words for the architecture.
    """
    rows, columns = told["patch_size"]
    grid = told["grid_size"]
    problems = []
    if rows != columns or grid is None or grid[0] != grid[1]:
        problems.append("patches and image must be square")
    if told["activation"] not in _ACTIVATIONS:
        problems.append(f"activation {told['activation']!r}")
    if problems:
        raise ValueError(
            f"transformers' ViT cannot hold it: {'; '.join(problems)}."
        )
    classes = told["classes"]
    config = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": told["hidden_size"],
        "num_hidden_layers": told["num_layers"],
        "num_attention_heads": told["num_heads"],
        "intermediate_size": told["mlp_dim"],
        "hidden_act": _ACTIVATIONS[told["activation"]],
        "layer_norm_eps": told["norm_epsilon"],
        "image_size": grid[0] * rows,
        "patch_size": rows,
        "num_channels": told["channels"],
        "qkv_bias": told["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if classes is not None:
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(classes)}
    return config
