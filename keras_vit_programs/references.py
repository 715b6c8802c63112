"""The original libraries, in which `--verify` runs files."""

import contextlib
import functools
import importlib
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from keras_vit.config import known
from keras_vit.utils.published import rotary_periods
from keras_vit.utils.types import Array, Config, Tensor
from keras_vit.weights import Checkpoint
from keras_vit.weights.files import read_all, read_config
from keras_vit.weights.formats import FORMATS, dinov3, naflex, open_clip, siglip_clip
from keras_vit.weights.formats.format import (
    image_size,
    refuse_others,
    square,
    write_folder,
)
from keras_vit.weights.formats.huggingface import FOLDER_FILES
from keras_vit.weights.formats.timm import model_arguments

# Name of a library with its version, and a function of a batch for PyTorch.
Reference: TypeAlias = tuple[str, Callable[[Tensor], Tensor]]


class ReferenceUnavailable(Exception):
    """Raised if the reference library cannot run a checkpoint."""


class ReferenceNotInstalled(ReferenceUnavailable):
    """Raised if the reference library is not installed, or does not work."""


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turns an error about arguments that a library does not have into a
    `ReferenceUnavailable`."""
    try:
        yield
    except ValueError as error:
        raise ReferenceUnavailable(str(error)) from error


def own_arrays(checkpoint: Checkpoint) -> dict[str, Array]:
    """Returns the arrays of a file under the keys that its code base gives them,
    with the bias of zeros that the model of a head without one has."""
    arrays, _ = read_all(checkpoint.path)
    own = {key: arrays[x] for key, x in checkpoint.own_keys.items()}
    kernel, bias = (checkpoint.weight_map.key(f"head/{x}") for x in ("kernel", "bias"))
    if kernel in own:
        own.setdefault(bias, np.zeros_like(own[kernel][:, 0]))
    return own


def load_state_dict(
    model: Any, checkpoint: Checkpoint, renamed: dict[str, str] | None = None
) -> None:
    """Loads a checkpoint's file into a PyTorch model; sets evaluation mode.

    PyTorch raises an error for missing and unexpected keys.
    """
    import torch

    state = {}
    for key, array in own_arrays(checkpoint).items():
        for old, new in (renamed or {}).items():
            key = key.replace(old, new)
        state[key] = torch.tensor(np.asarray(array, "float32"))
    model.load_state_dict(state, strict=True)
    model.eval()


def quiet_transformers() -> Any:
    """Returns transformers, without its progress bars and its messages that defaults
    of its text towers do not fit."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def output_of(outputs: Any, name: str) -> Tensor:
    """Returns one of a model's outputs."""
    if name == "logits" and not hasattr(outputs, "logits"):
        return outputs.image_embeds  # CLIP's projection
    names = {"pooled": "pooler_output", "tokens": "last_hidden_state"}
    return getattr(outputs, names.get(name, name))


def _timm(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    """Builds a checkpoint's model in timm."""
    import timm
    from timm.layers.create_act import get_act_layer
    from timm.layers.mlp import SwiGLUPacked
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer
    from torch import nn

    a = arguments
    is_eva = a["position_embedding"] == "rope"
    model: Any
    options: Config
    if checkpoint.weight_map.variant == naflex.TIMM:
        raise ReferenceUnavailable("NaFlexVit is not run")
    config = read_config(checkpoint.path)
    if timm.is_model(str(config.get("architecture"))):
        # What the file says is built, not what was inferred from its
        # arrays; but nothing that it names is downloaded or read.
        given = config.get("model_args")
        options = {
            "num_classes": a["classes"] or 0,
            "in_chans": a["channels"],
            "img_size": image_size(a),
            "global_pool": config.get("global_pool"),
            **(given if isinstance(given, dict) else {}),
            **{"pretrained": False, "checkpoint_path": None},
        }
        try:
            model = timm.create_model(config["architecture"], **known(options))
        except TypeError as error:
            raise ReferenceUnavailable(
                f"timm {timm.__version__} does not take the 'model_args' "
                f"of its config.json: {error}"
            ) from error
    elif is_eva:
        model = _eva(a)
    else:
        swiglu = a["activation"] == "swiglu"
        options = {"mlp_layer": SwiGLUPacked} if swiglu else {}
        with _refusals():
            given = model_arguments(a)
        build = VisionTransformer
        if a["distillation"]:
            build = VisionTransformerDistilled
        model = build(
            **given,
            norm_layer=functools.partial(nn.LayerNorm, eps=a["norm_epsilon"]),
            act_layer=nn.SiLU if swiglu else get_act_layer(a["activation"]),
            weight_init="skip",
            **options,
        )
    renamed = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}  # DeiT III's
    load_state_dict(model, checkpoint, None if is_eva else renamed)
    run = model.forward_features if output == "tokens" else model
    return f"timm {timm.__version__}", run


