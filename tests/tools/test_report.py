"""tools/report.py: the report of a model, and errors."""

import base64
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit_programs import report, report_page
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ROOT / "tools"
MODEL = golden_data.folder("hf_vit")  # 32 x 32 pixels, patches of 8
# Only detectors have the other one.
FIGURES = [name for name in report_page.FIGURES if name != "objects.png"]


class Page(html.parser.HTMLParser):
    """The pictures, tags, links and text of a page."""

    def __init__(self, path):
        super().__init__()
        self.pictures, self.tags, self.text, self.sources = {}, [], "", []
        self.feed(re.sub("<style>(?s:.*)</style>", "", path.read_text()))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.sources += [attributes[k] for k in ("src", "href") if k in attributes]
        if tag == "img":
            kind, _, data = attributes["src"].partition(",")
            assert kind == "data:image/png;base64"
            assert len(attributes["alt"]) > 3
            self.pictures[attributes["alt"]] = base64.b64decode(data)

    def handle_data(self, data):
        self.text += f" {data}"


@pytest.fixture
def photos(tmp_path):
    """Two images of other sizes and kinds than the model's."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (40, 60, 3)).astype("uint8")
    Image.fromarray(pixels).save(folder / "a.png")
    Image.fromarray(pixels[:, :30, 0]).save(folder / "b & <c>.jpg")
    (folder / "notes.txt").write_text("no image")
    return folder


def run(*arguments):
    return report.main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_program_is_run_by_its_path(tmp_path):
    """Python then has the folder of the tools first on its path."""
    done = subprocess.run(
        [sys.executable, TOOLS / "report.py", "nowhere.npz"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    assert "no file 'nowhere.npz'" in done.stderr


@pytest.mark.slow
def test_report_contents(photos, tmp_path, capsys):
    out = tmp_path / "report"
    assert run(MODEL, photos, "--output", out) == 0
    printed = capsys.readouterr().out
    assert re.search(r"wrote .*report.html \(\d+ kB\)", printed)
    files = {path.name for path in out.iterdir()}
    assert files == {*FIGURES, "report.html"}
    page = Page(out / "report.html")
    text = page.text
    for phrase in (
        "huggingface",
        "67,447",  # parameters
        "1 class_token + 4 × 4 patches",
        "hidden_size",
        "a.png",
        "b & <c>.jpg",
    ):
        assert phrase in text, phrase
    assert "rope_base" not in text  # a default
    # The page contains all images and fetches nothing.
    inside = list(page.pictures.values())
    for name in FIGURES:
        assert (out / name).read_bytes() in inside, name
    assert len(inside) == len(FIGURES)
    assert all(source.startswith("data:") for source in page.sources)
    assert not {"script", "link", "iframe"} & set(page.tags)
    for data in inside:
        Image.open(io.BytesIO(data)).verify()
    # Five of seven classes for each of two images, best first.
    percentages = [
        float(x) for x in re.findall(r"([\d.]+)%", text.partition(" Attention ")[0])
    ]
    assert len(percentages) == 10
    assert percentages[:5] == sorted(percentages[:5], reverse=True)
    expected = keras_vit.converters.load(MODEL)
    image = np.asarray(
        Image.open(photos / "a.png").resize((32, 32), Image.Resampling.BILINEAR)
    )
    logits = expected.predict(keras_vit.preprocess_input(image[None]), verbose=0)[0]
    best = np.exp(logits - logits.max())
    np.testing.assert_allclose(
        percentages[0], 100 * (best / best.sum()).max(), atol=0.06
    )
    names = json.loads((MODEL / "config.json").read_text())["id2label"]
    assert names[str(logits.argmax())] in text

    # The same again: refused, and nothing changed, unless it is asked for.
    before = (out / "report.html").read_bytes()
    assert run(MODEL, photos, "--output", out) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (out / "report.html").read_bytes() == before
    assert run(MODEL, "--overwrite", "--output", out) == 0
    # Without images: no pictures of an earlier report stay.
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "embedding_filters.png",
        "position_similarity.png",
    }


@pytest.mark.slow
def test_keep_aspect_flag(photos, tmp_path, capsys):
    out = tmp_path / "report"
    assert run(MODEL, photos / "a.png", "--keep-aspect", "--output", out) == 0
    pixels = Image.open(out / "attention_maps.png")
    assert pixels.width > 1.3 * pixels.height


@pytest.mark.slow
def test_class_names_from_config_json_and_from_a_file(photos, tmp_path):
    model = keras_vit.VisionTransformer(
        input_shape=(8, 8, 1),
        patch_size=4,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        classes=3,
        name="small",
    )
    model.save(tmp_path / "model.keras")
    config = {"data": {"class_names": ["cat", "dog", "owl"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    image = photos / "a.png"
    run(tmp_path / "model.keras", image, "--output", tmp_path / "one")
    text = Page(tmp_path / "one" / "report.html").text
    assert "owl" in text
    assert "the head is zero" in text  # the head, as before training
    (tmp_path / "names.txt").write_text("ant\nbee\nfly\n")
    names = ("--labels", tmp_path / "names.txt")
    run(tmp_path / "model.keras", image, "--output", tmp_path / "two", *names)
    text = Page(tmp_path / "two" / "report.html").text
    assert "bee" in text
    assert "owl" not in text


def test_report_of_a_model_without_attention(photos, tmp_path):
    path = golden_data.weights_path("bit_paper")
    assert run(path, photos, "--output", tmp_path / "report") == 0
    text = Page(tmp_path / "report" / "report.html").text
    assert "resnet_layers" in text
    assert not (tmp_path / "report" / "attention.png").exists()


@pytest.mark.parametrize("given", ["grid_size=(4,6)", "input_shape=(32,48,3)"])
def test_set_flag_gives_missing_arguments(given, photos, tmp_path):
    path = golden_data.weights_path("vit_jax_gap")
    assert run(path, "--set", given, "--output", tmp_path / "report") == 0
    text = Page(tmp_path / "report" / "report.html").text
    assert "for 4 × 6 patches" in text


@pytest.mark.parametrize(
    "arguments,reason",
    [
        (["nowhere.npz", "{photos}"], "no file 'nowhere.npz'"),
        ([MODEL, "{photos}/none.png"], "no image '.*none.png'"),
        ([MODEL, "{photos}/notes.txt", "{photos}/a.png"], "notes.txt: "),
        ([MODEL, "{photos}/cut.png", "{photos}/notes.txt"], "(?s)cut.*notes"),
        ([MODEL, "{empty}"], "no image '.*empty'"),
        ([MODEL, "--output", "{photos}/a.png"], "--output .*a.png. is a file"),
        ([MODEL, "--labels", "none.txt", "{photos}/a.png"], "none.txt"),
        ([MODEL, "--from", "timm"], "cannot be read as the format 'timm'"),
        ([MODEL, "--set", "patch_size"], "--set takes name=value"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_wrong_arguments_are_reported(arguments, reason, photos, tmp_path, capsys):
    """Each error is one line with status 1, and nothing is written."""
    whole = (photos / "a.png").read_bytes()
    (photos / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    folders = {"photos": photos, "empty": tmp_path / "empty"}
    given = [str(x).format(**folders) for x in arguments]
    if "--output" not in given:
        given += ["--output", str(tmp_path / "report")]
    assert run(*given) == 1
    printed = capsys.readouterr().err
    assert re.search(reason, printed)
    assert "Traceback" not in printed
    assert not (tmp_path / "report").exists()


def test_16_bit_images_and_exif_orientation(tmp_path):
    from keras_vit_programs.images import read_images

    ramp = np.linspace(0, 65535, 12).astype("uint16").reshape(3, 4)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    (found,) = read_images([tmp_path / "ramp.png"], 1)
    np.testing.assert_array_equal(found[..., 0], (ramp // 256).astype("uint8"))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    (found,) = read_images([tmp_path / "turned.jpg"])
    assert found.shape == (8, 4, 3)
    with pytest.raises(ValueError, match="it has 1 or 3 channels, .* takes 4"):
        read_images([tmp_path / "ramp.png"], 4)
    Image.fromarray(ramp / np.float32(65535)).save(tmp_path / "unit.tif")
    with pytest.raises(ValueError, match="unit.tif: .* float32, from 0 to 1, "):
        read_images([tmp_path / "unit.tif"], 1)
    Image.fromarray(ramp / np.float32(257)).save(tmp_path / "float.tif")
    (found,) = read_images([tmp_path / "float.tif"], 3)
    expected = (ramp / np.float32(257))[..., None]
    np.testing.assert_array_equal(found, np.repeat(expected, 3, -1))
    with pytest.raises(ValueError, match="it has 1 channels, .* takes 4"):
        read_images([tmp_path / "float.tif"], 4)


def test_folder_lists_only_image_files(tmp_path):
    from keras_vit_programs.images import image_paths

    for name in ("._a.jpg", ".DS_Store", "b/c.jpg", "d.jpg/e.txt", "f.JPG"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert image_paths([tmp_path]) == [tmp_path / "f.JPG"]


PROBE = """<script>
const pictures = [...document.images];
document.body.dataset.probe = JSON.stringify({
  broken: pictures.filter(x => !x.naturalWidth).length,
  pictures: pictures.length,
  wide: document.documentElement.scrollWidth - innerWidth,
  fetched: performance.getEntriesByType("resource")
    .filter(x => !x.name.startsWith("data:")).length,
  dark: getComputedStyle(document.body).backgroundColor,
});
</script></body>"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1200])
def test_report_renders_in_a_browser(width, photos, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    assert browser, "There is no Chromium; install it with your system."
    run(MODEL, photos, "--output", tmp_path / "report")
    text = (tmp_path / "report" / "report.html").read_text()
    # Scripts are refused by the page itself: this one reports what is shown.
    policy = re.search(r"<meta http-equiv[^>]*>", text)[0]
    assert "default-src 'none'" in policy
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace(policy, "").replace("</body>", PROBE))
    done = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            f"--window-size={width},2000",
            "--virtual-time-budget=2000",
            "--dump-dom",
            probed.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    printed = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert printed, done.stderr
    found = json.loads(html.unescape(printed[1]))
    assert found["pictures"] == len(FIGURES)
    assert found["broken"] == found["fetched"] == 0
    assert found["wide"] <= 0
