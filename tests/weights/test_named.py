"""Weights by name, from local servers: small files in exact formats."""

import dataclasses
import io
import re
import urllib.parse
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import BIT_VARIANTS, VARIANTS, Variant, stride
from keras_vit.models.variants import variant_builder
from keras_vit.utils import downloads
from keras_vit.weights import resolve_weights
from keras_vit.weights.formats import FORMATS, RESNET_CONSTANTS
from keras_vit.weights.released import ALIASES, RELEASED, ReleasedWeights
from keras_vit_programs import logs
from keras_vit_programs.convert import main
from tests import server as web
from tests.server import publish

pytestmark = pytest.mark.backends("torch")

SIZES = Variant(32, 2, 4, 64, 8)
GOOGLE = RELEASED["ViTB16", "imagenet21k"].arguments
IMAGE = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3))


@pytest.fixture
def tiny(monkeypatch):
    """A model function like ViTB16, small."""
    monkeypatch.setitem(VARIANTS, "Tiny", SIZES)
    return variant_builder("Tiny")


def offer(monkeypatch, tag, *files, classes=7, **options):
    """Adds a row to the table."""
    files = tuple(
        (keras_vit.utils.downloads.Source(address), format) for address, format in files
    )
    row = ReleasedWeights(files, 32, classes, "tf", GOOGLE, **options)
    monkeypatch.setitem(RELEASED, ("Tiny", tag), row)


