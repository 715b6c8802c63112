"""Models that a format cannot hold are refused before a file is written."""

import pytest

from keras_vit.converters import save
from keras_vit.weights.formats import FORMATS
from keras_vit.weights.infer import DENSE
from tests.small import last_differs, tiny

pytestmark = pytest.mark.backends("torch")

NO_HEAD = {"include_top": False, "classes": None}
DINOV2 = {"layer_scale": 0.3, "position_prefix": "class", "activation": "gelu"}
HUGGINGFACE = [
    ({"input_shape": (12, 12, 1)}, "channels=1"),
    ({"input_shape": (12, 16, 3)}, r"grid_size=\(3, 4\)"),
    ({"patch_size": (4, 3)}, r"patch_size=\(4, 3\)"),
    ({"num_registers": 2, "position_prefix": "class"}, "num_registers=2"),
    (
        {**NO_HEAD, "num_registers": 1, "position_prefix": "class"},
        "position_prefix='class'",
    ),
    ({"representation_size": 5}, "representation_size=5"),
    ({"layer_scale": 0.1, "pooling": "gap", "class_token": True}, "pooling='gap'"),
    ({"activation": "swiglu"}, "activation='swiglu'"),
    ({"pooling": "map"}, "pooling='map'"),
    ({"pre_norm": True}, "patch_bias=True"),
    ({"qk_norm": True}, "no place for"),
    ({"activation": "elu"}, "activation='elu'"),
    (
        {**DINOV2, **NO_HEAD, "activation": "swiglu", "mlp_dim": 20},
        "mlp_dim=20",
    ),
    ({**DINOV2, **NO_HEAD, "mlp_dim": 20}, "mlp_dim=20"),
    (
        {"pre_norm": True, "patch_bias": False, "pooling": "gap"},
        "class_token=False",
    ),
    ({"pooling": "map"}, r"pooling='map' \(it has 'gap'\)"),
    ({"pooling": "gap", "patch_bias": False}, "patch_bias=False"),
    (
        {"pooling": "gap", "final_norm": "after_pooling"},
        "final_norm='after_pooling'",
    ),
    ({"pooling": "gap", "class_token": True}, "pooling='gap'"),
]
KERAS_HUB = [
    ({"activation": "gelu_tanh"}, "activation='gelu_tanh'"),
    ({"class_token": True, "pooling": "gap"}, "pooling='gap'"),
    ({"qkv_bias": False}, "qkv_bias=False"),
    ({"num_registers": 2}, "num_registers=2"),
    ({"layer_scale": 1.0}, "classes=3"),
    ({"pre_norm": True}, "pre_norm/gamma"),
    ({"position_embedding": "sincos2d"}, "sincos2d"),
]
ROPE = {
    **NO_HEAD,
    "position_embedding": "rope",
    "activation": "gelu",
    "layer_scale": 1.0,
}
WITHOUT = {**NO_HEAD, "position_embedding": "none"}
DINOV3 = ("dinov3", "timm:dinov3", "huggingface:dinov3")
GATED = ("dinov3:gated", "timm:dinov3-gated")
PLAIN = ("vit_jax", "big_vision", "torchvision", "dinov2", "mae")
EVERY = tuple(FORMATS.keys() - {"bit", *DENSE})  # which are of other models
POSITIONS = [
    ("learned_2d", "stem"),
    ("learned_2d", "every_layer"),
    ("learned_2d", "every_layer_shared"),
    ("relative", "every_layer"),
    ("relative", "every_layer_shared"),
    ("learned", "every_layer"),
    ("sincos2d", "every_layer"),
]
# Formats, arguments of the model and a part of the error.
CASES = [
    *((("huggingface",), *case) for case in HUGGINGFACE),
    *(
        (("keras_hub",), {"activation": "gelu", **options}, words)
        for options, words in KERAS_HUB
    ),
    (EVERY, {"block": last_differs, "num_layers": 3}, "block='block_2 differs"),
    (PLAIN, ROPE, "position_embedding='rope'"),
    (("timm",), ROPE, "key_bias=True"),
    (GATED, ROPE, "activation='gelu'"),
    (DINOV3, WITHOUT, "it has 'rope'"),
    (DINOV3, NO_HEAD, "it has 'rope'"),
    (("timm",), {**NO_HEAD, "key_bias": False}, "key_bias=False"),
    (
        ("vit_jax", "timm", "mae", "huggingface", "torchvision"),
        {"pooling": "first_patch", "class_token": True},
        "pooling='first_patch'",
    ),
    *(
        (
            EVERY,
            {"position_embedding": kind, "position_placement": placement},
            f"cannot hold.*({kind}|{placement})",
        )
        for kind, placement in POSITIONS
    ),
]


@pytest.mark.parametrize("formats, options, words", CASES)
def test_model_is_refused(formats, options, words, tmp_path):
    sizes = {"input_shape": (12, 12, 3), "classes": 3}
    model = tiny(**{**sizes, **options})
    for format in formats:
        is_folder = format in ("huggingface", "keras_hub")
        path = tmp_path / ("folder" if is_folder else "a.npz")
        with pytest.raises(ValueError, match=words):
            save(model, path, format)
    assert not list(tmp_path.iterdir())
