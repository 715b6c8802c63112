"""torchvision (layout "torchvision"): https://github.com/pytorch/vision"""

import functools
import re

from keras_vit.utils.types import Array, Config, Tensor
from keras_vit.weights.formats.format import (
    Checkpoint,
    Format,
    Reference,
    Values,
    block_layers,
    image_size,
    load_state_dict,
    refuse_others,
    square,
)
from keras_vit.weights.weight_map import TORCH, WeightMap, rename_keys

_LAYERS = (
    ("patch_embedding/*", "conv_proj.*", "conv"),
    ("class_token/tokens", "class_token", "array"),
    ("position_embedding/embedding", "encoder.pos_embedding", "array"),
    *block_layers(
        "encoder.layers.encoder_layer_{i}.",
        "self_attention.in_proj_*",
        "self_attention.out_proj.*",
        ("mlp.0.*", "mlp.3.*"),
        ("ln_1.*", "ln_2.*"),
    ),
    ("encoder_norm/*", "encoder.ln.*", "norm"),
    ("pre_logits/*", "heads.pre_logits.*", "linear"),
    ("head/*", "heads.head.*", "linear"),
)


class Torchvision(Format):
    """pytorch/vision."""

    name = "torchvision"
    maps = (WeightMap("", TORCH, _LAYERS),)
    arguments = {
        "activation": "gelu",
        "norm_epsilon": 1e-6,
        "resampling": "bicubic_align_corners",
    }
    position_prefixes = {"": ("all",)}
    poolings = ("token", "token_gap")
    preprocess_mode = "torch"

    def normalize(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Renames the MLP layers of files written before torchvision 0.14."""
        names = {"linear_1": "0", "linear_2": "3"}
        return rename_keys(
            arrays,
            lambda key: re.sub(
                r"(?<=\.mlp\.)linear_[12](?=\.)", lambda m: names[m[0]], key
            ),
        )

    def values(self, arguments: Config, variant: str, folder: bool) -> Values:
        return {"class_token": (True,)}

    def reference(
        self, checkpoint: Checkpoint, arguments: Config, output: str
    ) -> Reference:
        import torch
        import torchvision
        from torch import nn
        from torchvision.models import VisionTransformer

        a = arguments
        values = {"channels": (3,), "activation": ("gelu", "gelu_tanh")}
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
