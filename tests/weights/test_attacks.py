"""Hostile files through every loader: one error that names the file, and no
code is run, no other file is read and nothing is asked for."""

import ast
import contextlib
import copy
import json
import pathlib
import runpy
import subprocess
import sys
import tracemalloc
import urllib.request
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import convert
from keras_vit import exporting
from keras_vit.data.huggingface import to_pixels
from keras_vit.data.masks import read_image
from keras_vit.downloads import cache
from keras_vit.evaluation import load_classifier
from keras_vit.inspection import command_line as report
from keras_vit.inspection import images
from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import torch as torch_files
from tests import attacks
from tests import server
from tests.fuzzing import readers
from tests.pretraining.small import DECODER
from tests.pretraining.small import encoder

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[2]


def classifier():
    return readers.tiny_model()


def dino():
    return keras_vit.pretraining.DINO(
        encoder(), output_dim=8, hidden_dim=8, bottleneck_dim=4
    )


def mae():
    return keras_vit.pretraining.MaskedAutoencoder(encoder(), **DECODER)


def foreign():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(2, 3),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2, "softmax"),
        ]
    )


MODELS = {"vit": classifier, "dino": dino, "mae": mae, "foreign": foreign}


def program(main, *more):
    """Runs a program, which must print one line instead of a traceback."""

    def run(path):
        if main([str(path), *more]):
            raise SystemExit(1)

    return run


# Loaders that let Keras build the model of a .keras file.
BUILDERS = {
    "load": keras_vit.converters.load,
    "pretraining.load": keras_vit.pretraining.load,
    "classifier": lambda path: load_classifier(str(path)),
    "export": program(exporting.main, "out.onnx"),
    "hub": program(convert.main, "hub", "--to", "hub"),
    "hub.save": lambda path: keras_vit.hub.save(path, "hub"),
    "report": program(report.main, "--out", "report"),
    "Keras": keras_vit.models.load_keras_file,
}
# These read the arrays only, and may ignore what a config names.
READERS = {
    "open_checkpoint": open_checkpoint,
    "inspect": program(convert.main, "--inspect"),
    "convert": program(convert.main, "out.npz"),
    "segmentation.load": keras_vit.segmentation.load,
    "weights": lambda path: readers.tiny_model(weights=path),
}
LOADERS = {**BUILDERS, **READERS}
OF_KIND = {
    "vit": set(LOADERS) - {"pretraining.load"},
    "dino": {"pretraining.load", "Keras", "open_checkpoint", "convert"},
    "mae": {"pretraining.load", "Keras", "open_checkpoint", "convert"},
    "foreign": {"export", "Keras"},
}


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harmless")
    for name, make in MODELS.items():
        make().save(folder / f"{name}.keras")
    return folder


@pytest.fixture(scope="module")
def site():
    with server.running() as site:
        yield site


