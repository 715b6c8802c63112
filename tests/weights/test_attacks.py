"""Hostile files through every loader: one error that names the file, and no
code is run, no other file is read and nothing is asked for."""

import ast
import contextlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tracemalloc
import urllib.request
import zipfile

import h5py
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.masks import read_image
from keras_vit.evaluation import load_classifier
from keras_vit.models.keras_file import load_keras_file
from keras_vit.utils.downloads import cache
from keras_vit.utils.images import to_pixels
from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import archives, read
from keras_vit.weights.files import torch as torch_files
from keras_vit_programs import convert, images
from keras_vit_programs import export as export_program
from keras_vit_programs import report as report
from tests import attacks, server
from tests.fuzzing.readers import tiny_model
from tests.pretraining.small import DECODER, encoder

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[2]
MODELS = {
    "vit": tiny_model,
    "dino": lambda: keras_vit.pretraining.DINO(
        encoder(), output_dim=8, hidden_dim=8, bottleneck_dim=4
    ),
    "mae": lambda: keras_vit.pretraining.MaskedAutoencoder(encoder(), **DECODER),
    "foreign": lambda: keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(2, 3),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2, "softmax"),
        ]
    ),
}


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
    "export": program(export_program.main, "out.onnx"),
    "hub": program(convert.main, "hub", "--to", "hub"),
    "hub.save": lambda path: keras_vit.hub.save(path, "hub"),
    "report": program(report.main, "--output", "report"),
    "Keras": load_keras_file,
}
# These read the arrays only, and may ignore what a config names.
READERS = {
    "open_checkpoint": open_checkpoint,
    "inspect": program(convert.main, "--inspect"),
    "convert": program(convert.main, "target.npz", "--overwrite"),
    "load": keras_vit.load,
    "weights": lambda path: tiny_model(weights=path),
}
LOADERS = {**BUILDERS, **READERS}


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
    """A path that no loader may touch, beside a package that none may import
    and a file that none may replace."""
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
    (tmp_path / "target.npz").write_text("before")
    mode = keras.src.saving.serialization_lib.in_safe_mode()
    yield trap
    assert (tmp_path / "target.npz").read_text() == "before"
    assert not trap.exists()
    assert not site.hits
    assert "keras_cv" not in sys.modules
    assert keras.src.saving.serialization_lib.in_safe_mode() is mode


def refused(name, path, capsys, message=""):
    """A loader refuses a file by one error that names it, and writes none."""
    there = set(os.listdir())
    with pytest.raises((ValueError, FileNotFoundError, SystemExit)) as caught:
        LOADERS[name](path)
    out, text = capsys.readouterr()
    if caught.type is SystemExit:
        assert not out or name in ("export", "report"), out
        assert "error: " in text and "Traceback" not in text, name
    else:
        text = str(caught.value)
        assert caught.match(message)
    assert path.name in text and "\x1b" not in text, name
    assert set(os.listdir()) == there


@pytest.mark.parametrize("kind", attacks.FILES, ids=" ".join)
def test_crafted_file_is_refused(kind, trap, capsys):
    data, message = attacks.FILES[kind]
    path = trap.parent / f"a{kind[1]}"
    path.write_bytes(data)
    refused("open_checkpoint", path, capsys, message)
    for name in ("inspect", "convert"):
        refused(name, path, capsys)


@pytest.mark.parametrize("attack", attacks.LAYERS)
def test_no_code_of_a_config_is_run(attack, harmless, trap, site):
    evil, path = attacks.layers(trap, site.url)[attack], trap.parent / "a.keras"
    attacks.rewrite(harmless / "vit.keras", path, lambda x: attacks.add_layer(x, evil))
    with pytest.raises(ValueError, match=r"a\.keras' is refused"):
        load_keras_file(path)
    with contextlib.suppress(ValueError):
        tiny_model(weights=path)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["lambda", "an absolute path", "StringLookup"])
