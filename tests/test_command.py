"""The command `keras-vit`; `tests/wheel.py` runs it from a wheel."""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys

import pytest

import keras_vit
import keras_vit_programs.command as command
from keras_vit_programs import run_folder
from tests.recipes.runs import folders
from tests.small import tiny

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["keras-vit"])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # --help adds to it
    # Commands replace it.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return tmp_path


@pytest.mark.parametrize(
    "installed, variable, keras_json, expected",
    [
        ("torch", "", None, "torch"),
        ("jax torch", "", {"backend": "tensorflow"}, "jax"),
        ("tensorflow torch", "", None, ""),
        ("torch", "", {"backend": "jax"}, ""),
        ("torch", "tensorflow", None, "tensorflow"),
        ("", "", None, ""),
    ],
)
def test_an_installed_backend_is_taken(
    installed, variable, keras_json, expected, folder, monkeypatch
):
    """Where Keras would take TensorFlow, which is not installed."""
    monkeypatch.setenv("KERAS_BACKEND", variable)
    monkeypatch.setenv("KERAS_HOME", str(folder))
    if keras_json:
        (folder / "keras.json").write_text(json.dumps(keras_json))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: (
            name in installed.split()
            if name in ("jax", "tensorflow", "torch")
            else find(name, *given)
        ),
    )
    taken = []
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda name: taken.append(os.environ["KERAS_BACKEND"]),
    )
    with pytest.raises(AttributeError):  # of the module None
        command.main(["report"])
    assert taken == [expected]


PROGRAMS = [name for name in command.COMMANDS if name != "serve-page"]


HELP = """
import contextlib, sys
from keras_vit_programs import command
with contextlib.suppress(SystemExit):
    command.main(sys.argv[1:])
assert not [x for x in sys.modules if x.startswith(("keras.", "tensorflow"))]
"""


@pytest.mark.parametrize("name", ["", *PROGRAMS])
def test_help_does_not_wait_for_keras(name, folder, capsys):
    """It is the same with Keras, which these tests have imported."""
    given = [name, "--help"] if name else []
    found = subprocess.run(
        [sys.executable, "-c", HELP, *given],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(command.recipes().parent)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert 0 < max(map(len, found.stdout.splitlines())) <= 80
    with pytest.raises(SystemExit) if name else contextlib.nullcontext():
        command.main(given)
    assert capsys.readouterr().out == found.stdout


@pytest.mark.parametrize(
    "given, words",
    [
        ("--version", "keras-vit "),
        ("new --help", "usage: keras-vit new RECIPE"),
        ("serve-page --help", "usage: keras-vit serve-page"),
    ],
)
def test_what_is_asked_first_is_answered(given, words, capsys):
    assert command.main(given.split()) == 0
    assert words in capsys.readouterr().out


def test_help_of_a_recipe_names_the_command(capsys):
    """A wheel has no file of a recipe."""
    with pytest.raises(SystemExit):
        command.main(["predict", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: keras-vit predict [WEIGHTS] [IMAGES] [FLAGS]")
    assert "keras-vit predict --weights runs/photos" in text
    assert "recipes/" not in text


# One process runs all commands, as its imports take most of the time.
COMMANDS = """
import os, sys, tempfile
from keras_vit_programs import command
for line in sys.stdin.read().splitlines():
    with tempfile.TemporaryFile() as lines:
        stderr = os.dup(2)
        os.dup2(lines.fileno(), 2)
        try:
            status = command.main(line.split())
        except SystemExit as stopped:
            status = stopped.code
        os.dup2(stderr, 2)
        lines.seek(0)
        found = lines.read().decode()
    if status or found:
        sys.exit(f"{line} returned {status} and printed: {found}")
"""
_SMALL = "--model compact-vit --image-size 16 --patch-size 8 --steps 2 --batch-size 4"
_DENSE = "--image-size 16 --patch-size 4 --steps 2 --batch-size 2"
READING = """
evaluate model.keras sizes --output runs/1
predict model.keras sizes/test --max-tokens 5 --output runs/2
"""
LINES = f"""
train sizes {_SMALL} --augment light1 --mixup 0.1 --erase 0.1
train sizes {_SMALL} --max-tokens 5 --output runs/tokens
predict runs/sizes sizes/test
predict runs/tokens sizes/test --output runs/1
explain runs/tokens sizes/test
evaluate runs/tokens --output runs/2
report runs/sizes sizes/test/a/0.png
convert runs/sizes --inspect
detect squares {_DENSE} --output runs/boxes
predict runs/boxes squares/test/images --output runs/3
segment squares {_DENSE} --output runs/masks
"""
EXPORTS = {
    "jax": ["served"],
    "tensorflow": ["served", "sizes.onnx", "sizes.tflite"],
    "torch": ["sizes.pt2", "sizes.xml", "page --to web --set preprocessing=tf"],
}


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow", "torch")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("reading", marks=pytest.mark.backends("jax", "tensorflow")),
        pytest.param("all", marks=pytest.mark.suite("torch")),
        pytest.param("exports", marks=pytest.mark.nightly),
    ],
)
def test_commands_print_no_lines_of_other_libraries(kind, folder):
    folders(folder)
    model = tiny(classes=2, input_shape=(16, 16, 3))
    model.class_names = ["a", "b"]
    model.save("model.keras")
    written = EXPORTS[os.environ["KERAS_BACKEND"]]
    exports = "\n".join(f"export model.keras {x}" for x in written)
    lines = {"reading": READING, "all": LINES, "exports": exports}[kind]
    environment = {**os.environ, "PYTHONPATH": str(command.recipes().parent)}
    del environment["TF_CPP_MIN_LOG_LEVEL"]  # that of the tests
    found = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=lines.strip(),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not found.stderr, found.stderr


def test_help_names_all_commands(capsys):
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    for name in [*command.COMMANDS, "new"]:
        assert f"\n  {name} " in printed


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        (["train", "a b"], ["--dataset", "a b"]),
        (["train", "--steps", "3"], ["--steps", "3"]),
        (
            ["predict", "run", "a.png", "b.png", "--top", "3"],
            ["--weights", "run", "--images", "a.png", "b.png", "--top", "3"],
        ),
        (
            ["explain", "run", "a.png"],
            ["--explain", "--weights", "run", "--images", "a.png"],
        ),
    ],
)
def test_recipes_receive_flags(values, flags, monkeypatch):
    ran = []
    monkeypatch.setattr(
        importlib.machinery.SourceFileLoader,
        "exec_module",
        lambda self, _: ran.append([self.path, *sys.argv]),
    )
    command.main(values)
    recipe = command.COMMANDS[values[0]][0].split()[0]
    program = f"keras-vit {values[0]}"
    assert ran == [[str(command.recipes() / recipe), program, *flags]]