@pytest.fixture
def trap(tmp_path, monkeypatch, site):
    """A path that no loader may touch, beside a package that none may
    import."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "packages" / "keras_cv"
    package.mkdir(parents=True)
    trap = tmp_path / "trap"
    for name in ("__init__", "layers"):
        (package / f"{name}.py").write_text(f"open({str(trap)!r}, 'w')")
    monkeypatch.syspath_prepend(str(package.parent))
    # Other tests of the same process may have imported the real package.
    for name in [x for x in sys.modules if x.split(".")[0] == "keras_cv"]:
        monkeypatch.delitem(sys.modules, name)

    def refuse(*arguments, **options):
        raise AssertionError("a file was unpacked or unpickled")

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "load", refuse)
    site.hits.clear()
    mode = keras.src.saving.serialization_lib.in_safe_mode()
    yield trap
    assert not trap.exists()
    assert not site.hits
    assert "keras_cv" not in sys.modules
    assert keras.src.saving.serialization_lib.in_safe_mode() is mode


def refused(name, path, capsys, always=True):
    """A loader refuses a file by one error that names it."""
    try:
        LOADERS[name](path)
    except (ValueError, FileNotFoundError) as error:
        assert path.name in str(error), name
        assert "\x1b" not in str(error)
    except SystemExit:
        err = capsys.readouterr().err
        assert "error: " in err and path.name in err, name
        assert "Traceback" not in err and "\x1b" not in err
    else:
        assert not always, f"{name} loads it"


@pytest.mark.slow
@pytest.mark.parametrize("attack", attacks.LAYERS)
def test_no_loader_runs_code_of_a_config(attack, harmless, trap, site, capsys):
    """A classifier through every loader; other models through their own."""
    evil = attacks.LAYERS[attack](trap, site.url)
    path = trap.parent / "evil.keras"
    for model, names in (
        ("vit", sorted(OF_KIND["vit"])),
        ("dino", ["pretraining.load"]),
        ("foreign", ["export"]),
    ):
        attacks.rewrite(
            harmless / f"{model}.keras",
            path,
            lambda config: attacks.add_layer(config, copy.deepcopy(evil)),
        )
        for name in names:
            refused(name, path, capsys, always=name in BUILDERS)


@pytest.mark.parametrize("model", MODELS)
def test_only_keras_files_with_a_hostile_tree_are_refused(
    model, harmless, trap, capsys
):
    assert keras_vit.models.load_keras_file(harmless / f"{model}.keras")
    path = trap.parent / "evil.keras"
    doors = {"load", "pretraining.load", "export", "Keras"} & OF_KIND[model]
    for change in attacks.TREES.values():
        attacks.linked(
            harmless / f"{model}.keras",
            path,
            lambda file, change=change: change(file, trap),
        )
        for name in doors:
            refused(name, path, capsys)


def large_models(harmless, path):
    """Writes models whose arrays do not have the sizes of their config."""
    names = list(attacks.SIZES)
    for model, some in (("vit", names), ("foreign", names[:1])):
        for name in some:
            evil = attacks.SIZES[name](path, "")
            attacks.rewrite(
                harmless / f"{model}.keras",
                path,
                lambda config, evil=evil: attacks.add_layer(config, evil),
            )
            yield f"{model} {name}"
    for model, name in (
        ("dino", "output_dim"),
        ("dino", "hidden_dim"),
        ("mae", "decoder_num_layers"),
        ("mae", "decoder_mlp_dim"),
    ):
        attacks.rewrite(
            harmless / f"{model}.keras",
            path,
            lambda config, n=name: {
                **config,
                "config": {**config["config"], n: 2**31},
            },
        )
        yield f"{model} {name}"


@pytest.mark.slow  # a new process
def test_models_that_are_larger_than_their_arrays_use_no_memory(
    harmless, tmp_path
):
    code = (
        "import pathlib, resource\n"
        "from tests.weights import test_attacks as t\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / 'evil.keras'\n"
        f"for what in t.large_models(pathlib.Path({str(harmless)!r}), p):\n"
        "    t.refuses(p, what)\n"
        "more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used\n"
        "assert more < 2**18, f'{more} KiB'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def refuses(path, what):
    try:
        keras_vit.models.load_keras_file(path)
    except ValueError as error:
        assert path.name in str(error)
    else:
        raise AssertionError(f"{what} is loaded")


def test_keras_reads_files_in_one_place():
    """All other modules go through the checks of `load_keras_file`."""
    found = set()
    for top in ("keras_vit", "recipes", "tools"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(code := path.read_text())):
                name = getattr(node, "attr", getattr(node, "id", None))
                imports = {
                    alias.name
                    for alias in getattr(node, "names", ())
                    if isinstance(alias, ast.alias)
                }
                if name in ("load_model", "extractall", "model_from_json"):
                    found.add((str(path.relative_to(ROOT)), name))
                if "tarfile" in imports:
                    found.add((str(path.relative_to(ROOT)), "tarfile"))
            if "torch.load(" in code:
                found.add((str(path.relative_to(ROOT)), "torch.load"))
    assert found == {
        ("keras_vit/models/keras_file.py", "load_model"),
        # It reads two named files of an archive whose SHA-256 is verified, and
        # extracts none.
        ("keras_vit/web/__init__.py", "tarfile"),
    }


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.h5"])
def test_legacy_hdf5_model_with_code_is_refused(name, trap, capsys):
    path = trap.parent / name
    legacy = trap.parent / "legacy.h5"
    lambda_layer = keras.layers.Lambda(eval(attacks.writing(trap)))
    keras.Sequential([keras.Input((4, 4, 3)), lambda_layer]).save(legacy)
    trap.unlink(missing_ok=True)  # building it calls the function
    legacy.rename(path)
    for loader in LOADERS:
        refused(loader, path, capsys)


def test_folders_of_orbax_are_refused(trap, capsys):
    path = trap.parent / "folder"
    (path / "assets").mkdir(parents=True)
    (path / "pytree.orbax-checkpoint").write_bytes(b"")
    (path / "rng_state.pth").write_bytes(
        b"cos\nsystem\nX\x01\x00\x00\x00x\x85R."
    )
    for loader in set(LOADERS) - {"Keras"}:
        refused(loader, path, capsys)
    (path / "config.json").write_text("{}")
    keras_folder = path.rename(trap.parent / "folder.keras")
    for loader in LOADERS:
        refused(loader, keras_folder, capsys)


@pytest.mark.parametrize("entry", [bytes(16), b"\1" + bytes(7) + b"\xff" * 8])
@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
def test_heaps_with_endless_free_space_are_refused(name, entry, tmp_path):
    model = classifier()
    model.save_weights(tmp_path / "a.weights.h5")
    content = bytearray((tmp_path / "a.weights.h5").read_bytes())
    start = content.index(b"GCOL")
    position = start + 16
    while content[position]:  # the number of an entry
        size = int.from_bytes(content[position + 8 : position + 16], "little")
        position += 16 + (size + 7) // 8 * 8
    # The second entry is so large that its end is before it in 64 bits, at an
    # entry without a size.
    content[position : position + 16] = entry
    if name == "a.keras":
        model.save(tmp_path / name)
        with zipfile.ZipFile(tmp_path / name) as archive:
            config = archive.read("config.json")
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("config.json", config)
            archive.writestr("model.weights.h5", content)
    else:
        (tmp_path / name).write_bytes(content)
    for loader in ("load", "Keras") if name == "a.keras" else ("load",):
        with pytest.raises(ValueError, match="its heap of texts is damaged"):
            LOADERS[loader](tmp_path / name)


@pytest.mark.parametrize("members", ["twice", "bomb", "link"])
def test_archives_made_to_harm_are_refused(members, harmless, trap, capsys):
    path = trap.parent / "evil.keras"
    path.write_bytes((harmless / "foreign.keras").read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        if members == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("config.json", "{}")
        elif members == "bomb":
            archive.writestr("more", bytes(10**8))
        else:
            link = zipfile.ZipInfo("assets")
            link.external_attr = 0o120777 << 16
            archive.writestr(link, "/etc")
    for loader in LOADERS:
        refused(loader, path, capsys)


EVIL_LABEL = "\x1b]0;x\x07\u202e<script>alert(1)</script>"


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """A folder of a model whose config.json has hostile names and keys."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "labelled"
    keras_vit.converters.save(
        keras_vit.VisionTransformer(
            patch_size=4,
            hidden_size=8,
            num_layers=1,
            num_heads=1,
            mlp_dim=8,
            input_shape=(8, 8, 3),
            classes=2,
        ),
        folder,
    )
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["id2label"] = {"0": EVIL_LABEL, "1": "cat"}
    config |= {
        "_attn_implementation_internal": "owner/kernel",
        "auto_map": {"AutoModel": "owner/code--model.Model"},
        "trust_remote_code": True,
        "config": {"dataset": EVIL_LABEL, "mode": "tf"},
    }
    path.write_text(json.dumps(config))
    for name in ("rng_state.pth", "optimizer.pt"):
        (folder / name).write_bytes(b"cos\nsystem\nX\x01\x00\x00\x00x\x85R.")
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), "uint8")
    keras.utils.save_img(tmp_path / "a.png", image)
    return folder


