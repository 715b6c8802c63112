from keras_vit.models._bit import BiT as BiT
from keras_vit.models._bit_variants import BIT_VARIANTS as BIT_VARIANTS
from keras_vit.models._bit_variants import BiT_R50x1 as BiT_R50x1
from keras_vit.models._bit_variants import BiT_R50x3 as BiT_R50x3
from keras_vit.models._bit_variants import BiT_R101x1 as BiT_R101x1
from keras_vit.models._bit_variants import BiT_R101x3 as BiT_R101x3
from keras_vit.models._bit_variants import BiT_R152x2 as BiT_R152x2
from keras_vit.models._bit_variants import BiT_R152x4 as BiT_R152x4
from keras_vit.models._hybrid import (
    HybridVisionTransformer as HybridVisionTransformer,
)
from keras_vit.models._load import load_into as load_into
from keras_vit.models._load import variables_of as variables_of
from keras_vit.models._model import Model as Model
from keras_vit.models._variants import VARIANTS as VARIANTS
from keras_vit.models._variants import R26ViTB32 as R26ViTB32
from keras_vit.models._variants import R26ViTS32 as R26ViTS32
from keras_vit.models._variants import R50ViTB16 as R50ViTB16
from keras_vit.models._variants import R50ViTL32 as R50ViTL32
from keras_vit.models._variants import R_ViTTi16 as R_ViTTi16
from keras_vit.models._variants import ViTB8 as ViTB8
from keras_vit.models._variants import ViTB14 as ViTB14
from keras_vit.models._variants import ViTB16 as ViTB16
from keras_vit.models._variants import ViTB32 as ViTB32
from keras_vit.models._variants import ViTG14 as ViTG14
from keras_vit.models._variants import ViTg14 as ViTg14
from keras_vit.models._variants import ViTH14 as ViTH14
from keras_vit.models._variants import ViTL14 as ViTL14
from keras_vit.models._variants import ViTL16 as ViTL16
from keras_vit.models._variants import ViTL32 as ViTL32
from keras_vit.models._variants import ViTS14 as ViTS14
from keras_vit.models._variants import ViTS16 as ViTS16
from keras_vit.models._variants import ViTS32 as ViTS32
from keras_vit.models._variants import ViTTi16 as ViTTi16
from keras_vit.models._vit import VisionTransformer as VisionTransformer
from keras_vit.models.features import feature_extractor as feature_extractor
