"""Relevance maps against gradients of PyTorch's autograd in timm's models."""

import functools
import importlib

import keras
import numpy as np
import pytest
import torch

import keras_vit
from keras_vit import inspection
from tests import originals
from tests.markers import on_all
from tests.small import tiny

# The package has a function of this name, too.
module = importlib.import_module("keras_vit.inspection.relevance")


def timm_model(tmp_path, **options):
    """Returns a model of timm with random weights, and that of its file."""
    case = originals.Case("VisionTransformer", options, {}, "timm")
    original = originals.build(case)
    for weight in original.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    path, given = originals.save(case, original, tmp_path)
    model = keras_vit.converters.load(path, input_shape=(None, None, 3), **given)
    return original, model


def attention_and_outputs(original, pixels):
    """Returns the attention probabilities of each block, the tokens after it
    and the function from tokens to logits."""
    x = original.norm_pre(original._pos_embed(original.patch_embed(pixels)))
    maps, tokens = [], []
    for block in original.blocks:
        attention, y = block.attn, block.norm1(x)
        count, length, width = y.shape
        qkv = attention.qkv(y).reshape(count, length, 3, 2, width // 2)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        query = attention.q_norm(query) * attention.scale
        scores = query @ attention.k_norm(key).transpose(-2, -1)
        maps.append(scores.softmax(-1))
        y = (maps[-1] @ value).transpose(1, 2).reshape(count, length, width)
        x = x + block.ls1(attention.proj(attention.norm(y)))
        x = x + block.ls2(block.mlp(block.norm2(x)))
        tokens.append(x)
    return maps, tokens, lambda x: original.forward_head(original.norm(x))


@pytest.mark.parametrize(
    "size,options",
    on_all(
        [
            ((24, 40), {}),
            ((32, 32), {"global_pool": "avg"}),
            ((24, 40), {"reg_tokens": 2, "init_values": 0.5, "qk_norm": True}),
        ],
        [((32, 32), {"global_pool": "avg"})],
    ),
    ids=str,
)
def test_gradients_of_attention_equal_those_of_autograd(tmp_path, options, size):
    original, model = timm_model(tmp_path, **options)
    grid, prefix = (size[0] // 8, size[1] // 8), original.num_prefix_tokens
    images = np.random.default_rng(0).normal(size=(2, *size, 3))
    images, classes = images.astype("float32"), [1, 3]
    legrad, generic, rollout = [], [], []
    for image, label in zip(images, classes, strict=True):
        pixels = torch.tensor(image.transpose(2, 0, 1)[None])
        maps, tokens, head = attention_and_outputs(original, pixels)
        found = [
            torch.autograd.grad(head(x)[0, label], a, retain_graph=True)[0]
            for a, x in zip(maps, tokens, strict=True)
        ]
        found = torch.stack(found).relu().mean((0, 1, 2, 3))
        legrad.append(found[prefix:].reshape(grid).numpy())
        changes = torch.autograd.grad(head(tokens[-1])[0, label], maps)
        identity = torch.eye(maps[0].shape[-1])
        added = rolled = identity
        for a, change in zip(maps, changes, strict=True):
            product = (change * a).clamp(min=0)[0].mean(0)
            added = added + product @ added
            step = product + identity
            rolled = step / step.sum(-1, keepdim=True) @ rolled
        for found, one in ((generic, added), (rollout, rolled)):
            average = "global_pool" in options
            rows = one[prefix:].mean(0) if average else one[0]
            found.append(rows[prefix:].reshape(grid).detach().numpy())
    for method, expected in (
        ("legrad", np.stack(legrad)),
        ("attention_gradients", np.stack(generic)),
        ("gradient_rollout", np.stack(rollout)),
    ):
        found = inspection.relevance(model, images, classes, method)
        assert found.shape == (2, *grid)
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < 1e-5, method


def small_model(**options):
    if not options.get("include_top", True):
        options["classes"] = None
    model = tiny(**options)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        mean = 1 if weight.path.endswith("gamma") else 0
        weight.assign(rng.normal(mean, 0.2, weight.shape))
    return model, rng.normal(size=(2, 8, 12, 3)).astype("float32")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"pooling": "map"},
        {"distillation": True, "num_registers": 1},
        {"position_embedding": "rope"},
        {"position_placement": "every_layer"},
    ],
    ids=str,
)
def test_maps_of_other_architectures_differ_by_patch(arguments):
    model, images = small_model(**arguments)
    for method in ("legrad", "attention_gradients", "gradient_rollout"):
        found = inspection.relevance(model, images, 2, method)
        assert found.shape == (2, 2, 3) and found.std() > 0


