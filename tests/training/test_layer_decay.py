import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.small import vit


def _steps(optimizer, values, grads):
    """Returns the variables after some steps, one row per variable."""
    variables = []
    for name, value in values.items():
        layer, _, own = name.partition("/")
        with keras.name_scope(layer):
            variables.append(keras.Variable(value.copy(), name=own))
    optimizer.build(variables)
    for step in grads:
        optimizer.apply(
            [ops.convert_to_tensor(step[name]) for name in values], variables
        )
    return np.stack([ops.convert_to_numpy(v) for v in variables])


@pytest.mark.parametrize(
    "make",
    [keras_vit.optimizers.PublishedSGD, keras_vit.optimizers.PublishedAdamW],
)
def test_layer_decay_scales_the_learning_rate_of_each_layer(make):
    """Each layer steps as it would alone with a fraction of the learning rate;
    weight decay is scaled too, as in MAE's code."""
    scales = {
        "patch_embedding/kernel": 0.125,
        "block_0/kernel": 0.25,
        "block_1/kernel": 0.5,
        "encoder_norm/gamma": 1.0,
        "head/kernel": 1.0,
    }
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=3).astype("float32") for n in scales}
    grads = [
        {n: rng.normal(size=3).astype("float32") for n in scales}
        for _ in range(5)
    ]
    given = {"weight_decay": 0.3}
    whole = make(0.1, layer_decay=0.5, **given)
    assert whole.get_config()["layer_decay"] == 0.5
    found = _steps(whole, values, grads)
    expected = [
        _steps(
            make(0.1 * scale, **given),
            {name: values[name]},
            [{name: step[name]} for step in grads],
        )
        for name, scale in scales.items()
    ]
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-5)


def test_layer_decay_multipliers():
    paths = "class_token/tokens root_conv/kernel vit/block_3/mlp/kernel a/b"
    scales = keras_vit.optimizers.layer_decay_multipliers(paths.split(), 0.75)
    assert scales == [0.75**5, 0.75**5, 0.75, 1]
    assert keras_vit.optimizers.layer_decay_multipliers(
        ["block_11/x", "patch_embedding/kernel"], 1
    )
    for paths, decay in ((["block_0/x"], 0), (["stage_1/x"], 0.5)):
        with pytest.raises(ValueError, match="layer_decay"):
            keras_vit.optimizers.layer_decay_multipliers(paths, decay)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position_placement": "every_layer"},
        {"position_placement": "every_layer_shared"},
        {"position_embedding": "relative", "class_token": False},
        {"pooling": "map", "representation_size": 8},
        {"num_registers": 2, "distillation": True, "pre_norm": True},
        {"layer_scale": 0.1, "pooling": "gap", "final_norm": "after_pooling"},
    ],
    ids=str,
)
def test_every_variable_learns_at_the_rate_of_its_depth(options):
    """As timm's and BEiT's `get_layer_id`: what comes before the blocks is at
    the bottom, what follows them at the top."""
    model = vit(num_layers=3, **options)
    variables = {v.path: v for v in model.trainable_variables}
    found = dict(
        zip(
            variables,
            keras_vit.optimizers.layer_decay_multipliers(list(variables), 0.5),
            strict=True,
        )
    )
    blocks, last = 0, None
    for layer in model.layers:
        if isinstance(layer, keras_vit.layers.TransformerBlock):
            blocks, last = blocks + 1, layer.name
        of_block = layer.name.rpartition("_")[2]
        if of_block == "shared":
            depth = 0
        elif layer.name.startswith("position_embedding_"):
            depth = int(of_block) + 1
        elif last == layer.name:
            depth = blocks
        else:
            depth = 4 if blocks == 3 else 0
        for variable in layer.trainable_weights:
            assert found[variable.path] == 0.5 ** (4 - depth), variable.path