def original(classes=7, zero_init_head=False, **arguments):
    """A model of random weights."""
    model = keras_vit.VisionTransformer(
        **{**SIZES.sizes(), **arguments},
        input_shape=(32, 32, 3),
        classes=classes,
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    if zero_init_head:
        head = model.get_layer("head")
        head.set_weights([np.zeros(w.shape) for w in head.weights])
    return model


def saved(model, tmp_path, suffix, format, drop=(), **changed):
    """Returns the bytes of a file, with some of its arrays changed."""
    path = tmp_path / f"saved{suffix}"
    keras_vit.converters.save(model, path, format, overwrite=True)
    if drop or changed:
        arrays = keras_vit.weights.files.read(path)
        for key in drop:
            del arrays[key]
        path.unlink()
        arrays.update(changed)
        keras_vit.weights.files.write(arrays, path)
    return path.read_bytes()


@pytest.fixture
def paper(server, home, tiny, tmp_path, monkeypatch):
    """The paper's weights: `pre_logits`, and a head of zeros."""
    model = original(21843, zero_init_head=True, representation_size=32)
    server.files["21k/ViT.npz"] = saved(model, tmp_path, ".npz", "vit_jax")
    files = [
        (server.url + "21k/ViT.npz", "vit_jax"),
        ("hf://google/vit/model.safetensors", "huggingface"),
    ]
    options = {"classes": 21843, "zero_init_head": True}
    offer(monkeypatch, "imagenet21k", *files, **options)
    return model


def features(model):
    return keras.Model(model.input, model.get_layer("pre_logits").output)


def test_weights_by_name_are_downloaded(paper, tiny, server, home, capsys):
    logs.show()
    model = tiny(weights="imagenet21k", classes=3, representation_size=32)
    expected = features(paper).predict(IMAGE, verbose=0)
    found = features(model).predict(IMAGE, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert server.url in capsys.readouterr().err
    tiny(weights="imagenet21k", classes=3)
    assert server.paths() == ["21k/ViT.npz"]
    assert (home / "weights/imagenet21k/Tiny/ViT.npz").is_file()


def test_head_of_zeros_warns(paper, tiny):
    for arguments in ({}, {"representation_size": 32}):
        with pytest.warns(UserWarning, match="head of zeros.*21,843") as caught:
            model = tiny(weights="imagenet21k", **arguments)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert model.output_shape == (None, 21843)
        assert not model.predict(IMAGE, verbose=0).any()
    with warnings.catch_warnings():  # otherwise there is nothing to warn of
        warnings.simplefilter("error", UserWarning)
        tiny(weights="imagenet21k", include_top=False)
        tiny(weights="imagenet21k", classes=5)


def test_weights_from_the_hub_match(
    paper, tiny, server, hub, home, tmp_path, monkeypatch
):
    """transformers' format implies another GELU and epsilon; the constants of
    the original training are used."""
    path = tmp_path / "original.npz"
    path.write_bytes(server.files["21k/ViT.npz"])
    server.behave["21k/ViT.npz"] = web.status(403)
    headless = keras_vit.VisionTransformer(
        weights=path, include_top=False, pooling="token", representation_size=32
    )
    body = saved(headless, tmp_path, ".safetensors", "huggingface:vit")
    publish(hub, "google/vit", {"model.safetensors": body})
    with pytest.warns(UserWarning, match="head of zeros"):
        model = tiny(weights="imagenet21k", representation_size=32)
    expected = features(paper).predict(IMAGE, verbose=0)
    found = features(model).predict(IMAGE, verbose=0)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert model.output_shape == (None, 21843)


@pytest.mark.parametrize("kind", ["hybrid", "bit"])
def test_resnets_of_google_and_timm_match(kind, server, hub, tmp_path, monkeypatch):
    """Google's file and timm's give the same function, also for images of low
    contrast, which make epsilons matter."""
    if kind == "hybrid":
        tag, format, timm = "imagenet21k", "vit_jax", "timm/r/m.safetensors"
        variant = Variant(32, 2, 4, 64, 1, (1, 1))
        monkeypatch.setitem(VARIANTS, "Tiny", variant)
        build = variant_builder("Tiny")
        arguments = RELEASED["R50ViTB16", tag].arguments
        model = keras_vit.HybridVisionTransformer(
            **variant.sizes(), input_shape=(32, 32, 3), classes=7
        )
    else:
        tag, format, timm = "imagenet21k", "bit", "timm/b/m.safetensors"
        monkeypatch.setitem(BIT_VARIANTS, "Tiny", ((1, 1), 1))
        build = variant_builder("Tiny")
        arguments = RELEASED["BiT_R50x1", tag].arguments
        model = keras_vit.BiT(resnet_layers=(1, 1), input_shape=(32, 32, 3), classes=7)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    server.files["google.npz"] = saved(model, tmp_path, ".npz", format)
    body = saved(model, tmp_path, ".safetensors", "timm")
    publish(hub, "timm/r", {"m.safetensors": body})
    publish(hub, "timm/b", {"m.safetensors": body})
    images = IMAGE / 512
    expected = model.predict(images, verbose=0)
    for name, file in (
        ("a", (server.url + "google.npz", format)),
        ("b", (f"hf://{timm}", "timm")),
    ):
        source = keras_vit.utils.downloads.Source(file[0])
        row = ReleasedWeights(((source, file[1]),), 32, 7, "tf", arguments)
        monkeypatch.setitem(RELEASED, ("Tiny", name), row)
        found = build(weights=name, input_shape=(32, 32, 3))
        found = found.predict(images, verbose=0)
        np.testing.assert_allclose(found, expected, atol=3e-5)


def test_alias_and_other_image_size(server, home, tiny, tmp_path, monkeypatch):
    model = original()
    server.files["1k/ViT.npz"] = saved(model, tmp_path, ".npz", "vit_jax")
    file = (server.url + "1k/ViT.npz", "vit_jax")
    offer(monkeypatch, ALIASES["imagenet"], file)
    found = tiny(weights="imagenet")
    np.testing.assert_allclose(
        found.predict(IMAGE, verbose=0),
        model.predict(IMAGE, verbose=0),
        atol=1e-6,
    )
    assert tiny(weights="imagenet", input_shape=(48, 40, 1)).output_shape == (
        None,
        7,
    )


def test_a_name_with_the_model_is_that_of_its_argument(monkeypatch):
    def open_released(path, *given, **options):
        raise RuntimeError(str(path))

    monkeypatch.setattr(downloads, "fetch", open_released)
    found = []
    for name in ("imagenet21k", "ViTB16/imagenet21k"):
        with pytest.raises(RuntimeError) as error:
            keras_vit.ViTB16(weights=name)
        found.append(str(error.value))
    assert found[0] == found[1]


def test_unknown_names_raise(tiny, monkeypatch):
    with pytest.raises(ValueError, match="ViTH14 has no.*'imagenet21k', 'mae'"):
        keras_vit.ViTH14(weights="sam")
    with pytest.raises(ValueError, match=r"keras_vit.ViTB8\(.*`model='ViTB8'`"):
        keras_vit.VisionTransformer(weights="imagenet21k")
    for build in (keras_vit.ViTB16, keras_vit.VisionTransformer):
        with pytest.raises(
            FileNotFoundError, match="no file 'imagnet'.*'sam'.*list_weights"
        ):
            build(weights="imagnet")


@pytest.mark.parametrize(
    "name, hint",
    [
        ("hf-hub:timm/vit", "'hf://timm/vit'"),
        ("local-dir:folder/vit", "'folder/vit'"),
        ("vit", "'ViTB16/imagenet21k'"),
    ],
)
def test_paths_that_do_not_exist_have_a_hint(name, hint):
    with pytest.raises(FileNotFoundError, match=hint):
        keras_vit.load(name)


def other(tmp_path, **arguments):
    return saved(original(**arguments), tmp_path, ".npz", "vit_jax")


def without_an_array(tmp_path):
    drop = ("Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias",)
    return saved(original(), tmp_path, ".npz", "vit_jax", drop)


def not_finite(tmp_path):
    changed = {"head/bias": np.full(7, np.nan, np.float32)}
    return saved(original(), tmp_path, ".npz", "vit_jax", **changed)


def pickled(tmp_path):
    file = io.BytesIO()
    np.savez(file, cls=np.array([{"run": "me"}], dtype=object))
    return file.getvalue()


WRONG = {
    "classes is 9, expected 7": lambda path: other(path, classes=9),
    "num_layers is 3, expected 2": lambda path: other(path, num_layers=3),
    "mlp_dim is 96, expected 64": lambda path: other(path, mlp_dim=96),
    "block_1 is not like block_0": without_an_array,
    "head/bias: not all values are finite": not_finite,
    "Object arrays cannot be loaded": pickled,
    "is not an .npz file": lambda path: b"<html>sign in</html>",
    "may have been cut off": lambda path: other(path)[:-100],
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_file_falls_back_to_the_next_source(
    words, server, home, tiny, tmp_path, monkeypatch
):
    server.files["bad/ViT.npz"] = WRONG[words](tmp_path)
    bad = (server.url + "bad/ViT.npz", "vit_jax")
    offer(monkeypatch, "only-bad", bad)
    with pytest.raises(OSError, match=words) as error:
        tiny(weights="only-bad")
    for part in (
        "Tiny(weights='only-bad') could not be downloaded",
        server.url + "bad/ViT.npz",
        str(home / "weights/only-bad/Tiny"),
    ):
        assert part in str(error.value)
    assert not list(home.rglob("*.npz"))
    # With a second source, the second it is.
    server.files["good/ViT.npz"] = other(tmp_path)
    good = (server.url + "good/ViT.npz", "vit_jax")
    offer(monkeypatch, "bad-then-good", bad, good)
    assert tiny(weights="bad-then-good").output_shape == (None, 7)


def test_manually_added_weights_are_used(home, tiny, tmp_path, monkeypatch):
    offer(monkeypatch, "by-hand", ("http://127.0.0.1:9/ViT.npz", "vit_jax"))
    with pytest.raises(OSError, match="put ViT.npz into the folder") as error:
        tiny(weights="by-hand")
    folder = re.search("the folder '(.*)', or give", str(error.value))[1]
    with open(f"{folder}/ViT.npz", "wb") as file:
        file.write(other(tmp_path))
    assert tiny(weights="by-hand").output_shape == (None, 7)


def test_weights_by_url(hub, tmp_path):
    model = original()
    body = saved(model, tmp_path, ".npz", "vit_jax")
    hub.files["any/name.npz"] = body
    timm = saved(model, tmp_path, ".safetensors", "timm")
    publish(hub, "o/n", {"model.safetensors": timm})
    expected = model.predict(IMAGE, verbose=0)
    google = hub.url + "any/name.npz"
    given = {"num_heads": 4, "activation": "gelu_tanh"}
    for weights, arguments in (
        (google, {}),
        ("hf://o/n", given),
        ("hf://o/n/model.safetensors", given),
    ):
        for make in (
            lambda w, **a: keras_vit.VisionTransformer(weights=w, **a),
            keras_vit.converters.load,
        ):
            found = make(weights, **arguments).predict(IMAGE, verbose=0)
            np.testing.assert_allclose(found, expected, atol=2e-6)


def test_convert_accepts_urls(hub, tmp_path, capsys):
    body = saved(original(), tmp_path, ".safetensors", "timm")
    publish(hub, "o/n", {"model.safetensors": body})
    target = str(tmp_path / "out.npz")
    arguments = ["hf://o/n", target, "--to", "vit_jax", "--set", "num_heads=4"]
    assert main(arguments) == 0, capsys.readouterr().err
    format = keras_vit.converters.open_checkpoint(target).format
    assert format == "vit_jax"
    assert main(["hf://o/missing", "--inspect"]) == 1
    assert "404" in capsys.readouterr().err


def test_weights_of_another_model_name_it():
    with pytest.raises(ValueError, match="These models have it: ViTS14, "):
        keras_vit.ViTS16(weights="dinov2")


def test_list_weights():
    names = keras_vit.list_weights()
    assert names == [f"{variant}/{tag}" for variant, tag in RELEASED]
    tags = keras_vit.list_weights("ViTH14")
    assert tags and [f"ViTH14/{tag}" for tag in tags] == [
        name for name in names if name.startswith("ViTH14/")
    ]
    with pytest.raises(ValueError, match="model='ViTG14'"):
        keras_vit.list_weights("ViTG14")


@pytest.mark.parametrize("variant,tag", RELEASED)
def test_row_of_the_weights_table(variant, tag):
    """Check a row without downloading its files."""
    row = RELEASED[variant, tag]
    assert hasattr(keras_vit, variant)
    assert row.preprocess_mode in ("tf", "torch")
    if variant in BIT_VARIANTS:
        assert row.arguments == RESNET_CONSTANTS["bit"]
    else:
        sizes = VARIANTS[variant]
        patch = sizes.patch_size
        if sizes.resnet_layers is not None:
            patch *= stride(sizes.resnet_layers)
            assert RESNET_CONSTANTS["vit_jax"].items() <= row.arguments.items()
        assert row.image_size % patch == 0
        keys = {"activation", "norm_epsilon", "resampling"}
        assert row.arguments.keys() >= keys
    assert tag not in ALIASES
    # The name of a cached file says which of them it is.
    assert len({source.name for source, _ in row.files}) == len(row.files)
    for source, format in row.files:
        assert format in FORMATS
        assert re.fullmatch(r"|sha256:[0-9a-f]{8}", source.digest)
        parts = urllib.parse.urlparse(source.address)
        assert parts.scheme in ("https", "hf")
        assert source.name.endswith((".npz", ".safetensors", ".pth", ".pth.tar"))


def test_files_of_the_table_are_unique():
    addresses = [s.address for row in RELEASED.values() for s, _ in row.files]
    assert len(addresses) == len(set(addresses))


@pytest.mark.network
@pytest.mark.parametrize("variant,tag", RELEASED)
def test_released_weights(variant, tag, monkeypatch):
    """Downloads and loads a row of the table, each of its files."""
    row = RELEASED[variant, tag]
    build = getattr(keras_vit, variant)
    outputs = []
    for file in row.files:
        other = f"{tag}-by-{file[0].address.split('/')[2]}"
        one = dataclasses.replace(row, files=(file,))
        monkeypatch.setitem(RELEASED, (variant, other), one)
        checkpoint = resolve_weights(other, variant)
        model = build(weights=checkpoint, include_top=False, pooling=None)
        shape = (1, row.image_size, row.image_size, 3)
        image = np.random.default_rng(0).uniform(-1, 1, shape)
        outputs.append(model.predict(image, verbose=0))
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], atol=1e-3, rtol=1e-3)