def test_no_loader_runs_code_of_a_config(attack, harmless, trap, site, capsys):
    """A classifier through every loader; other models through their own."""
    found = attacks.layers(trap, site.url)
    evil = found.get(attack, attacks.dense(name=str(trap)))
    path = trap.parent / "evil.keras"
    for model, names in (
        ("vit", BUILDERS.keys() - {"pretraining.load"}),
        ("dino", ["pretraining.load"]),
        ("foreign", ["export"]),
    ):
        attacks.rewrite(
            harmless / f"{model}.keras",
            path,
            lambda config: attacks.add_layer(config, evil),
        )
        for name in sorted(names):
            refused(name, path, capsys)
    for name in ("load", "weights"):
        with contextlib.suppress(ValueError, FileNotFoundError):
            READERS[name](path)


@pytest.mark.parametrize("model", MODELS)
def test_only_keras_files_with_a_hostile_tree_are_refused(model, harmless, trap):
    assert load_keras_file(harmless / f"{model}.keras")
    path = trap.parent / "evil.keras"
    for change, message in attacks.TREES.values():
        attacks.rewrite(harmless / f"{model}.keras", path, tree=change)
        with pytest.raises(ValueError, match=f"(?s)evil.keras.*{message}"):
            load_keras_file(path)


def large_models(harmless, path):
    """Writes models whose arrays do not have the sizes of their config."""
    cases = [
        (model, lambda config, evil=evil: attacks.add_layer(config, evil))
        for model, names in (
            ("vit", list(attacks.SIZES)),
            ("foreign", ["a dense layer"]),
        )
        for evil in (attacks.SIZES[name] for name in names)
    ]
    for model, field in (
        ("dino", "output_dim"),
        ("dino", "hidden_dim"),
        ("mae", "decoder_num_layers"),
        ("mae", "decoder_mlp_dim"),
    ):
        more = {field: 2**31}
        cases.append((model, lambda x, more=more: {**x, "config": x["config"] | more}))
    for model, change in cases:
        attacks.rewrite(harmless / f"{model}.keras", path, change)
        try:
            load_keras_file(path)
        except ValueError as error:
            assert path.name in str(error)
        else:
            raise AssertionError(f"{model} is loaded")