def _eva(arguments: Config) -> Any:
    """Builds timm's `Eva` for arguments of `VisionTransformer`."""
    from timm.models.eva import Eva
    from torch.nn import LayerNorm

    a = arguments
    with _refusals():
        refuse_others("timm", a, dinov3.timm_values(a))
    return Eva(
        img_size=image_size(a),
        patch_size=a["patch_size"],
        in_chans=a["channels"],
        num_classes=a["classes"] or 0,
        global_pool={"gap": "avg"}.get(a["pooling"], a["pooling"] or ""),
        embed_dim=a["hidden_size"],
        depth=a["num_layers"],
        num_heads=a["num_heads"],
        qkv_bias=a["qkv_bias"],
        qk_norm=a["qk_norm"],
        mlp_ratio=(a["mlp_dim"] + 0.5) / a["hidden_size"],  # is rounded down
        swiglu_mlp=a["activation"] == "swiglu",
        swiglu_align_to=1,
        init_values=a["layer_scale"],
        class_token=a["class_token"],
        num_reg_tokens=a["num_registers"],
        norm_layer=functools.partial(LayerNorm, eps=a["norm_epsilon"]),
        use_abs_pos_emb=False,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_temperature=a["rope_base"],
        rope_rotate_half=True,
        use_post_transformer_norm=a["final_norm"] == "before_pooling",
        use_fc_norm=a["final_norm"] == "after_pooling",
        dynamic_img_size=True,
    )


