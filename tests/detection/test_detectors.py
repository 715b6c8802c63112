"""What both detectors do: they learn, and are saved, changed and exported."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.detection import FCOS, YOLOS, decode, fcos_loss, set_loss
from keras_vit.exporting import web
from keras_vit_programs import building
from tests.markers import on_all
from tests.small import tiny

ON_TORCH = pytest.mark.backends("torch")
# JAX runs each operation alone otherwise; XLA of TensorFlow compiles for long.
COMPILED = keras.config.backend() == "jax"
HEADS = {
    "fcos": (FCOS, {"filters": 8, "depth": 1}),
    "yolos": (YOLOS, {"queries": 4, "mid_positions": True}),
}
of_heads = pytest.mark.parametrize("head", HEADS)


def small(head, **more):
    build, options = HEADS[head]
    encoder = tiny(num_layers=2, pooling=None, include_top=False, classes=None)
    return build(encoder, **{"classes": 2, **options, **more})


def task():
    """Images of a bright square, and of none, with their boxes."""
    x = np.random.default_rng(0).normal(size=(4, 8, 12, 3)) / 10
    boxes = np.zeros((4, 2, 4), "float32")
    classes = np.full((4, 2), -1)
    for i, (left, top) in enumerate([(0, 0), (6, 2), (3, 4)]):
        x[i, top : top + 4, left : left + 4, i % 2] += 2
        boxes[i, 0] = (left + 2) / 12, (top + 2) / 8, 4 / 12, 4 / 8
        classes[i, 0] = i % 2
    return x.astype("float32"), {"classes": classes, "boxes": boxes}


@pytest.mark.slow
@pytest.mark.parametrize("head", on_all(HEADS, ["yolos"]))
def test_it_learns_is_saved_and_trains_on(head, tmp_path):
    options = {"class_names": ("red", "green")}
    if head == "yolos":
        options["loss_options"] = {"no_object_weight": 0.2}
    model, (x, y) = small(head, **options), task()
    batches = [
        (x[some], {name: array[some] for name, array in y.items()})
        for some in (slice(2), slice(2, 4))
    ]
    # With a constant rate the last score varies with the order of sums in threads.
    rate = keras.optimizers.schedules.CosineDecay(0.01, 60)
    model.compile(keras.optimizers.Adam(rate), jit_compile=COMPILED)
    measure = keras_vit.evaluation.CocoMetrics(batches, ["AP", "AP50"])
    history = model.fit(x, y, epochs=60, verbose=0, callbacks=[measure])
    history = history.history
    assert history["val_AP50"][-1] > 0.9 > 0.5 > history["val_AP50"][0]
    assert history["val_AP"][-1] > 0.5
    metrics = keras_vit.evaluation.evaluate_boxes(model, batches)
    assert metrics["AP50"] == pytest.approx(history["val_AP50"][-1])
    found = model.predict(x, verbose=0)
    assert decode(found)[3]["scores"].max(initial=0) < 0.5
    keras_vit.save(model, tmp_path / "model.keras")
    for load in (keras_vit.load, keras.models.load_model):
        again = load(tmp_path / "model.keras")
        if head == "yolos":
            tokens = again.get_layer("detection_tokens")
            assert tokens.loss_options == options["loss_options"]
        for name, array in again.predict(x, verbose=0).items():
            np.testing.assert_allclose(array, found[name], atol=1e-5)
    assert again.class_names == ("red", "green")
    again.compile("sgd", jit_compile=COMPILED)
    loss = again.fit(x, y, verbose=0).history["loss"][0]
    if head == "fcos":
        expected = fcos_loss(found, y)
    else:
        expected = set_loss(found, y, no_object_weight=0.2)
    assert loss == pytest.approx(float(expected), rel=1e-3)


DOORS = {
    "load": lambda path: keras_vit.load(path, dropout=0.1),
    "converters": lambda path: keras_vit.converters.load(path, input_shape=(8, 8, 3)),
    "encoder": lambda path: keras_vit.VisionTransformer(weights=path),
    "hub": lambda path: keras_vit.hub.save(path, path.with_name("hub")),
    "page": lambda path: web.model_of_pixels(path, None, {}, (8, 8)),
    "train": lambda path: building.build_model(
        None, str(path), None, input_shape=(8, 8, 3), classes=2
    ),
}


@ON_TORCH
@pytest.mark.parametrize("head", [*HEADS, "eomt", "linear"])
def test_files_are_those_of_whole_models(head, tmp_path):
    path = tmp_path / "model.keras"
    if head == "eomt":
        encoder = tiny(pooling=None, include_top=False, classes=None)
        model = keras_vit.segmentation.EoMT(encoder, 2, queries=3, blocks=1)
    elif head == "linear":
        model = keras_vit.segmentation.LinearSegmenter(tiny(), 2)
    else:
        model = small(head)
    with pytest.raises(ValueError, match="the kind of the model .*: a detector"):
        keras_vit.save(model, tmp_path / "model.weights.h5")
    model.save(path)
    load = keras_vit.evaluation.load_classifier
    doors = DOORS
    if head not in HEADS:
        doors = {**DOORS, "any": lambda path: load(str(path))}
    for door in doors.values():
        with pytest.raises(ValueError, match="holds a detector or a segmenter, not"):
            door(path)
    assert [x.name for x in tmp_path.iterdir()] == ["model.keras"]
    assert type(keras_vit.converters.load(path)) is type(model)
    if head not in HEADS:
        return
    with pytest.raises(ValueError, match="detector.*without other arguments"):
        load(str(path), patch_size=2)
    for trained in (model, load(str(path), image_size=8).model):
        image = np.zeros((8, 8, 3), "uint8")
        with pytest.raises(ValueError, match="^A patch of 4 x 4 .* 10 x 12: 10 is"):
            keras_vit.evaluation.find_boxes(trained, [image], (10, 12))
    with pytest.raises(ValueError, match="^A patch of 4 x 4 .* 10 x 10: 10 is"):
        load(str(path), image_size=10)
    for features in (False, True):
        with pytest.raises(ValueError, match="no classification head|without a head"):
            keras_vit.distillation.as_teacher(load(str(path)), features)


@ON_TORCH
@of_heads
def test_lora_int8_and_mixed_precision(head, tmp_path):
    x = task()[0]
    model = small(head)
    before = model.predict(x, verbose=0)
    name = {"fcos": "class_conv_1", "yolos": "class_1"}[head]
    model.get_layer(name).enable_lora(2)
    model.get_layer("block_0").mlp.dense_1.enable_lora(2)
    assert any("lora" in w.path for w in model.trainable_weights)
    for name, array in model.predict(x, verbose=0).items():
        np.testing.assert_allclose(array, before[name], atol=1e-5)
    model = small(head)
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = model.predict(x, verbose=0)
    for name, array in loaded.predict(x, verbose=0).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5)
    layers = [loaded.get_layer("block_0").mlp.dense_1]
    if head == "yolos":
        layers.append(loaded.get_layer("box_1"))
    assert {layer.quantization_mode for layer in layers} == {"int8"}
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = small(head)(x)
    finally:
        keras.config.set_dtype_policy("float32")
    for tensor in found.values():
        assert keras.backend.standardize_dtype(tensor.dtype) == "float32"


@pytest.mark.slow
@of_heads
def test_onnx_has_the_boxes(head, tmp_path):
    writers = {"jax": "jax2onnx", "tensorflow": "tf2onnx"}
    pytest.importorskip(writers.get(keras.config.backend(), "onnxscript"))
    runtime = pytest.importorskip("onnxruntime")
    model, (x, y) = small(head), task()
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    model.fit(x, y, epochs=10, verbose=0)
    path = tmp_path / "model.onnx"
    keras_vit.export(model, path, image_size=(8, 12))
    session = runtime.InferenceSession(path)
    names = [x.name for x in session.get_outputs()]
    found = session.run(None, {session.get_inputs()[0].name: x})
    found = dict(zip(names, found, strict=True))
    expected = model.predict(x, verbose=0)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5)
    boxes = decode(found, 8, 12), decode(expected, 8, 12)
    assert sum(len(row["boxes"]) for row in boxes[0]) > 3
    for row, other in zip(*boxes, strict=True):
        np.testing.assert_array_equal(row["classes"], other["classes"])
        np.testing.assert_allclose(row["boxes"], other["boxes"], atol=1e-4)


@ON_TORCH
@of_heads
def test_cost_config_and_losses(head):
    model = small(head)
    assert keras_vit.config_of(model).num_layers == 2
    cost = keras_vit.cost(model, image_size=(8, 12))
    assert cost.parameters == model.count_params()
    macs = [
        sum(x.macs for x in cost.layers if x.name.startswith(f"block_{i}"))
        for i in (0, 1)
    ]
    # Of a YOLOS, only the queries pass through the last block.
    assert 0 < macs[1] < macs[0] if head == "yolos" else macs[1] == macs[0]
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="loss='mse'"):
        model.compute_loss(y={}, y_pred={})
    with pytest.raises(ValueError, match=r"2 names.*class_names=\['a'\]"):
        small(head, class_names=["a"])