@pytest.mark.slow  # a new process
def test_models_that_are_larger_than_their_arrays_use_no_memory(harmless, tmp_path):
    code = (
        "import pathlib, resource\n"
        "from tests.weights import test_attacks as t\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / 'evil.keras'\n"
        f"t.large_models(pathlib.Path({str(harmless)!r}), p)\n"
        "more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used\n"
        "assert more < 2**18, f'{more} KiB'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_keras_reads_files_in_one_place():
    """All other modules go through the checks of `load_keras_file`."""
    readers = ("load_model", "extractall", "model_from_json")
    found = set()
    for top in ("keras_vit", "recipes", "tools"):
        for path in (ROOT / top).rglob("*.py"):
            names = set()
            for node in ast.walk(ast.parse(code := path.read_text())):
                names.add(getattr(node, "attr", getattr(node, "id", None)))
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names} & {"tarfile"}
            names |= {"torch.load"} if "torch.load(" in code else set()
            for name in names & {*readers, "tarfile", "torch.load"}:
                found.add((str(path.relative_to(ROOT)), name))
    assert found == {
        ("keras_vit/models/keras_file.py", "load_model"),
        # It reads two named files of an archive whose SHA-256 is verified, and
        # extracts none.
        ("keras_vit/exporting/web/__init__.py", "tarfile"),
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
    (path / "rng_state.pth").write_bytes(attacks.call("os.system"))
    for loader in set(LOADERS) - {"Keras"}:
        refused(loader, path, capsys)
    (path / "config.json").write_text("{}")
    keras_folder = path.rename(trap.parent / "folder.keras")
    for loader in LOADERS:
        refused(loader, keras_folder, capsys)


@pytest.mark.parametrize("entry", [bytes(16), b"\1" + bytes(7) + b"\xff" * 8])
def test_heaps_with_endless_free_space_are_refused(entry, harmless, tmp_path):
    path = tmp_path / "a.weights.h5"
    tiny_model().save_weights(path)
    content = bytearray(path.read_bytes())
    position = content.index(b"GCOL") + 16
    while content[position]:  # the number of an entry
        size = int.from_bytes(content[position + 8 : position + 16], "little")
        position += 16 + (size + 7) // 8 * 8
    # The second entry is so large that its end is before it in 64 bits, at an
    # entry without a size.
    content[position : position + 16] = entry
    path.write_bytes(content)
    with zipfile.ZipFile(harmless / "vit.keras") as archive:
        config = archive.read("config.json")
    members = ("config.json", config), ("model.weights.h5", content)
    (tmp_path / "a.keras").write_bytes(attacks.archive(*members))
    for load, name in (
        (keras_vit.converters.load, "a.weights.h5"),
        (keras_vit.converters.load, "a.keras"),
        (load_keras_file, "a.keras"),
    ):
        with pytest.raises(ValueError, match="its heap of texts is damaged"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    "members, message",
    [("twice", "twice"), ("bomb", "claims to hold"), ("link", "'assets', a l")],
)
def test_archives_made_to_harm_are_refused(members, message, harmless, trap, capsys):
    path = trap.parent / "evil.keras"
    path.write_bytes((harmless / "foreign.keras").read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        if members == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("config.json", "{}")
        elif members == "bomb":
            archive.writestr("more", bytes(10**8))
        else:
            archive.writestr(attacks.linked("assets"), "/etc")
    refused("Keras", path, capsys, message)
    for loader in LOADERS:
        refused(loader, path, capsys)


def test_archives_of_many_members_are_refused(trap, capsys, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    members = [(name, attacks.npy()) for name in "abc"]
    path = trap.parent / "a.npz"
    path.write_bytes(attacks.archive(*members))
    refused("open_checkpoint", path, capsys, "more than 2 files")


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
    for name in ("convert", "export"):
        refused(name, path, capsys)


@pytest.mark.parametrize(
    "ending", [".npz", ".safetensors", ".pth", ".keras", ".weights.h5"]
)
def test_pipes_devices_and_folders_are_refused(ending, trap, capsys):
    path = trap.parent / f"a{ending}"
    for make in attacks.PIPES:
        make(path)
        for name in ("open_checkpoint", "inspect"):
            refused(name, path, capsys, "is not a file, but a pipe or a device")
        path.unlink()
    path.mkdir()
    refused("open_checkpoint", path, capsys, "folder")


def test_unused_large_stride_is_accepted(tmp_path):
    data = attacks.pth(attacks.rebuilt(shape=1, stride=2**62))
    (tmp_path / "a.pth").write_bytes(data)
    assert read(tmp_path / "a.pth")["cls"].tolist() == [0.0]


CONFIGS = {
    "num_attention_heads": (0, -1, 1.5, "2", True, None, [], 2**70),
    "hidden_act": ([], {}, None, 3),
    "layer_norm_eps": ("1e-6", 0, -1, float("nan"), float("inf"), []),
}


def test_wrong_config_values_raise(tmp_path):
    keras_vit.converters.save(tiny_model(), tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    for name, values in CONFIGS.items():
        for value in values:
            path.write_text(json.dumps({**config, name: value}))
            with pytest.raises(ValueError, match=f"a' .*'{name}' in its con"):
                open_checkpoint(tmp_path / "a")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="config.json' is not a file"):
        open_checkpoint(tmp_path / "a")


def test_the_arrays_decide_on_sizes(tmp_path):
    """Not a number in a name or in a file's notes."""
    path = tmp_path / "a.npz"
    keras_vit.converters.save(tiny_model(), path)
    arrays = read(path)
    far = {
        key.replace("encoderblock_0", "encoderblock_999999999"): array
        for key, array in arrays.items()
    }
    np.savez(path, **{**arrays, **far})
    with pytest.raises(ValueError, match="encoderblock_1/"):
        keras_vit.converters.load(path)
    path = tmp_path / "a.weights.h5"
    keras_vit.converters.save(tiny_model(), path)
    with h5py.File(path, "r+") as file:
        notes = json.loads(file.attrs["keras_vit"])
        notes["architecture"]["num_layers"] = 10**9
        file.attrs["keras_vit"] = json.dumps(notes)
    names = [layer.name for layer in keras_vit.converters.load(path).layers]
    assert "block_0" in names and "block_1" not in names


def test_newer_hdf5_files_are_read(tmp_path):
    path, newer = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
    keras_vit.converters.save(tiny_model(), path)
    with h5py.File(path) as old, h5py.File(newer, "w", libver="latest") as new:
        for key in old:
            old.copy(key, new)
        new.attrs.update(old.attrs)
    expected, found = open_checkpoint(path), open_checkpoint(newer)
    assert found.arguments() == expected.arguments()
    assert found.weights.keys() == expected.weights.keys()
    for key, array in expected.weights.items():
        np.testing.assert_array_equal(found.weights[key], array)
    newer.write_bytes(newer.read_bytes()[:5000])
    with pytest.raises(ValueError, match="b.weights.h5' is not a"):
        open_checkpoint(newer)


EVIL_LABEL = "\x1b]0;x\x07\u202e<script>alert(1)</script>"


@pytest.fixture
def labeled(tmp_path, monkeypatch):
    """A folder of a model whose config.json has hostile names and keys."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "labeled"
    keras_vit.converters.save(tiny_model(), folder)
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
        (folder / name).write_bytes(attacks.call("os.system"))
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), "uint8")
    keras.utils.save_img(tmp_path / "a.png", image)
    return folder


@pytest.mark.slow  # a recipe
def test_predictions_escape_class_names(labeled, capsys, monkeypatch):
    flags = ["--weights", str(labeled), "--images", "a.png", "--output", "p"]
    monkeypatch.setattr(sys, "argv", ["predict.py", *flags])
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(ROOT / "recipes" / "predict.py"), run_name="__main__")
    out = "".join(capsys.readouterr())
    assert r"\x1b]0;x\x07\u202e" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    csv = pathlib.Path("p/predictions.csv").read_text()
    assert not {"\x1b", "\x07"} & set(csv)


def test_report_escapes_class_names(labeled, capsys):
    assert report.main([str(labeled), "a.png", "--output", "report"]) == 0
    page = pathlib.Path("report/report.html").read_text()
    assert "<script" not in page and r"\x1b]0;x\x07" in page
    assert "\x1b" not in page + "".join(capsys.readouterr())


def test_hub_folder_has_no_hostile_names_or_keys(labeled, capsys):
    assert convert.main([str(labeled), "hub", "--to", "hub"]) == 0
    assert keras_vit.hub.save(labeled, "hub", overwrite=True)
    config = pathlib.Path("hub/config.json").read_text()
    card = pathlib.Path("hub/README.md").read_text()
    for text in (config, card, "".join(capsys.readouterr())):
        assert "\x1b" not in text and "\\u001b" not in text
        for key in ("_attn_implementation", "auto_map", "trust_remote_code"):
            assert key not in text
    names = {path.name for path in pathlib.Path("hub").iterdir()}
    assert not {"rng_state.pth", "optimizer.pt"} & names


def test_files_beside_the_weights_are_not_opened(labeled, monkeypatch):
    opened = []
    monkeypatch.setattr(torch_files, "read_torch", opened.append)
    keras_vit.converters.load(labeled)
    load_classifier(str(labeled))
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
    for read_one in (
        lambda: images.read_images([path]),
        lambda: read_image(path),
        lambda: to_pixels({"path": str(path)}, 3),
    ):
        with pytest.raises((ValueError, OSError), match="a.png"):
            read_one()
