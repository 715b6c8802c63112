"""The libraries that layouts come from, to run their files in.

One function a library: it gets what a file tells and holds, and returns a
function of a PyTorch batch `(batch, channels, height, width)`. Everything is
imported inside, for none of it is needed to convert.
"""

import functools
import pathlib
import tempfile

import numpy as np

from keras_vit.checkpoints import _huggingface
from keras_vit.checkpoints.files import read


class NotRunError(Exception):
    """Why an original is not run; that is no fault of a file."""


class NotInstalledError(NotRunError):
    """The library is not there or does not work, which can be mended."""


def original(checkpoint, told, output, image_size):
    """Returns `(name and version, function of images)`.

    Args:
        checkpoint: A `Checkpoint`.
        told: Dict of arguments of `VisionTransformer`.
        output: What the function is to return: "logits", "pooled" or
            "tokens".
        image_size: `(height, width)`, which must be that of the positions.

    Raises:
        NotRunError: if there is no such library here, or it has no such
            model.
    """
    library = ORIGINALS.get(checkpoint.layout)
    if not callable(library):
        raise NotRunError(library or "no library of its own")
    if "resnet_layers" in told:
        raise NotRunError("ResNets and hybrids are not built there from a file")
    if not told.get("grid_size") or _image_size(told) != image_size:
        raise NotRunError("the images are not of the size of its positions")
    try:
        import torch

        name, run = library(checkpoint, told, output)
    except ImportError as error:
        raise NotInstalledError(_failed_import(error)) from error
    except RuntimeError as error:
        if _OPERATORS not in str(error):
            raise
        raise NotInstalledError(_failed_import(error)) from error

    def on_images(images):
        batch = torch.tensor(images).permute(0, 3, 1, 2)
        with torch.no_grad():
            return run(batch).float().cpu().numpy()

    return name, on_images


# What PyTorch says of operators that a torchvision built for another PyTorch
# does not bring.
_OPERATORS = "torchvision::"


def _failed_import(error):
    """Returns what failed while a library was imported, and how to mend it."""
    while error.__cause__ is not None:  # transformers wraps it
        error = error.__cause__
    if _OPERATORS in str(error):
        return (
            f"torchvision cannot be imported ({error}): it was built for "
            "another PyTorch. Install both from one place, such as: pip "
            "install -U torch torchvision --index-url "
            "https://download.pytorch.org/whl/cpu"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        return f"{name} is not installed: pip install {name}"
    return f"importing it failed ({type(error).__name__}: {error})"


def _timm(checkpoint, told, output):
    import timm
    from timm.layers import SwiGLUPacked
    from timm.layers import get_act_layer
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer
    from torch import nn

    if told["patch_bias"] == told["pre_norm"]:
        raise NotRunError("timm has a patch bias if it has no pre-norm")
    prefix = told["position_prefix"]
    if prefix == "class" and told["num_registers"]:
        raise NotRunError("timm gives registers a position, or nothing")
    swiglu = told["activation"] == "swiglu"
    arguments = {
        "img_size": _image_size(told),
        "patch_size": told["patch_size"],
        "in_chans": told["channels"],
        "num_classes": told["classes"] or 0,
        "global_pool": {"gap": "avg"}.get(told["pooling"], told["pooling"]),
        "embed_dim": told["hidden_size"],
        "depth": told["num_layers"],
        "num_heads": told["num_heads"],
        "mlp_ratio": (1 + swiglu) * told["mlp_dim"] / told["hidden_size"],
        "qkv_bias": told["qkv_bias"],
        "qk_norm": told["qk_norm"],
        "init_values": told["layer_scale"],
        "class_token": told["class_token"],
        "no_embed_class": prefix == "none",
        "reg_tokens": told["num_registers"],
        "pre_norm": told["pre_norm"],
        "final_norm": told["final_norm"] != "none",
        "fc_norm": told["final_norm"] == "after_pooling",
        "norm_layer": functools.partial(nn.LayerNorm, eps=told["norm_epsilon"]),
        "act_layer": get_act_layer(told["activation"])
        if not swiglu
        else nn.SiLU,
        "weight_init": "skip",
    }
    if swiglu:
        arguments["mlp_layer"] = SwiGLUPacked
    distilled = told["distillation"]
    make = VisionTransformerDistilled if distilled else VisionTransformer
    model = make(**arguments)
    names = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}  # DeiT III
    _load(model, checkpoint, names)
    run = model.forward_features if output == "tokens" else model
    return f"timm {timm.__version__}", run