def _dinov3(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    """Runs timm, which reads these files. Meta's code is not on PyPI."""
    import timm
    import torch
    from timm.models.eva import checkpoint_filter_fn

    model = _eva(arguments)
    state = {
        key: torch.tensor(np.asarray(array, "float32"))
        for key, array in own_arrays(checkpoint).items()
    }
    periods = state["rope_embed.periods"].numpy()
    computed = rotary_periods(arguments["rope_base"], 4 * periods.size)
    if "storage_tokens" not in state or not np.allclose(periods, computed, rtol=1e-6):
        raise ReferenceUnavailable(
            "timm reads these files with registers only, and computes the "
            "periods of rotary positions, of which the file may have others"
        )
    model.load_state_dict(checkpoint_filter_fn(state, model), strict=True)
    run = model.forward_features if output == "tokens" else model
    model.eval()
    return f"timm {timm.__version__}", run


def _transformers(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    import torch

    transformers = quiet_transformers()
    if output == "tokens" and arguments["pre_norm"]:
        raise ReferenceUnavailable("its tokens are those before the last norm")
    code_base, path = FORMATS["huggingface"], pathlib.Path(checkpoint.path)
    with tempfile.TemporaryDirectory() as folder:
        if not path.is_dir():
            path = pathlib.Path(folder)
            variant = code_base.nearest_variant(arguments)
            problems = code_base.refusals(arguments, variant, True)
            if problems:
                raise ReferenceUnavailable("; ".join(problems))
            configs = code_base.folder_configs(
                arguments, variant, "float32", checkpoint
            )
            arrays = {FOLDER_FILES[0]: own_arrays(checkpoint)}
            write_folder(path, arrays, configs)
        config = transformers.AutoConfig.from_pretrained(path)
        name = (config.architectures or [""])[0]
        build = getattr(transformers, siglip_clip.TOWERS.get(name, name), None)
        if build is None or checkpoint.weight_map.variant in naflex.VARIANTS:
            raise ReferenceUnavailable(f"{name or 'its model'} is not run")
        if name in siglip_clip.TOWERS:
            width = getattr(config, "projection_dim", None)
            config = config.vision_config
            if width is not None:  # the tower's own may be another
                config.projection_dim = width
        model = build.from_pretrained(path, config=config, dtype=torch.float32)
        model.eval()

    def run(batch: Tensor) -> Tensor:
        return output_of(model(batch), output)

    return f"transformers {transformers.__version__}", run


def _torchvision(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    import torch
    import torchvision
    from torch import nn
    from torchvision.models import VisionTransformer

    a = arguments
    values = {"channels": (3,), "activation": ("gelu", "gelu_tanh")}
    with _refusals():
        refuse_others("torchvision", a, {**values, **square(a)})
    model = VisionTransformer(
        image_size=image_size(a)[0],
        patch_size=a["patch_size"][0],
        num_layers=a["num_layers"],
        num_heads=a["num_heads"],
        hidden_dim=a["hidden_size"],
        mlp_dim=a["mlp_dim"],
        num_classes=a["classes"] or 1,
        representation_size=a["representation_size"],
        norm_layer=functools.partial(nn.LayerNorm, eps=a["norm_epsilon"]),
    )
    if a["classes"] is None and hasattr(model.heads, "head"):
        del model.heads.head
    for module in model.modules():
        if isinstance(module, nn.GELU) and a["activation"] != "gelu":
            module.approximate = "tanh"
    load_state_dict(model, checkpoint)

    def tokens(batch: Tensor) -> Tensor:
        x = model._process_input(batch)
        class_token = model.class_token.expand(len(x), -1, -1)
        return model.encoder(torch.cat([class_token, x], dim=1))

    run = tokens if output == "tokens" else model
    return f"torchvision {torchvision.__version__}", run


def _keras_hub(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    """Builds a checkpoint's model in keras-hub."""
    if output == "pooled" or not pathlib.Path(checkpoint.path).is_dir():
        raise ReferenceUnavailable(
            "keras-hub reads presets, which are folders, and its backbones "
            "return all tokens"
        )
    import keras
    import torch

    library: Any = importlib.import_module("keras_hub")
    path = str(checkpoint.path)
    if output == "tokens":
        model = library.models.Backbone.from_preset(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the optimizer's state
            model = library.models.ImageClassifier.from_preset(path)
        model.output_dense.activation = keras.activations.linear

    def run(batch: Tensor) -> Tensor:
        images = batch.permute(0, 2, 3, 1).numpy()
        if isinstance(model.input, dict):
            images = {"images": images}
        outputs = model(images, training=False)
        return torch.tensor(keras.ops.convert_to_numpy(outputs))

    return f"keras-hub {library.__version__}", run


def _open_clip(checkpoint: Checkpoint, arguments: Config, output: str) -> Reference:
    if "trunk" in checkpoint.weight_map.variant or output == "tokens":
        raise ReferenceUnavailable("open_clip runs its own image towers only")
    import torch

    library: Any = importlib.import_module("open_clip")
    module = library.transformer

    a = arguments
    tanh = "tanh" if a["activation"] == "gelu_tanh" else "none"
    act_layer = functools.partial(torch.nn.GELU, approximate=tanh)
    if a["activation"] == "quick_gelu":
        act_layer = module.QuickGELU
    model = module.VisionTransformer(
        image_size=image_size(a),
        patch_size=a["patch_size"],
        width=a["hidden_size"],
        layers=a["num_layers"],
        heads=a["num_heads"],
        mlp_ratio=a["mlp_dim"] / a["hidden_size"],
        ls_init_value=a["layer_scale"],
        output_dim=a["classes"] or 1,
        no_ln_pre=not a["pre_norm"],
        pool_type={"token": "tok", "gap": "avg"}[a["pooling"]],
        final_ln_after_pool=a["final_norm"] == "after_pooling",
        act_layer=act_layer,
        norm_layer=functools.partial(module.LayerNorm, eps=a["norm_epsilon"]),
        qk_norm=a["qk_norm"],
    )
    if a["classes"] is None:
        model.proj = None
    code_base = FORMATS["open_clip"]
    arrays = code_base.to_file(code_base.normalize(own_arrays(checkpoint)))
    model.load_state_dict(
        {
            key.removeprefix(open_clip.PREFIX): torch.tensor(
                np.asarray(array, "float32")
            )
            for key, array in arrays.items()
        }
    )
    return f"open_clip {library.__version__}", model.eval()


def explain_import_error(error: BaseException) -> str:
    """Returns a message about a failed import of a library, with its remedy."""
    while error.__cause__ is not None:  # transformers wraps the error
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        package = {"open_clip": "open_clip_torch"}.get(name, name)
        return f"{name} is not installed: pip install {package}"
    if "torchvision::" in str(error):  # a RuntimeError or an ImportError
        return f"torchvision was built for another PyTorch ({error}): reinstall both"
    if not isinstance(error, ImportError):
        raise error
    return f"importing it failed ({type(error).__name__}: {error})"


# The functions of a checkpoint, the arguments of its model and "logits", "pooled" or
# "tokens", which return what a library computes. Libraries are imported inside.
REFERENCES = {
    "timm": _timm,
    "mae": _timm,
    "dinov3": _dinov3,
    "huggingface": _transformers,
    "torchvision": _torchvision,
    "keras_hub": _keras_hub,
    "open_clip": _open_clip,
}
_NOT_ON_PYPI = ("vit_jax", "big_vision", "dinov2", "dino", "mocov3")


def build_reference(
    checkpoint: Checkpoint, arguments: Config, output: str
) -> Reference:
    """Returns the name and version of the original library of a checkpoint, and a
    function of a PyTorch batch `(batch, channels, height, width)` that returns the
    "logits", "pooled" or "tokens" of its model."""
    build = REFERENCES.get(checkpoint.format)
    if build is None and checkpoint.format in _NOT_ON_PYPI:
        raise ReferenceUnavailable("the original code is not on PyPI")
    if build is None:
        raise ReferenceUnavailable("no library of its own")
    return build(checkpoint, arguments, output)