def test_module_runs(capsys):
    assert command.main(["convert", "missing.npz", "--inspect"]) == 1
    assert "missing.npz" in capsys.readouterr().err


def test_new_copies_a_recipe_once(folder, capsys):
    assert command.main(["new", "finetune"]) == 0
    copy = folder / "finetune_cifar.py"
    original = command.recipes() / copy.name
    assert copy.read_bytes() == original.read_bytes()
    copy.write_text("mine")
    assert command.main(["new", "finetune"]) == 1
    assert copy.read_text() == "mine"
    assert command.main(["new", "pretrain"]) == 0  # others begin like it
    assert (folder / "pretrain.py").exists()
    assert command.main(["new", "p"]) == 2
    assert "pretrain_masked" in capsys.readouterr().err


def test_unknown_command_suggests_the_nearest(capsys):
    assert command.main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_a_run_records_its_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras-vit train", "--dataset", "a b"])
    info = run_folder.program_info({})
    assert info["command"] == "keras-vit train --dataset 'a b'"


# Imports TensorFlow, or something else that is a file of its name, as a command does.
QUIETLY = (
    "import contextlib, os, sys, keras_vit_programs.command as c\n"
    "sys.tracebacklimit = 0; sys.meta_path.insert(0, c._QuietTensorFlow())\n"
    "with contextlib.suppress(ImportError): import tensorflow\n"
)


@pytest.mark.parametrize(
    ("ending", "printed"),
    [
        ("", ""),
        ("os.abort()", "a message"),
        ("raise ImportError", "a message"),
        ("raise OSError('why')", "a messageOSError: why"),
    ],
)
def test_messages_of_tensorflow_are_hidden(folder, ending, printed):
    """Only those of its import, and only if it succeeds."""
    module = folder / "tensorflow.py"
    module.write_text(f"import os\nos.write(2, b'a message')\n{ending}\n")
    paths = os.pathsep.join([str(folder), str(command.recipes().parent)])
    found = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"{QUIETLY}os.write(2, b' and the next one'); import logging; "
            "line = '5 of 9 messages triggered tf.function retracing'; "
            "logging.getLogger('tensorflow').warning(line)",
        ],
        env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if ending in ("", "raise ImportError"):
        printed += " and the next one"
    assert found.stderr.startswith(printed)
    assert found.stderr.count("a message") == printed.count("a message")
    assert ending or "retracing" not in found.stderr


def test_tensorflow_is_imported_without_stderr(folder):
    (folder / "tensorflow.py").touch()
    paths = os.pathsep.join([str(folder), str(command.recipes().parent)])
    code = f"{QUIETLY}print('next')"
    found = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, code],
        env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
    )
    assert found.stdout == b"next\n"


@pytest.mark.slow
def test_convert_imports_neither_keras_nor_tensorflow(folder):
    model = keras_vit.ViTTi16(classes=2, input_shape=(32, 32, 3))
    keras_vit.save(model, folder / "a.safetensors", "timm")
    code = "import sys; from keras_vit_programs import command; "
    code += "command.main(['convert', 'a.safetensors', 'a.npz', '--to', 'vit_jax']); "
    code += "sys.exit(bool({'keras', 'tensorflow', 'torch'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert (folder / "a.npz").exists()


@pytest.mark.slow
@pytest.mark.backends("jax", "torch")
def test_the_digits_are_trained_without_tensorflow_and_scikit_learn(folder):
    code = "import sys; from keras_vit_programs import command; "
    code += "command.main('train --steps 1'.split()); "
    code += "sys.exit(bool({'tensorflow', 'sklearn'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert (folder / "runs" / "digits" / "model.keras").exists()


@pytest.mark.backends("jax")
def test_what_jax_compiles_is_kept(tmp_path):
    code = "import keras; from keras_vit_programs import setup; "
    code += "setup.cache_compilations(); import jax; "
    code += "print(jax.jit(lambda x: x * 3 + 1)(jax.numpy.ones(7))[0])"
    kept = {x: y for x, y in os.environ.items() if not x.startswith("JAX_")}
    variables = {**kept, "KERAS_VIT_HOME": str(tmp_path), "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    assert list((tmp_path / "jax").iterdir())
    # A folder of the user's own is used instead.
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
    variables |= {**own, "KERAS_VIT_HOME": str(tmp_path / "other")}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    assert not (tmp_path / "other").exists()
