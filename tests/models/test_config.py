"""A model carries its config wherever it goes, with the same outputs."""

import dataclasses
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import detection, pretraining, segmentation
from tests.small import bit, hybrid, images, randomize, tiny


def encoder():
    return tiny(include_top=False, pooling=None)


def with_lora():
    model = tiny()
    for i in range(2):
        model.get_layer(f"block_{i}").mlp.dense_1.enable_lora(2)
    return model


def in_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return tiny()
    finally:
        keras.config.set_dtype_policy(before)


def in_int8():
    model = randomized(tiny())
    model.quantize("int8")
    return model


def randomized(model):
    randomize(model, 0.1)
    return model


FAMILIES = {
    "vit": tiny,
    "vit of rotary positions": lambda: tiny(position_embedding="rope", num_registers=1),
    "vit in [0, 255]": lambda: tiny(preprocessing="torch"),
    "encoder": encoder,
    "hybrid": hybrid,
    "bit": bit,
    "features": lambda: keras_vit.feature_extractor(tiny(), "block_0"),
    "dense features": lambda: keras_vit.dense_features(tiny(), 0, norm=False),
    "inference model": lambda: keras_vit.models.inference_model(tiny()),
    "mixed sizes": lambda: keras_vit.mixed_sizes(tiny()),
    "LoRA": with_lora,
    "mixed_bfloat16": in_bfloat16,
    "int8": in_int8,
    "linear segmenter": lambda: segmentation.LinearSegmenter(encoder(), 3),
    "eomt": lambda: segmentation.EoMT(
        # Masks are drawn at random of probabilities, which are weights.
        encoder(),
        2,
        queries=3,
        blocks=1,
        masked=False,
    ),
    "fcos": lambda: detection.FCOS(encoder(), 2, filters=8, depth=1),
    "yolos": lambda: detection.YOLOS(encoder(), 2, queries=4),
    "mae": lambda: pretraining.MaskedAutoencoder(
        encoder(),
        decoder_hidden_size=8,
        decoder_num_layers=1,
        decoder_num_heads=2,
        seed=0,
    ),
    "simmim": lambda: pretraining.MaskedImageModeling(encoder(), seed=0),
    "mpp": lambda: pretraining.MaskedPatchPrediction(encoder(), seed=0),
    "dino": lambda: pretraining.DINO(encoder(), output_dim=16),
    "mocov3": lambda: pretraining.MoCoV3(encoder(), output_dim=8, hidden_dim=16),
}
_ASK = """
import json, pathlib, sys
import numpy as np
from tests.models import test_config
folder = pathlib.Path(sys.argv[1])
for name in test_config.FAMILIES:
    model = test_config.keras_vit.load(folder / f"{name}.keras")
    np.savez(folder / f"{name}.npz", *test_config.outputs(model))
    (folder / f"{name}.json").write_text(json.dumps(test_config.fields(model)))
"""


def outputs(model):
    """Returns the outputs of a model, or of its encoder, as a list."""
    model = getattr(model, "encoder", model)
    if len(model.inputs) == 3:
        patches = np.random.default_rng(0).normal(size=(2, 6, 48)).astype("float32")
        places = np.stack(np.divmod(np.arange(6), 3), axis=-1)
        places = np.broadcast_to(places, (2, 6, 2)).astype("int32")
        x = [patches, places, np.ones((2, 6), bool)]
    else:
        shape = zip(model.inputs[0].shape[1:], (8, 12, 3), strict=True)
        x = images(2, *(size or usual for size, usual in shape))
    found = keras.tree.flatten(model(x, training=False))
    return [keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in found]


def fields(model):
    """Returns the config of a model as JSON."""
    values = dataclasses.asdict(keras_vit.config_of(model))
    return json.loads(json.dumps({"class": type(model).__name__, **values}))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The models, their files and what another process reads of these."""
    folder = tmp_path_factory.mktemp("configs")
    models = {}
    for name, build in FAMILIES.items():
        models[name] = build() if name == "int8" else randomized(build())
        keras_vit.save(models[name], folder / f"{name}.keras")
    subprocess.run([sys.executable, "-c", _ASK, str(folder)], check=True)
    return models, folder


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_config_are_those_of_the_original(name, originals):
    models, folder = originals
    model = models[name]
    expected, config = outputs(model), fields(model)
    with np.load(folder / f"{name}.npz") as arrays:
        found = list(arrays.values())
    assert json.loads((folder / f"{name}.json").read_text()) == config
    copies = {"a new process": found}
    copy = type(model).from_config(json.loads(json.dumps(model.get_config())))
    assert fields(copy) == config
    if name not in ("int8", "LoRA"):  # which have weights that Keras adds later
        copy.set_weights(model.get_weights())
        copies["from_config"] = outputs(copy)
    clone = keras.models.clone_model(model)
    if hasattr(clone, "encoder"):  # of a model whose constructor is its own
        assert fields(clone) == config
    else:  # Keras gives the tensors alone to the constructor of a functional model
        clone.config = model.config
    if name != "LoRA":
        clone.set_weights(model.get_weights())
        copies["clone"] = outputs(clone)
    for way, found in copies.items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, 0, 1e-5, err_msg=way)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_exports_are_checked_against_the_model(name, tmp_path):
    """`export` writes a file only if it gives the outputs of the model."""
    model = FAMILIES[name]() if name == "int8" else randomized(FAMILIES[name]())
    model = getattr(model, "encoder", model)
    path = tmp_path / ("model.onnx" if keras.backend.backend() == "torch" else "model")
    if name == "mixed sizes":
        with pytest.raises(ValueError, match="Only models with one input"):
            keras_vit.export(model, path)
        model = keras_vit.models.one_size(model)
    size = None if None not in model.inputs[0].shape[1:] else (8, 12)
    form = "onnx" if path.suffix else "saved_model"
    keras_vit.export(model, path, image_size=size, format=form)
    assert path.exists()
