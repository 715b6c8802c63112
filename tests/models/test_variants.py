"""The table of variants against the numbers of the original code."""

import inspect

import keras
import pytest

import keras_vit
from keras_vit.models import VARIANTS

# 1000 classes at 224 pixels: vit_jax/models_test.py; g and G are those of
# "Scaling Vision Transformers", Table 2, in millions.
PARAMETERS = {
    "ViTTi16": 5_717_416,
    "ViTS16": 22_050_664,
    "ViTS32": 22_878_952,
    "ViTB8": 86_576_872,
    "ViTB16": 86_567_656,
    "ViTB32": 88_224_232,
    "ViTL16": 304_326_632,
    "ViTL32": 306_535_400,
    "ViTH14": 632_045_800,
}


def counted(variant, **arguments):
    """Parameters of a variant, without the memory for them: as many layers
    as it takes to know what one block adds."""
    build = getattr(keras_vit, variant)
    one = build(num_layers=1, **arguments).count_params()
    two = build(num_layers=2, **arguments).count_params()
    return one + (VARIANTS[variant].num_layers - 1) * (two - one)


@pytest.mark.parametrize("variant", PARAMETERS)
def test_parameter_counts(variant):
    assert counted(variant) == PARAMETERS[variant]


@pytest.mark.parametrize(
    "variant,millions", [("ViTg14", 1011), ("ViTG14", 1843)]
)
def test_parameter_counts_of_scaling(variant, millions):
    assert round(counted(variant, include_top=False) / 1e6) == millions


def test_counting_by_blocks_is_counting():
    assert keras_vit.ViTTi16().count_params() == PARAMETERS["ViTTi16"]


def test_huge_builds():
    """All 32 layers; half precision keeps it within a small machine."""
    keras.config.set_dtype_policy("bfloat16")
    model = keras_vit.ViTH14()
    assert model.count_params() == PARAMETERS["ViTH14"]
    assert model.name == "ViTH14"


def test_table_and_public_names_agree():
    public = {name for name in dir(keras_vit) if name.startswith("ViT")}
    assert public == set(VARIANTS)
    for name in public:
        model = getattr(keras_vit, name)
        assert model.__name__ == name
        assert "Args:" in model.__doc__


def test_signature_is_that_of_keras_applications():
    names = list(inspect.signature(keras_vit.ViTB16).parameters)
    assert names == [
        "include_top",
        "weights",
        "input_tensor",
        "input_shape",
        "pooling",
        "classes",
        "classifier_activation",
        "name",
        "architecture",
    ]


def test_any_size_can_be_overridden():
    model = keras_vit.ViTTi16(
        num_layers=1, patch_size=8, input_shape=(16, 16, 1), classes=3
    )
    assert model.output_shape == (None, 3)
    with pytest.raises(TypeError, match="depth"):
        keras_vit.ViTTi16(depth=3)