@pytest.mark.backends("torch")
def test_scores_are_logits_of_the_largest_class_or_a_direction():
    relevance = functools.partial(inspection.relevance, method="legrad")
    model, images = small_model()
    expected = relevance(model, images)
    logits = keras.ops.convert_to_numpy(model(images))
    found = relevance(model, images, logits.argmax(-1))
    np.testing.assert_array_equal(found, expected)
    direction = np.eye(5, dtype="float32")[logits.argmax(-1)]
    found = relevance(model, images, direction)
    np.testing.assert_array_equal(found, expected)
    last = relevance(model, images, layers=-1)
    first = relevance(model, images, layers=[0])
    np.testing.assert_allclose((first + last) / 2, expected, rtol=1e-5)
    softmax, _ = small_model(classifier_activation="softmax")
    found = relevance(softmax, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "arguments",
    on_all(
        [{"classifier_activation": "softmax"}, {"distillation": True}],
        [{"classifier_activation": "softmax"}],
    ),
    ids=str,
)
def test_outputs_are_those_of_the_model(arguments):
    model, images = small_model(**arguments)
    expected = model.predict_on_batch(images)
    for one in (model, keras_vit.models.inference_model(model)):
        maps, outputs = inspection.relevance(one, images, 2, return_outputs=True)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(maps, inspection.relevance(one, images, 2))


@pytest.mark.backends("torch")
def test_a_layer_between_blocks_is_refused():
    model, images = small_model()
    x = model.get_layer("block_0").output
    x = keras.layers.Dense(24, name="adapter")(x)
    x = keras_vit.layers.TransformerBlock(3, 48)(x)
    changed = keras.Model(model.input, keras.layers.Dense(3)(x[:, 0]))
    found = inspection.relevance(changed, images, method="legrad")
    assert found.shape == (2, 2, 3)
    with pytest.raises(ValueError, match="'adapter'"):
        inspection.relevance(changed, images, 0, "attention_gradients")


@pytest.mark.backends("jax", "tensorflow")
def test_blocks_of_equal_settings_alone_share_a_program(monkeypatch):
    model, images = small_model()
    x, rng = model.get_layer("block_1").output, np.random.default_rng(2)
    for activation in ("gelu_tanh", "relu"):
        block = keras_vit.layers.TransformerBlock(3, 48, activation=activation)
        x = block(x)
        for weight in block.weights:
            weight.assign(weight + rng.normal(0, 0.2, weight.shape))
    model = keras.Model(model.input, keras.layers.Dense(3)(x[:, 0]))
    found, programs = inspection.relevance(model, images, 1), []
    compiled = module.compiled

    def counted(own, function):
        programs.append(function)
        return compiled(own, function)

    monkeypatch.setattr(module, "compiled", counted)
    np.testing.assert_array_equal(inspection.relevance(model, images, 1), found)
    # Of the whole model, the last block, the block before it, the blocks of the model,
    # which are equal, and of what accumulates them.
    assert len(programs) == 5

    def each(parts, method):
        return functools.partial(module._of_block, parts, method)

    monkeypatch.setattr(module, "_compiled_blocks", each)
    expected = inspection.relevance(model, images, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("size", [None, 8])
def test_an_encoder_explains_its_own_features(size):
    model, images = small_model(
        include_top=False, pooling="token", representation_size=size
    )
    features = keras.ops.convert_to_numpy(model(images))
    unit = features / np.linalg.norm(features, axis=-1, keepdims=True)
    np.testing.assert_allclose(
        inspection.relevance(model, images),
        inspection.relevance(model, images, unit),
        rtol=1e-5,
    )
