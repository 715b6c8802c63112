"""The command `keras-vit`, which runs the programs of the package keras_vit.

  keras-vit train photos                 # images in photos/CLASS/
  keras-vit predict runs/photos new/     # class names with probabilities
  keras-vit export runs/photos photos.onnx

`keras-vit COMMAND --help` lists the flags of a command, and --version prints
the version. The values named here can be given before the flags:
"""

import contextlib
import difflib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# This module does not import keras_vit, which takes seconds, so that the help
# does not wait for Keras.

# What a command runs, the flags of the values in front (the last takes all that
# remain), and what it does. Recipes are files, the others are modules.
COMMANDS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "train": (
        "finetune_cifar.py",
        ("--dataset",),
        "trains or fine-tunes a classifier",
    ),
    "segment": (
        "segment.py",
        ("--dataset",),
        "trains a model that segments images",
    ),
    "detect": (
        "detect.py",
        ("--dataset",),
        "trains a model that finds objects",
    ),
    "predict": (
        "predict.py",
        ("--weights", "--images"),
        "predicts the classes, or objects, of images",
    ),
    "explain": (
        "predict.py --explain",
        ("--weights", "--images"),
        "also draws what a predicted class depends on",
    ),
    "classify": (
        "predict.py",
        ("--weights", "--images"),
        "predicts classes of --names by a text tower",
    ),
    "search": (
        "keras_vit_programs.search",
        ("--images", "--text"),
        "finds images by a text or by another image",
    ),
    "evaluate": (
        "evaluate.py",
        ("--weights", "--dataset"),
        "measures a model on labeled images",
    ),
    "report": (
        "keras_vit_programs.report",
        (),
        "writes a page about what a model attends to",
    ),
    "convert": (
        "keras_vit_programs.convert",
        (),
        "converts checkpoints of 15 formats",
    ),
    "export": (
        "keras_vit_programs.export",
        (),
        "writes ONNX, SavedModel, LiteRT, .pt2, a page",
    ),
    "serve-page": (
        "http.server --bind 127.0.0.1",
        ("--directory",),
        "serves a folder with a page to your browser",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    name, *values = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        for command, (_, flags, text) in COMMANDS.items():
            print(f"  {command:11}{text:48}{_values(flags)}".rstrip())
        print("  new        copies a recipe, such as few_shot, to be changed  RECIPE")
        return 0
    if name == "--version":
        # Without the package, whose import takes seconds.
        version = pathlib.Path(__file__).parents[1] / "keras_vit" / "_version.py"
        print("keras-vit", version.read_text().split('"')[1])
        return 0
    if name == "new":
        return new(*values)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, "new"], 1)
        hint = f"did you mean {near[0]}?" if near else "--help lists all"
        print(f"error: unknown command {name!r}; {hint}", file=sys.stderr)
        return 2
    command, flags, _ = COMMANDS[name]
    target, *given = command.split()
    for flag in flags:
        if values and not values[0].startswith("-"):
            given += [flag, values.pop(0)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _choose_backend()
    sys.argv = [f"keras-vit {name}", *given, *values]
    is_help = bool({"-h", "--help", "--help-all"} & {*values})
    if is_help and flags:
        sys.argv[0] += f" {_values(flags)}"
    if target == "http.server":
        if is_help:
            print(_SERVE_PAGE)
            return 0
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return 0
    sys.meta_path.insert(0, _QuietTensorFlow())
    if is_help:  # the program ends when it has parsed them
        sys.meta_path.insert(0, _LazyImports())
    elif name == "convert":  # which copies arrays, mostly without any of Keras
        importlib.import_module(target).skip_package_init()
    else:
        _import_keras()
    if not target.endswith(".py"):
        return importlib.import_module(target).main([*given, *values])
    # runpy.run_path would replace the name of the command in sys.argv.
    spec: Any = importlib.util.spec_from_file_location("__main__", recipes() / target)
    recipe = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = recipe
    spec.loader.exec_module(recipe)
    return 0


def _choose_backend() -> None:
    """Sets KERAS_BACKEND to a backend that is installed, if Keras would take
    TensorFlow by default and that is not."""
    folder = pathlib.Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    try:
        name = json.loads((folder / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        name = "tensorflow"
    is_default = not os.environ.get("KERAS_BACKEND") and name == "tensorflow"
    if is_default and not importlib.util.find_spec("tensorflow"):
        for backend in filter(importlib.util.find_spec, ("torch", "jax")):
            os.environ["KERAS_BACKEND"] = backend  # JAX if both are


def _import_keras() -> None:
    """Imports Keras without scikit-learn, which it imports for wrappers that no program
    uses, and, under other backends, without TensorFlow, which it imports to seed it and
    to recognize its types. Both take seconds; what uses them imports them later. The
    garbage collector need not visit what was imported, which took 14 % of `predict`."""
    gc.disable()
    with _absent("sklearn"):
        keras = importlib.import_module("keras")
    if keras.config.backend() != "tensorflow":
        with _absent("tensorflow"):
            # Keras looks for TensorFlow once, here. Runs are seeded later.
            keras.utils.set_random_seed(0)
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _absent(package: str) -> Iterator[None]:
    """Makes imports of a package fail, unless it is imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore
    try:
        yield
    finally:
        del sys.modules[package]


def _values(flags: Sequence[str]) -> str:
    """Returns the values that may stand in front of the flags of a command."""
    return " ".join(f"[{flag[2:].upper()}]" for flag in flags)


_SERVE_PAGE = """usage: keras-vit serve-page [DIRECTORY] [--bind ADDRESS] [PORT]

Serves a folder that `keras-vit export MODEL DIRECTORY --to web` wrote to browsers of
this computer, at http://127.0.0.1:8000 or another port, until Ctrl-C.
"""


class _LazyImports(importlib.abc.MetaPathFinder):
    """Makes `import` execute Keras, `keras_vit` and modules of programs when
    something of them is first used. A list of flags uses none of what takes
    seconds to import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = name.startswith("keras_vit_programs.")
        if not is_ours and name not in ("keras", "keras_vit"):
            return None
        others = [x for x in sys.meta_path if not isinstance(x, _LazyImports)]
        specs = (x.find_spec(name, path) for x in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


class _QuietTensorFlow(importlib.abc.MetaPathFinder):
    """Hides what the C++ code of TensorFlow prints on stderr while it is imported,
    which TF_CPP_MIN_LOG_LEVEL=3 does not
    (https://github.com/tensorflow/tensorflow/issues/100442), unless the import
    fails. The datasets import it, under every backend."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        others = [x for x in sys.meta_path if x is not self]
        spec: Any = next(filter(None, (x.find_spec(name, path) for x in others)), None)
        # Without file 2, there is nothing to hide.
        if spec and sys.stderr and os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3":
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _quietly(execute, module)
        return spec


def _quietly(execute: Callable[[Any], None], tensorflow: Any) -> None:
    # Another process has the lines, and prints them if no zero byte follows, since
    # on a machine that does not suit TensorFlow, its import ends this process.
    code = "import sys; text = sys.stdin.buffer.read(); "
    code += r"b'\0' in text or sys.stderr.buffer.write(text)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
    ) as printer:
        stderr = os.dup(2)
        os.dup2(printer.stdin.fileno(), 2)  # type: ignore
        try:
            execute(tensorflow)
            os.write(2, b"\0")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    # TensorFlow warns of repeated tracing, because each model of a sweep is traced, and
    # with absl of what TFDS calls.
    hidden = (
        "triggered tf.function retracing",
        "CounterV2",
        "`FeatureConnector.dtype`",
    )
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).addFilter(
            lambda line: not any(words in line.getMessage() for words in hidden)
        )


def recipes() -> pathlib.Path:
    """Returns the folder of the recipes, which a wheel has in the package."""
    folder = pathlib.Path(__file__).resolve().parent
    installed = folder / "recipes"
    return installed if installed.is_dir() else folder.parent / "recipes"


def new(name: str = "", *_: str) -> int:
    """Copies a recipe into the current folder."""
    found = {path.stem: path for path in sorted(recipes().glob("*.py"))}
    if name in ("", "-h", "--help"):
        print("usage: keras-vit new RECIPE\n\nCopies a recipe into this folder:")
        print("\n".join(f"  {stem}" for stem in found))
        return 0 if name else 2
    near = [stem for stem in found if name and stem.startswith(name)]
    near = [name] if name in found else near
    if len(near) != 1:
        print(
            f"error: no recipe is called {name!r}; the recipes are {', '.join(found)}",
            file=sys.stderr,
        )
        return 2
    target = pathlib.Path(found[near[0]].name)
    if target.exists():
        print(f"error: {target} exists; it is not replaced", file=sys.stderr)
        return 1
    shutil.copyfile(found[near[0]], target)
    print(f"{target} is yours to change; python {target} --help lists its flags")
    return 0
