"""Vision Transformers of "An Image is Worth 16x16 Words" (arXiv 2010.11929) in
Keras 3, with converters of their weights."""

from typing import NoReturn as _NoReturn

from keras_vit.utils import requirements as _requirements  # noqa: F401  isort: skip

from keras_vit import config as config
from keras_vit import converters as converters
from keras_vit import costs as costs
from keras_vit import data as data
from keras_vit import detection as detection
from keras_vit import distillation as distillation
from keras_vit import distribution as distribution
from keras_vit import evaluation as evaluation
from keras_vit import hub as hub
from keras_vit import inspection as inspection
from keras_vit import layers as layers
from keras_vit import losses as losses
from keras_vit import metrics as metrics
from keras_vit import optimizers as optimizers
from keras_vit import pretraining as pretraining
from keras_vit import schedules as schedules
from keras_vit import segmentation as segmentation
from keras_vit import text as text
from keras_vit import training as training
from keras_vit._version import __version__ as __version__
from keras_vit.costs import cost as cost
from keras_vit.exporting import export as export
from keras_vit.load_save import load as load
from keras_vit.load_save import save as save
from keras_vit.models import BiT as BiT
from keras_vit.models import BiT_R50x1 as BiT_R50x1
from keras_vit.models import BiT_R50x3 as BiT_R50x3
from keras_vit.models import BiT_R101x1 as BiT_R101x1
from keras_vit.models import BiT_R101x3 as BiT_R101x3
from keras_vit.models import BiT_R152x2 as BiT_R152x2
from keras_vit.models import BiT_R152x4 as BiT_R152x4
from keras_vit.models import HybridVisionTransformer as HybridVisionTransformer
from keras_vit.models import R26ViTB32 as R26ViTB32
from keras_vit.models import R26ViTS32 as R26ViTS32
from keras_vit.models import R50ViTB16 as R50ViTB16
from keras_vit.models import R50ViTL32 as R50ViTL32
from keras_vit.models import R_ViTTi16 as R_ViTTi16
from keras_vit.models import VisionTransformer as VisionTransformer
from keras_vit.models import ViTB8 as ViTB8
from keras_vit.models import ViTB14 as ViTB14
from keras_vit.models import ViTB16 as ViTB16
from keras_vit.models import ViTB32 as ViTB32
from keras_vit.models import ViTG14 as ViTG14
from keras_vit.models import ViTg14 as ViTg14
from keras_vit.models import ViTH14 as ViTH14
from keras_vit.models import ViTL14 as ViTL14
from keras_vit.models import ViTL16 as ViTL16
from keras_vit.models import ViTL32 as ViTL32
from keras_vit.models import ViTS14 as ViTS14
from keras_vit.models import ViTS16 as ViTS16
from keras_vit.models import ViTS32 as ViTS32
from keras_vit.models import ViTTi16 as ViTTi16
from keras_vit.models import config_of as config_of
from keras_vit.models import dense_features as dense_features
from keras_vit.models import feature_extractor as feature_extractor
from keras_vit.models import list_models as list_models
from keras_vit.models import mixed_sizes as mixed_sizes
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import preprocess_input as preprocess_input
from keras_vit.text import DualEncoder as DualEncoder
from keras_vit.text import zero_shot as zero_shot
from keras_vit.weights import list_weights as list_weights

# What people of keras-hub, keras.applications, timm and transformers look for.
_ELSEWHERE = {
    "applications": "ViTB16",
    "automodel": "load",
    "createmodel": "VisionTransformer",
    "frompreset": "load",
    "frompretrained": "load",
    "listpretrained": "list_weights",
    "loadmodel": "load",
    "savemodel": "save",
    "vitbackbone": "VisionTransformer",
    "vitforimageclassification": "VisionTransformer",
    "vitimageclassifier": "VisionTransformer",
}
_SIZES = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}


def __getattr__(name: str) -> _NoReturn:
    import difflib

    names = {n.lower(): n for n in globals() if not n.startswith("_")}
    key = "".join(filter(str.isalnum, name.lower()))
    if key.startswith("vit"):  # vit_base_patch16_224, ViTBase16
        for word, letter in {**_SIZES, "patch": ""}.items():
            key = key.replace(word, letter)
    close = [] if name[0] == "_" else difflib.get_close_matches(key, names, 1)
    found = _ELSEWHERE.get(key) or (names[close[0]] if close else "")
    hint = f" Did you mean {found!r}?" if found else ""
    raise AttributeError(f"keras_vit has no attribute {name!r}.{hint}")
