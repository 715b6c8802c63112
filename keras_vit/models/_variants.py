from dataclasses import asdict
from dataclasses import dataclass

from keras_vit.models._hybrid import HybridVisionTransformer
from keras_vit.models._named_model import named_model
from keras_vit.models._vit import VisionTransformer


@dataclass(frozen=True)
class Variant:
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    patch_size: int
    resnet_layers: tuple | None = None  # of a hybrid

    def sizes(self):
        """Returns the arguments of its model's function."""
        return {k: v for k, v in asdict(self).items() if v is not None}


# Ti, S: https://arxiv.org/abs/2106.10270, Table 2.
# B, L, H: https://arxiv.org/abs/2010.11929, Table 1.
# g, G: https://arxiv.org/abs/2106.04560, Table 2 (which pools with "map").
# S, B, L with patches of 14: https://arxiv.org/abs/2304.07193 (DINOv2).
#                   hidden layers heads   mlp patch
VARIANTS = {
    "ViTTi16": Variant(192, 12, 3, 768, 16),
    "ViTS16": Variant(384, 12, 6, 1536, 16),
    "ViTS32": Variant(384, 12, 6, 1536, 32),
    "ViTB8": Variant(768, 12, 12, 3072, 8),
    "ViTB16": Variant(768, 12, 12, 3072, 16),
    "ViTB32": Variant(768, 12, 12, 3072, 32),
    "ViTL16": Variant(1024, 24, 16, 4096, 16),
    "ViTL32": Variant(1024, 24, 16, 4096, 32),
    "ViTH14": Variant(1280, 32, 16, 5120, 14),
    "ViTS14": Variant(384, 12, 6, 1536, 14),
    "ViTB14": Variant(768, 12, 12, 3072, 14),
    "ViTL14": Variant(1024, 24, 16, 4096, 14),
    "ViTg14": Variant(1408, 40, 16, 6144, 14),
    "ViTG14": Variant(1664, 48, 16, 8192, 14),
    # google-research/vision_transformer, configs/models.py. The patch is one
    # of the feature map; the root alone makes 1 position of 4 x 4 pixels.
    "R_ViTTi16": Variant(192, 12, 3, 768, 8, ()),
    "R26ViTS32": Variant(384, 12, 6, 1536, 1, (2, 2, 2, 2)),
    "R26ViTB32": Variant(768, 12, 12, 3072, 1, (2, 2, 2, 2)),
    "R50ViTB16": Variant(768, 12, 12, 3072, 1, (3, 4, 9)),
    "R50ViTL32": Variant(1024, 24, 16, 4096, 1, (3, 4, 6, 3)),
}


def _variant(variant):
    sizes = VARIANTS[variant].sizes()
    hybrid = "resnet_layers" in sizes
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return named_model(
        variant,
        HybridVisionTransformer if hybrid else VisionTransformer,
        sizes,
        f"""a Vision Transformer for images.

    {listed}.
    From "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929)
    and, for Ti, S, g and G, from what built on it.""",
    )


ViTTi16 = _variant("ViTTi16")
ViTS16 = _variant("ViTS16")
ViTS32 = _variant("ViTS32")
ViTB8 = _variant("ViTB8")
ViTB16 = _variant("ViTB16")
ViTB32 = _variant("ViTB32")
ViTL16 = _variant("ViTL16")
ViTL32 = _variant("ViTL32")
ViTH14 = _variant("ViTH14")
ViTS14 = _variant("ViTS14")
ViTB14 = _variant("ViTB14")
ViTL14 = _variant("ViTL14")
ViTg14 = _variant("ViTg14")
ViTG14 = _variant("ViTG14")
R_ViTTi16 = _variant("R_ViTTi16")
R26ViTS32 = _variant("R26ViTS32")
R26ViTB32 = _variant("R26ViTB32")
R50ViTB16 = _variant("R50ViTB16")
R50ViTL32 = _variant("R50ViTL32")
