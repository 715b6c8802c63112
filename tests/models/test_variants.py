"""The table of variants against the numbers of the original code."""

import keras
import pytest

import keras_vit
from keras_vit.config import BIT_VARIANTS, VARIANTS

pytestmark = pytest.mark.backends("torch")

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
    "R_ViTTi16": 6_337_704,
    "R26ViTS32": 36_431_912,
    "R26ViTB32": 101_383_976,
    "R50ViTB16": 98_659_112,
    "R50ViTL32": 328_994_856,
}
# timm 1.0.31's models of these names, resnetv2_50x1_bit and so on.
BIT_PARAMETERS = {
    "BiT_R50x1": 25_549_352,
    "BiT_R50x3": 217_319_080,
    "BiT_R101x1": 44_541_480,
    "BiT_R101x3": 387_934_888,
    "BiT_R152x2": 236_335_208,
    "BiT_R152x4": 936_533_224,
}


def counted(variant, **arguments):
    """Parameters of a variant, without the memory for them."""
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, variant)(**arguments)
    keras.utils.clear_session()  # it would initialize them later
    return model.count_params()


@pytest.mark.parametrize("variant", [*PARAMETERS, *BIT_PARAMETERS])
def test_parameter_counts(variant):
    expected = {**PARAMETERS, **BIT_PARAMETERS}[variant]
    assert counted(variant) == expected


@pytest.mark.parametrize("variant,millions", [("ViTg14", 1011), ("ViTG14", 1843)])
def test_parameter_counts_of_scaling(variant, millions):
    assert round(counted(variant, include_top=False) / 1e6) == millions


def test_table_and_public_names_agree():
    starts = ("ViT", "R_", "R26", "R50", "BiT_")
    public = {name for name in dir(keras_vit) if name.startswith(starts)}
    assert public == {*VARIANTS, *BIT_VARIANTS}
    for name in public:
        model = getattr(keras_vit, name)
        assert model.__name__ == name
        assert "Args:" in model.__doc__