@pytest.mark.slow  # a recipe
def test_predictions_escape_class_names(labelled, capsys, monkeypatch):
    flags = ["--weights", str(labelled), "--images", "a.png", "--output", "p"]
    monkeypatch.setattr(sys, "argv", ["predict.py", *flags])
    with contextlib.suppress(SystemExit):
        runpy.run_path(
            str(ROOT / "recipes" / "predict.py"), run_name="__main__"
        )
    out = "".join(capsys.readouterr())
    assert r"\x1b]0;x\x07\u202e" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    csv = pathlib.Path("p/predictions.csv").read_text()
    assert not {"\x1b", "\x07"} & set(csv)


def test_report_escapes_class_names(labelled, capsys):
    assert report.main([str(labelled), "a.png", "--out", "report"]) == 0
    page = pathlib.Path("report/report.html").read_text()
    assert "<script" not in page and r"\x1b]0;x\x07" in page
    assert "\x1b" not in page + "".join(capsys.readouterr())


def test_hub_folder_has_no_hostile_names_or_keys(labelled, capsys):
    assert convert.main([str(labelled), "hub", "--to", "hub"]) == 0
    assert keras_vit.hub.save(labelled, "hub", overwrite=True)
    config = pathlib.Path("hub/config.json").read_text()
    card = pathlib.Path("hub/README.md").read_text()
    for text in (config, card, "".join(capsys.readouterr())):
        assert "\x1b" not in text and "\\u001b" not in text
        for key in ("_attn_implementation", "auto_map", "trust_remote_code"):
            assert key not in text
    names = {path.name for path in pathlib.Path("hub").iterdir()}
    assert not {"rng_state.pth", "optimizer.pt"} & names


