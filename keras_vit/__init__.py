"""Vision Transformers from "An Image is Worth 16x16 Words" (arXiv 2010.11929) in Keras
3, with converters for their weights."""

from typing import NoReturn as _NoReturn

from keras_vit.utils import requirements as _requirements  # noqa: F401  isort: skip

from keras_vit import (
    config,
    converters,
    costs,
    data,
    detection,
    distillation,
    distribution,
    evaluation,
    hub,
    inspection,
    layers,
    losses,
    metrics,
    optimizers,
    pretraining,
    schedules,
    segmentation,
    text,
    training,
)
from keras_vit._version import __version__ as __version__
from keras_vit.costs import cost
from keras_vit.exporting import export
from keras_vit.load_save import load, save
from keras_vit.models import (
    BiT,
    BiT_R50x1,
    BiT_R50x3,
    BiT_R101x1,
    BiT_R101x3,
    BiT_R152x2,
    BiT_R152x4,
    HybridVisionTransformer,
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTL32,
    R_ViTTi16,
    VisionTransformer,
    ViTB8,
    ViTB14,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL14,
    ViTL16,
    ViTL32,
    ViTS14,
    ViTS16,
    ViTS32,
    ViTTi16,
    config_of,
    dense_features,
    feature_extractor,
    list_models,
    mixed_sizes,
)
from keras_vit.preprocessing import decode_predictions, preprocess_input
from keras_vit.text import DualEncoder, zero_shot
from keras_vit.weights import list_weights

__all__ = [
    "BiT", "BiT_R101x1", "BiT_R101x3", "BiT_R152x2", "BiT_R152x4", "BiT_R50x1",
    "BiT_R50x3", "config", "config_of", "converters", "cost", "costs", "data",
    "decode_predictions", "dense_features", "detection", "distillation",
    "distribution", "DualEncoder", "evaluation", "export", "feature_extractor", "hub",
    "HybridVisionTransformer", "inspection", "layers", "list_models", "list_weights",
    "load", "losses", "metrics", "mixed_sizes", "optimizers", "preprocess_input",
    "pretraining", "R26ViTB32", "R26ViTS32", "R50ViTB16", "R50ViTL32", "R_ViTTi16",
    "save", "schedules", "segmentation", "text", "training", "VisionTransformer",
    "ViTB14", "ViTB16", "ViTB32", "ViTB8", "ViTG14", "ViTg14", "ViTH14", "ViTL14",
    "ViTL16", "ViTL32", "ViTS14", "ViTS16", "ViTS32", "ViTTi16", "zero_shot",
]  # fmt: skip

# What people of keras-hub, keras.applications, timm and transformers look for.
_ELSEWHERE = {
    "applications": "ViTB16",
    "autoimageprocessor": "preprocess_input",
    "automodel": "load",
    "createmodel": 'load("hf://timm/NAME")',
    "createtransform": "preprocess_input",
    "dinov2": 'ViTB14(weights="dinov2")',
    "dinov2backbone": 'ViTB14(weights="dinov2")',
    "dinov2model": 'ViTB14(weights="dinov2")',
    "frompreset": "load",
    "frompretrained": "load",
    "listpretrained": "list_weights",
    "loadmodel": "load",
    "loadweights": "load",
    "resolvedataconfig": "preprocess_input",
    "resolvemodeldataconfig": "preprocess_input",
    "savemodel": "save",
    "saveweights": "save",
    "vitbackbone": "VisionTransformer",
    "vitforimageclassification": "VisionTransformer",
    "vitimageclassifier": "VisionTransformer",
}


def __getattr__(name: str) -> _NoReturn:
    from keras_vit.utils.text import nearest

    key = "".join(filter(str.isalnum, name.lower()))
    close = None if name[0] == "_" else nearest(name, __all__)
    modules = [x for x in (*__all__, "models") if hasattr(globals()[x], "__all__")]
    inside = [f"{x}.{name}" for x in modules if name in globals()[x].__all__]
    found = next(filter(None, [_ELSEWHERE.get(key), *inside, close]), "")
    hint = f" Did you mean {found!r}?" if found else ""
    raise AttributeError(f"keras_vit has no attribute {name!r}.{hint}")
