"""The layouts by name.

A row of their tables is (our layer, their layer, kind). `*` stands for an
array's name inside the layer, `{i}` for a block's number (`{s}`, `{u}` a
ResNet's stage and unit; `{s-1}` where theirs begin at 0, `{u:02}` where they
have two digits), and a tuple on one side for arrays that are one array on the
other. Rows that match nothing are parts that a model does not have.

Each layout has one or more spellings; the first that has a place for all
weights is the one that is written.
"""

from keras_vit.checkpoints._flax_formats import BIG_VISION
from keras_vit.checkpoints._flax_formats import VIT_JAX
from keras_vit.checkpoints._huggingface_formats import HUGGINGFACE
from keras_vit.checkpoints._resnet_formats import BIT
from keras_vit.checkpoints._torch_formats import DINOV2
from keras_vit.checkpoints._torch_formats import MAE
from keras_vit.checkpoints._torch_formats import TIMM
from keras_vit.checkpoints._torch_formats import TORCHVISION

FORMATS = {
    "vit_jax": VIT_JAX,
    "big_vision": BIG_VISION,
    "timm": TIMM,
    "huggingface": HUGGINGFACE,
    "torchvision": TORCHVISION,
    "dinov2": DINOV2,
    "mae": MAE,
    "bit": BIT,
}