def test_files_beside_the_weights_are_not_opened(labelled, monkeypatch):
    opened = set()
    unpickle = torch_files.read_torch

    def read(path):
        opened.add(path.name)
        return unpickle(path)

    monkeypatch.setattr(torch_files, "read_torch", read)
    keras_vit.converters.load(labelled)
    load_classifier(str(labelled))
    assert not opened


@pytest.mark.parametrize(
    "target,message",
    [
        ("file:///etc/hostname", "302"),
        ("ftp://127.0.0.1/x", "not https"),
    ],
)
def test_redirects_to_other_protocols_are_refused(
    target, message, site, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path))

    def redirect(handler, body):
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    site.behave["a.npz"] = redirect
    with pytest.raises(OSError, match=message):
        open_checkpoint(site.url + "a.npz")


def test_redirects_from_https_to_http_are_refused():
    request = urllib.request.Request("https://example.com/a.npz")
    follow = cache._Redirects().redirect_request
    arguments = (None, 302, "Found", {})
    assert follow(request, *arguments, "https://other.example/a.npz")
    with pytest.raises(OSError, match="redirects to 'http://other"):
        follow(request, *arguments, "http://other.example/a.npz")


def test_images_of_rare_formats_are_refused(tmp_path):
    psd = b"8BPS\x00\x01" + bytes(6) + b"\x00\x03" + bytes(3) + b"\x08"
    psd += bytes(3) + b"\x08\x00\x08\x00\x03" + bytes(14) + bytes(200)
    path = tmp_path / "a.png"
    path.write_bytes(psd)
    for read in (
        lambda: images.read_images([path]),
        lambda: read_image(path),
        lambda: to_pixels({"path": str(path)}, 3),
    ):
        with pytest.raises((ValueError, OSError), match="a.png"):
            read()


@pytest.mark.parametrize("suffix", [".npz", ".pth", ".keras"])
@pytest.mark.parametrize("damage", ["a long member", "several disks"])
def test_archives_with_wrong_records_are_refused(
    damage, suffix, trap, harmless, capsys
):
    path = trap.parent / f"evil{suffix}"
    content = bytearray((harmless / "vit.keras").read_bytes())
    if damage == "a long member":  # more than 3 GB, in its last record
        place = content.rindex(b"PK\x01\x02") + 20
        content[place : place + 4] = (2**32 - 2).to_bytes(4, "little")
    else:
        end = content.rindex(b"PK\x05\x06")
        locator = b"PK\x06\x07" + bytes(12) + (9).to_bytes(4, "little")
        content[end:end] = locator
    path.write_bytes(content)
    tracemalloc.start()
    refused("load", path, capsys)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26
    refused("convert", path, capsys)
    refused("export", path, capsys)
