"""A page for browsers: what it computes and shows equals Keras and Pillow."""

import json
import pathlib
import shutil
import subprocess
import tarfile
import time

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import inspection
from keras_vit.exporting import web
from keras_vit.layers import ImagePreprocessing
from keras_vit.utils import downloads
from keras_vit_programs import export as export_program
from keras_vit_programs.images import read_images
from tests import server
from tests.small import randomize, tiny

pytestmark = pytest.mark.backends("torch")

DYNAMIC = {"input_shape": (None, None, 3), "grid_size": (2, 3)}


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A stand-in for onnxruntime-web, so that nothing is downloaded."""
    path = tmp_path / "onnxruntime-web.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name in web.RUNTIME_FILES:
            archive.addfile(tarfile.TarInfo(f"package/dist/{name}"))
    monkeypatch.setattr(downloads, "fetch", lambda *_, **__: (path, None))


def build(**options):
    model = tiny(**{"preprocessing": "tf", **options})
    randomize(model)
    return model


def run_graph(folder, name, size, **feeds):
    runtime = pytest.importorskip("onnxruntime")
    file = folder / "{}-{}x{}.onnx".format(name, *size)
    return runtime.InferenceSession(str(file)).run(None, feeds)


def read_config(page):
    return json.loads((page / "model.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"preprocessing": "torch"},
        {"include_top": False, "classes": None, **DYNAMIC},
        {"pooling": "map", "num_registers": 2, "activation": "swiglu"},
        {"pooling": "gap", "input_shape": (8, 8, 1)},
        {"distillation": True, "classifier_activation": "softmax"},
    ],
    ids=["token", "encoder", "map, swiglu", "gray", "distilled"],
)
def test_graphs_equal_keras(options, runtime, tmp_path):
    page = tmp_path / "page"
    model = build(num_layers=1, **options)
    keras_vit.export(model, page, "web")
    config, rng = read_config(page), np.random.default_rng(1)
    channels, count = config["channels"], config["outputs"]
    for size in config["sizes"]:
        part = rng.integers(0, 256, (11, 7, 4), "uint8")
        (columns,) = run_graph(page, "columns", size, part=part)
        picture = Image.fromarray(part[..., :3])
        pixels = np.asarray(picture.convert("L" if channels == 1 else None))
        images = ImagePreprocessing(size)(pixels.reshape(1, 11, 7, channels))
        images = (images + 1) * 127.5
        zero = np.zeros((1, count), "float32")
        for direction in (zero, np.eye(1, count, 2, dtype="float32")):
            output, attention, relevance = run_graph(
                page, "model", size, picture=columns, direction=direction
            )
            expected = model.predict_on_batch(images)
            if not config["labels"]:
                expected = expected[:, 0]
            np.testing.assert_allclose(output, expected, atol=1e-5)
            (expected,) = inspection.attention_heads(model, images)
            np.testing.assert_allclose(attention[-1], expected, atol=1e-5)
            given = direction if direction.any() else None
            (expected,) = inspection.relevance(model, images, given)
            limit = 1e-4 * np.abs(expected).max()
            np.testing.assert_allclose(relevance, expected, atol=limit)


@pytest.mark.nightly
def test_a_page_of_half_precision_is_in_float32(runtime, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = build(num_layers=1)
    keras.config.set_dtype_policy("float32")
    keras_vit.export(model, tmp_path / "page", "web")
    full = tiny(num_layers=1, preprocessing="tf")
    full.set_weights(model.get_weights())
    picture = np.random.default_rng(0).uniform(0, 255, (8, 12, 3)).astype("float32")
    direction = np.zeros((1, 5), "float32")
    output, *_ = run_graph(
        *(tmp_path / "page", "model", (8, 12)), picture=picture, direction=direction
    )
    expected = full.predict_on_batch(picture[None])
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.slow
def test_the_program_writes_a_run_in_int8(runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build(num_layers=1, hidden_size=96, mlp_dim=384, preprocessing=None)
    config = {"data": {}, "config": {"mode": "tf"}}
    pathlib.Path("config.json").write_text(json.dumps(config))
    model.class_names = ["ant", "bee", "cat", "dog", "eel"]
    model.save("model.keras")
    sizes = []
    for flag in ("--int8-weights", "--no-check"):
        given = ["model.keras", "page", "--to", "web", "--image-size", "8"]
        assert export_program.main([*given, "--overwrite", flag]) == 0
        weights = pathlib.Path("page/weights.bin")
        sizes.append(weights.stat().st_size)
    # Each weight is stored once, and biases and norms stay in float32.
    assert sizes[1] < 4.1 * model.count_params() and sizes[0] < sizes[1] / 3.5
    config = read_config(tmp_path / "page")
    assert config["labels"] == model.class_names
    assert config["sizes"] == [[8, 8]]
    part = np.random.default_rng(0).integers(0, 256, (8, 8, 4), "uint8")
    page, direction = tmp_path / "page", np.zeros((1, 5), "float32")
    (picture,) = run_graph(page, "columns", (8, 8), part=part)
    output, *_ = run_graph(page, "model", (8, 8), picture=picture, direction=direction)
    model = keras_vit.converters.load("model.keras", input_shape=(8, 8, 3))
    logits = model.predict(keras_vit.preprocess_input(part[None, ..., :3]))
    np.testing.assert_allclose(output, keras.ops.softmax(logits), atol=1e-4)


def test_a_page_replaces_only_a_page(runtime, tmp_path):
    (tmp_path / "photos").mkdir()
    for overwrite, error in ((False, FileExistsError), (True, ValueError)):
        with pytest.raises(error, match="photos"):
            keras_vit.export(build(), tmp_path / "photos", "web", overwrite=overwrite)
    for options in ({"input_shape": (8, 12, 4)}, {"preprocessing": False}):
        with pytest.raises(ValueError, match="`preprocessing=`"):
            keras_vit.export(build(**options), tmp_path / "page", "web")
    assert not (tmp_path / "page").exists()


def photo(height, width, seed=0):
    """Returns colors that change over the picture, with noise."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows, columns, rows + columns], -1)
    pixels = pixels * 200 / max(1, height + width - 2)
    noise = np.random.default_rng(seed).integers(0, 56, pixels.shape)
    return (pixels + noise).astype("uint8")


