"""The layout map, which depends only on paths and shapes."""

import re

import keras
import pytest

import keras_vit
from keras_vit import distribution
from tests.markers import on_all
from tests.small import OPTIONS

SIZES = dict(
    input_shape=(16, 16, 3),
    patch_size=8,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    classes=8,
)
MODELS = {
    **OPTIONS,
    "hybrid": dict(resnet_layers=(1, 1), width_factor=0.5, input_shape=(64, 64, 3)),
}
DEVICES = 4


def mesh(shape=(1, DEVICES), names=("batch", "model")):
    count = shape[0] * shape[-1] if len(shape) > 1 else shape[0]
    return keras.distribution.DeviceMesh(
        shape, names, [f"cpu:{i}" for i in range(count)]
    )


def build(name):
    if name == "bit":
        return keras_vit.BiT(resnet_layers=(1, 1), width_factor=0.5)
    make = keras_vit.VisionTransformer
    if "resnet_layers" in MODELS[name]:
        make = keras_vit.HybridVisionTransformer
    return make(**{**SIZES, **MODELS[name]})


@pytest.mark.parametrize("name", on_all([*MODELS, "bit"], ["all options", "hybrid"]))
def test_every_variable_matches_one_pattern(name):
    model = build(name)
    layouts = distribution.layout_map(mesh())
    used = set()
    for variable in model.variables:
        rules = [
            rule
            for rule in distribution.RULES
            if re.fullmatch(rf"(?:.*/)?{rule}", variable.path)
        ]
        assert len(rules) == 1, (variable.path, rules)
        used.update(rules)
        axes = layouts[variable.path].axes
        assert len(axes) == len(variable.shape), variable.path
        # Also in a model of models.
        assert layouts[f"outer/inner/{variable.path}"].axes == axes
    if name == "all options":
        never = {rule for rule in distribution.RULES if rule not in used}
        # These are rules of a ResNet, and of other kinds of positions.
        others = ("conv", "columns", "periods")
        never -= {r for r in never if any(x in r for x in others)}
        assert not never, "rules that no variable has"


def test_heads_hidden_units_and_classes_are_split():
    """Those that the devices divide; other axes are on every device."""
    found = {}
    for heads, classes in ((16, 24), (2, 10)):
        model = keras_vit.VisionTransformer(
            **{**SIZES, "mlp_dim": 96, "num_heads": heads, "classes": classes}
        )
        parallel = distribution.ModelParallel(mesh())
        found[heads] = {}
        for variable in model.variables:
            axes = parallel.get_variable_layout(variable).axes
            split = [
                length
                for axis, length in zip(axes, variable.shape, strict=True)
                if axis is not None
            ]
            if split and not variable.path.startswith("block_0"):
                found[heads][variable.path] = split
    mlp = {
        f"block_1/mlp/{name}": [96]
        for name in ("dense_1/kernel", "dense_1/bias", "dense_2/kernel")
    }
    attention = {
        f"block_1/attention/{name}": [16]
        for name in (
            *("query/kernel", "query/bias", "key/kernel", "key/bias"),
            *("value/kernel", "value/bias", "attention_output/kernel"),
        )
    }
    head = {"head/kernel": [24], "head/bias": [24]}
    assert found == {16: {**attention, **mlp, **head}, 2: mlp}


def test_mesh_without_a_model_axis_raises():
    with pytest.raises(ValueError, match="Invalid axis names.*model"):
        distribution.layout_map(mesh((4,), ("batch",)))