def _torchvision(checkpoint, told, output):
    import torch
    import torchvision
    from torch import nn
    from torchvision.models import VisionTransformer

    height, width = _image_size(told)
    if height != width or len(set(told["patch_size"])) > 1:
        raise NotRunError("torchvision takes square patches and images")
    if told["channels"] != 3 or told["activation"] not in (
        "gelu",
        "gelu_tanh",
    ):
        raise NotRunError("torchvision has 3 channels and GELU")
    model = VisionTransformer(
        image_size=height,
        patch_size=told["patch_size"][0],
        num_layers=told["num_layers"],
        num_heads=told["num_heads"],
        hidden_dim=told["hidden_size"],
        mlp_dim=told["mlp_dim"],
        num_classes=told["classes"] or 1,
        representation_size=told["representation_size"],
        norm_layer=functools.partial(nn.LayerNorm, eps=told["norm_epsilon"]),
    )
    if told["classes"] is None and hasattr(model.heads, "head"):
        del model.heads.head
    for module in model.modules():
        if isinstance(module, nn.GELU) and told["activation"] != "gelu":
            module.approximate = "tanh"
    _load(model, checkpoint)

    def tokens(batch):
        x = model._process_input(batch)
        first = model.class_token.expand(len(x), -1, -1)
        return model.encoder(torch.cat([first, x], dim=1))

    run = tokens if output == "tokens" else model
    return f"torchvision {torchvision.__version__}", run


def _transformers(checkpoint, told, output):
    import torch
    import transformers

    path = pathlib.Path(checkpoint.path)
    with tempfile.TemporaryDirectory() as folder:
        if not path.is_dir():
            path = pathlib.Path(folder)
            spelling = _huggingface.spelling(told)
            try:
                files = _huggingface.configs(
                    told, f"huggingface:{spelling}", "float32", checkpoint
                )
            except ValueError as error:
                raise NotRunError(str(error)) from error
            arrays = read(checkpoint.path)
            _huggingface.write_folder(path, arrays, files, overwrite=True)
        config = transformers.AutoConfig.from_pretrained(path)
        known = [
            getattr(transformers, name, None)
            for name in config.architectures or ()
        ]
        if not known or known[0] is None:
            raise NotRunError("config.json names no model of transformers")
        model = known[0].from_pretrained(path, dtype=torch.float32).eval()
    field = {
        "logits": "logits",
        "pooled": "pooler_output",
        "tokens": "last_hidden_state",
    }[output]

    def run(batch):
        return getattr(model(batch), field)

    return f"transformers {transformers.__version__}", run


def _image_size(told):
    pairs = zip(told["grid_size"], told["patch_size"], strict=True)
    return tuple(count * patch for count, patch in pairs)


def _load(model, checkpoint, renamed=None):
    """Strictly: what is missing or left over is an error of PyTorch's."""
    import torch

    state = {}
    for key, array in read(checkpoint.path).items():
        for old, new in (renamed or {}).items():
            key = key.replace(old, new)
        state[key] = torch.tensor(np.asarray(array, "float32"))
    model.load_state_dict(state, strict=True)
    model.eval()


_NOT_ON_PYPI = "the original code is not on PyPI"
ORIGINALS = {  # layout: its library, or why there is none
    "timm": _timm,
    "mae": _timm,  # Meta's encoder is timm's
    "huggingface": _transformers,
    "torchvision": _torchvision,
    "vit_jax": _NOT_ON_PYPI,
    "big_vision": _NOT_ON_PYPI,
    "dinov2": _NOT_ON_PYPI,
}