def write_pictures(folder):
    """Writes pictures that decoders may read in different ways."""
    folder.mkdir()

    def save(name, pixels, mode=None, **options):
        image = Image.fromarray(pixels)
        image = image.convert(mode) if mode else image
        image.save(folder / name, **options)

    for orientation in (1, 3, 5, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(f"exif{orientation}.png", photo(60, 90), exif=exif)
        save(f"exif{orientation}.jpg", photo(60, 90), exif=exif, quality=95)
    alpha = np.dstack([photo(64, 64), photo(64, 64, 1)[..., 0]])
    alpha[:20, :, 3] = 0
    save("alpha.png", alpha)
    save("alpha.webp", alpha, lossless=True, exact=True)
    save("gray_alpha.png", alpha[..., [0, 3]])
    save("palette.png", photo(50, 70), "P", transparency=3)
    save("palette.gif", photo(50, 70), "P")
    save("gray.png", photo(40, 60)[..., 0])
    save("one_bit.png", photo(40, 60), "1")
    save("pixel.png", photo(1, 1))
    save("line.png", photo(1, 700))
    save("large.png", photo(3000, 4000), compress_level=1)
    save("photo.bmp", photo(61, 60))
    save("cmyk.jpg", photo(100, 100), "CMYK")


DRIVE = """
import * as page from "./page.js";
const { pictures } = page;
let violations = 0;
addEventListener("securitypolicyviolation", () => { violations += 1; });
const get = (id) => document.getElementById(id);
const report = (...values) =>
  fetch("report/" + encodeURIComponent(JSON.stringify(values)));
const ready = async () => {
  let last;
  do await (last = page.queue);
  while (last !== page.queue);
};
const choose = async (id, value) => {
  get(id).value = value;
  get(id).dispatchEvent(new Event("change", { bubbles: true }));
  await ready();
};
const drop = async (blob, name) => {
  const data = new DataTransfer();
  data.items.add(new File([blob], name));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data }));
  await ready();
};
await ready();
// A picture longer than any texture, which is not compared with the others.
const long = new OffscreenCanvas(1, 32768);
long.getContext("2d").fillRect(0, 0, 1, 9);
await drop(await long.convertToBlob(), "long.png");
const refused = get("status").textContent;
for (const name of await (await fetch("pictures.json")).json()) {
  await drop(await (await fetch("pictures/" + name)).blob(), name);
  const { output, relevance } = pictures.at(-1).results[""];
  await report(name, [...output.data], [...relevance.data]);
}
const shown = get("status").textContent;
await choose("show", get("show").options[1].value);
const results = Object.keys(pictures.at(-1).results).length;
await choose("show", "attention 1");
await choose("size", 1);
await choose("head", 0);
await report("done", refused, shown, get("caption").textContent,
  results, violations,
  performance.getEntriesByType("resource")
    .filter((x) => !x.name.startsWith(location.origin)).length,
  document.documentElement.scrollWidth - innerWidth);
"""


@pytest.mark.browser
@pytest.mark.parametrize("head", [True, False], ids=["classes", "encoder"])
def test_pictures_in_a_browser_equal_keras(head, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    assert browser, "There is no Chromium; install it with your system."
    classes = {} if head else {"include_top": False, "classes": None}
    model = build(pooling="gap", preprocessing=None, **classes, **DYNAMIC)
    model.save(tmp_path / "model.keras")
    config = {"data": {}, "config": {"mode": "torch"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    keras_vit.export(tmp_path / "model.keras", tmp_path / "page", "web")
    write_pictures(tmp_path / "pictures")
    paths = sorted((tmp_path / "pictures").iterdir())
    names = [path.name for path in paths]
    with server.running() as site:
        for path in [*(tmp_path / "page").iterdir(), *paths]:
            prefix = "pictures/" if path in paths else ""
            site.files[prefix + path.name] = path.read_bytes()
        html = site.files["index.html"].decode()
        script = '<script type="module" src="drive.js"></script></body>'
        site.files["index.html"] = html.replace("</body>", script).encode()
        site.files["drive.js"] = DRIVE.encode()
        site.files["pictures.json"] = json.dumps(names).encode()
        for name in site.files:
            if name.endswith(("js", "html")):
                kind = "html" if name.endswith("html") else "javascript"
                site.behave[name] = lambda handler, body, kind=kind: server.serve(
                    handler, body, Content_Type=f"text/{kind}"
                )
        process = subprocess.Popen(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                f"--user-data-dir={tmp_path / 'browser'}",
                "--window-size=390,844",
                # Nothing but this server can be reached.
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                site.url + "index.html",
            ],
            stderr=subprocess.DEVNULL,
        )
        found, deadline = {}, time.monotonic() + 400
        while "done" not in found and time.monotonic() < deadline:
            time.sleep(0.2)
            for path in site.paths():
                if path.startswith("report/"):
                    name, *values = json.loads(path.removeprefix("report/"))
                    found[name] = values
        process.terminate()
        process.wait()
    refused, shown, caption, *numbers = found.pop("done")
    results, violations, outside, wide = numbers
    assert "cannot hold 1 × 32768 pixels" in refused
    assert violations == outside == 0 and wide <= 0
    assert names[-1] in shown and ("class" in shown) == head
    assert "block 2, head 1" in caption and results == 2
    assert found.keys() == set(names)
    size = read_config(tmp_path / "page")["sizes"][0]
    resize = ImagePreprocessing(size, "torch")
    for name, pixels in zip(names, read_images(paths), strict=True):
        images = resize(pixels[None])
        expected = model.predict_on_batch(images)[0]
        expected = keras.ops.softmax(expected) if head else expected
        output, relevance = found[name]
        np.testing.assert_allclose(output, expected, atol=1e-4, err_msg=name)
        expected = inspection.relevance(model, images).ravel()
        limit = 1e-3 * np.abs(expected).max()
        np.testing.assert_allclose(relevance, expected, atol=limit, err_msg=name)
