"""EoMT against transformers' own: outputs, matching, loss and files."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.segmentation import EoMT, mask_loss, matching
from keras_vit.segmentation.eomt import QueryMask
from tests import originals
from tests.harness import numpy
from tests.markers import on_all
from tests.small import tiny

TOLERANCE = 3e-5
ON_TORCH = pytest.mark.backends("torch")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "mlp_ratio": 2,
    "num_blocks": 2,
    "num_queries": 7,
    "num_register_tokens": 2,
    "num_labels": 5,
    "train_num_points": 60,
    "num_upscale_blocks": 2,
    "class_weight": 1.5,
    "mask_weight": 4.0,
    "dice_weight": 3.0,
    "no_object_weight": 0.2,
    "oversample_ratio": 2.0,
    "importance_sample_ratio": 0.6,
}
CASES = {
    "masked": ({}, 1.0),
    "annealed": ({"num_register_tokens": 0, "num_upscale_blocks": 1}, 0.0),
    "gated": ({"use_swiglu_ffn": True, "mlp_ratio": 4}, 1.0),
}


def original_of(case, folder=None):
    options, probability = CASES[case]
    kind = originals.Case("EomtForUniversalSegmentation", SMALL, {})
    model = originals.build(kind, **options)
    model.attn_mask_probs.fill_(probability)
    if folder is not None:
        model.save_pretrained(folder)
    return model


def images():
    draw = np.random.default_rng(0).normal
    return draw(size=(2, 32, 32, 3)).astype("float32")


def objects():
    """Two objects in the first image and three in the second."""
    rng = np.random.default_rng(1)
    masks = (rng.random((2, 3, 32, 32)) < 0.3).astype("float32")
    masks[0, 2] = 0
    return {"classes": np.array([[3, 1, -1], [0, 4, 4]]), "masks": masks}


def theirs(model, targets=None):
    import torch

    x = torch.from_numpy(images()).permute(0, 3, 1, 2).contiguous()
    labels = {}
    if targets is not None:
        valid = targets["classes"] >= 0
        labels = {
            "mask_labels": [
                torch.from_numpy(m[v])
                for m, v in zip(targets["masks"], valid, strict=True)
            ],
            "class_labels": [
                torch.from_numpy(c[v])
                for c, v in zip(targets["classes"], valid, strict=True)
            ],
        }
    with torch.no_grad(), torch.device("cpu"):
        return model(x, **labels)


@pytest.mark.parametrize(
    "case",
    ["masked", "annealed", pytest.param("gated", marks=ON_TORCH)],
)
def test_outputs_and_files_are_transformers(case, tmp_path, record_error):
    original = original_of(case, tmp_path / "theirs")
    expected = theirs(original)
    model = keras_vit.load(tmp_path / "theirs")
    assert ("masks_0" in model.output) == (case != "annealed")
    found = model(images(), training=False)
    masks = expected.masks_queries_logits.permute(0, 2, 3, 1).numpy()
    pairs = {
        "masks": masks,
        "classes": expected.class_queries_logits.numpy(),
    }
    for name, array in pairs.items():
        assert np.ptp(array) > 0.1
        error = np.abs(numpy(found[name]) - array).max()
        record_error("eomt", f"{case} {name}", error, TOLERANCE)

    # Its file back bit for bit; transformers reads it.
    keras_vit.save(model, tmp_path / "ours")
    again = originals.reload(original, tmp_path / "theirs", tmp_path / "ours")
    for key in ("class_weight", "dice_weight", "train_num_points"):
        assert getattr(again.config, key) == SMALL[key]
    again = theirs(again)
    np.testing.assert_array_equal(
        again.masks_queries_logits, expected.masks_queries_logits
    )


@ON_TORCH
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_folders_in_half_precision_are_read(dtype, tmp_path):
    """Their weight of "no object" is that of config.json, rounded."""
    import torch

    original = original_of("masked").to(getattr(torch, dtype))
    original.save_pretrained(tmp_path)
    expected = theirs(type(original).from_pretrained(tmp_path, dtype="float32").eval())
    found = keras_vit.load(tmp_path)(images(), training=False)
    error = numpy(found["classes"]) - expected.class_queries_logits.numpy()
    assert np.abs(error).max() < TOLERANCE


def test_loss_and_matching_are_transformers(tmp_path, monkeypatch, record_error):
    """At their random points, in the order in which they take them."""
    torch = pytest.importorskip("torch")
    original = original_of("masked", tmp_path)
    taken, matched = [], []
    rand, matcher = torch.rand, type(original.criterion.matcher).forward

    def record(*shape, **options):
        taken.append(rand(*shape, device="cpu"))
        return taken[-1]

    def watch(self, *arguments):
        matched.append(matcher(self, *arguments))
        return matched[-1]

    monkeypatch.setattr(torch, "rand", record)
    monkeypatch.setattr(type(original.criterion.matcher), "forward", watch)
    targets = objects()
    expected = float(theirs(original, targets).loss)
    monkeypatch.undo()

    points = iter([x.numpy() for x in taken if x.ndim == 3 and x.shape[2] == 2])

    def uniform(shape):
        found = next(points)
        if shape[0] == 2:  # of two images, which they compare one by one
            found = np.concatenate([found, next(points)])
        else:  # of their five objects; ours have a sixth
            found = np.insert(found, 2, 0.5, axis=0)
        assert found.shape == shape
        return keras.ops.convert_to_tensor(found)

    ours, assign = [], matching._assign

    def keep(*arguments, **options):
        ours.append(assign(*arguments, **options))
        return ours[-1]

    monkeypatch.setattr(matching, "_assign", keep)
    model = keras_vit.load(tmp_path)
    outputs = model(images(), training=False)
    loss = float(
        mask_loss(
            outputs,
            targets,
            uniform=uniform,
            **model.get_layer("eomt_head").loss_options,
        )
    )
    assert next(points, None) is None
    assert len(matched) == len(ours) == 3
    for pairs, (query, target, valid) in zip(matched, ours, strict=True):
        for i, (a, b) in enumerate(pairs):
            np.testing.assert_array_equal(query[i][valid[i]], a)
            np.testing.assert_array_equal(target[i][valid[i]], b)
    error = abs(loss - expected) / expected
    record_error("eomt", "loss", error, TOLERANCE)


@pytest.mark.slow
@pytest.mark.suite("torch")
def test_it_learns_and_is_saved(tmp_path):
    encoder = tiny(num_layers=2, pooling=None, include_top=False, classes=None)
    options = {"num_points": 200, "dice_weight": 2.0}
    model = EoMT(
        encoder,
        classes=2,
        queries=4,
        blocks=1,
        num_upscales=1,
        loss_options=options,
    )
    x = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    masks = np.zeros((2, 2, 8, 12), "float32")
    masks[:, 0, :, :6] = masks[:, 1, :, 6:] = 1
    y = {"classes": np.array([[0, 1], [1, -1]]), "masks": masks}
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    steps = [(0, 8)]
    history = model.fit(
        x,
        y,
        epochs=8,
        verbose=0,
        callbacks=[keras_vit.segmentation.AnnealMasks(steps)],
    ).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert float(model.get_layer("query_mask_0").probability) == 0
    found = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_layer("eomt_head").loss_options == options
    # Without masks, it is the model that was built without them.
    plain = EoMT(encoder, 2, 4, 1, masked=False, num_upscales=1)
    values = {w.path: w for w in model.weights}
    for weight in plain.weights:
        weight.assign(values[weight.path])
    for other in (again, plain):
        for name, array in other.predict(x, verbose=0).items():
            np.testing.assert_allclose(array, found[name], atol=1e-5)
    scores = keras_vit.segmentation.semantic_scores(found)
    assert tuple(scores.shape) == (2, 4, 6, 2)


@ON_TORCH
def test_points_are_grid_sample():
    import torch

    rng = np.random.default_rng(0)
    maps = rng.normal(size=(3, 5, 4)).astype("float32")
    points = rng.uniform(size=(3, 50, 2)).astype("float32")
    with torch.device("cpu"):
        expected = torch.nn.functional.grid_sample(
            torch.from_numpy(maps)[:, None],
            2 * torch.from_numpy(points)[:, None] - 1,
            align_corners=False,
        )[:, 0, 0]
    found = matching.sample_points(*map(keras.ops.convert_to_tensor, (maps, points)))
    np.testing.assert_allclose(numpy(found), expected.numpy(), atol=1e-5)


def test_query_masks_are_independent():
    """Each block frees other queries."""
    masks = np.full((2, 8, 8, 50), -1.0, "float32")  # queries see no patches
    grid, free = np.zeros((2, 4, 4, 8), "float32"), []
    for _ in range(2):
        layer = QueryMask(1)
        layer(masks, grid)
        layer.probability.assign(0.5)
        free.append(numpy(layer(masks, grid))[:, :50, -1])
    assert 0.2 < np.mean(free[0] == free[1]) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("epochs", on_all([1, 5], [5]))
def test_masks_are_annealed_by_the_end_of_the_last_step(epochs):
    encoder = tiny(num_layers=2, pooling=None, include_top=False, classes=None)
    options = {"num_points": 4}
    model = EoMT(encoder, 2, 3, 2, loss_options=options)
    model.compile("sgd", jit_compile=keras.config.backend() == "jax")
    y = {"classes": np.zeros((5, 1), "int32"), "masks": np.ones((5, 1, 8, 12))}
    # `fit` with 5 steps in all, as one epoch or as five.
    model.fit(
        np.zeros((5, 8, 12, 3)) if epochs == 1 else np.zeros((1, 8, 12, 3)),
        y if epochs == 1 else {k: v[:1] for k, v in y.items()},
        batch_size=1,
        epochs=epochs,
        verbose=0,
        callbacks=[keras_vit.segmentation.AnnealMasks([(0, 5), (0, 10)])],
    )
    found = [float(model.get_layer(f"query_mask_{i}").probability) for i in (0, 1)]
    np.testing.assert_allclose(found, [0, 0.5**0.9], rtol=1e-6)


def small(**options):
    encoder = tiny(num_layers=1, input_shape=(8, 8, 3))
    return EoMT(encoder, 2, blocks=1, **options)


@ON_TORCH
def test_wrong_targets_are_refused(tmp_path):
    model = small()
    with pytest.raises(ValueError, match="Received: `sample_weight`"):
        model.compute_loss(y={}, y_pred={}, sample_weight=1.0)
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="loss='mse'"):
        model.compute_loss(y={}, y_pred={})
    outputs = model(np.zeros((1, 8, 8, 3)))
    masks, none = np.zeros((1, 1, 8, 8)), np.full((1, 1), -1)

    def loss(classes=none, masks=masks):
        targets = {"classes": classes, "masks": masks}
        options = {"num_points": 4, "no_object_weight": 0.0}
        return float(mask_loss(outputs, targets, **options))

    assert loss() == 0
    for label in (2, 3, 255):
        # PyTorch raises ValueError, the other backends an error of their own.
        with pytest.raises(Exception, match=f"from 0 to 1, .*: {label}"):
            loss(np.array([[label]]))
    for wrong in ({"masks": masks[0]}, {"classes": none[:, :0]}):
        with pytest.raises(ValueError, match="one object or more"):
            loss(**wrong)
    with pytest.raises(ValueError, match="layer_scale=None"):
        keras_vit.save(model, tmp_path)
    assert not list(tmp_path.iterdir())


@ON_TORCH
def test_int8_and_frozen_heads_are_saved(tmp_path):
    model = small(queries=3, masked=False)
    model.quantize("int8")
    model.get_layer("eomt_head").upscales[0].trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b))
        assert a.trainable == b.trainable
    head = loaded.get_layer("eomt_head")
    assert head.class_head.quantization_mode == "int8"
    assert not head.upscales[0].trainable
