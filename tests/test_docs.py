"""The pages in docs/: their Python runs, their commands have these options."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import shutil

import pytest

import keras_vit
from keras_vit.weights.formats import FORMATS
from keras_vit.weights.released import ALIASES, RELEASED
from keras_vit_programs import command, search
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
TEXTS["recipes/README.md"] = (ROOT / "recipes" / "README.md").read_text()
# The files that define the options of the programs in `tools/`.
SOURCES = {
    "convert": ("keras_vit_programs/convert.py", "keras_vit_programs/console.py"),
    "report": ("keras_vit_programs/report.py",),
    "export": ("keras_vit_programs/export.py", "keras_vit_programs/console.py"),
    "benchmark": (),
    "search": (),
}
BLOCKS = {
    name: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for name, text in TEXTS.items()
    if name.startswith("docs/")
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The file that the pages call Ti_16.npz."""
    path = tmp_path_factory.mktemp("weights") / "Ti_16.npz"
    model = keras_vit.ViTTi16(input_shape=(32, 32, 3), classes=7)
    keras_vit.converters.save(model, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BLOCKS if BLOCKS[name]])
def test_python_blocks_run(name, weights, tmp_path, monkeypatch):
    """Run the blocks of a page in order, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    build = keras_vit.ViTTi16

    def small(*, weights=None, **options):
        """Returns a model of few blocks, which takes a third of the time."""
        if weights is None:
            few = 2 if name == "docs/export.md" else 4
            options.setdefault("num_layers", few)
        return build(weights=weights, **options)

    monkeypatch.setattr(keras_vit, "ViTTi16", small)
    shutil.copy(weights, tmp_path)
    names = {}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), names)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("name", ["docs/scale.md", "docs/cost.md"])
def test_python_blocks_run_on_jax(name, weights, tmp_path, monkeypatch):
    """Run the pages whose Python does more under JAX."""
    assert any('backend() == "jax"' in x for x in BLOCKS[name])
    test_python_blocks_run(name, weights, tmp_path, monkeypatch)


def docstring_examples():
    """The Python blocks of docstrings in `keras_vit.data`, by function name."""
    for path in sorted((ROOT / "keras_vit" / "data").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                    name = getattr(node, "name", "module")
                    yield pytest.param(block, id=f"{path.stem}.{name}")


@pytest.mark.parametrize("block", list(docstring_examples()))
def test_examples_in_docstrings_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docstring", "exec"), {})


def commands():
    """Yields every program in a page with its options."""
    for name, text in TEXTS.items():
        text = re.sub(r"\\\n\s*", " ", text)
        for line in re.split(r"[\n|`]", text):
            found = re.search(r"(?:(?:recipes|tools)/|keras-vit )(\w+)(.*)", line)
            if found:
                program, *_ = COMMANDS.get(found[1], found[1]).split()
                program = program.removesuffix(".py")
                if program in (*SOURCES, *RECIPES):
                    yield name, program, set(re.findall(r"--[\w-]+", found[2]))


# Programs by the command that runs them; the others are named as they are.
COMMANDS = {
    name: target for name, (target, *_) in command.COMMANDS.items() if ".py" in target
}
RECIPES = [path.stem for path in (ROOT / "recipes").glob("*.py")]


def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        return importlib.import_module("benchmark")


def options_of(program):
    if program in (*RECIPES, "search"):
        module = search if program == "search" else programs.load(program)
        fields = dataclasses.fields(module.Config)
        return {"--" + field.name.replace("_", "-") for field in fields}
    if program == "benchmark":  # parameters are options, and flags a recipe's
        names = {
            name.replace("_", "-")
            for function in benchmark().KINDS.values()
            for name in inspect.signature(function).parameters
        }
        return {f"--{name}" for name in names} | options_of("finetune_cifar")
    texts = [(ROOT / path).read_text() for path in SOURCES[program]]
    return set(re.findall(r'"(--[\w-]+)"', "\n".join(texts)))


def test_options_in_commands_exist():
    there = {}
    for page, program, options in commands():
        if program not in there:
            there[program] = options_of(program) | {"--help"}
        assert not options - there[program], (page, program)
    assert {"convert", "report", "finetune_cifar", "predict"} <= there.keys()


def test_options_in_the_text_exist():
    """Options in the text, such as `--like-this`."""
    every = {x for p in (*SOURCES, *RECIPES) for x in options_of(p)}
    every |= {"--help", "--help-all"}
    for page, text in TEXTS.items():
        for option in re.findall(r"`(--[a-z][\w-]*)", text):
            assert option in every, (page, option)


def test_names_of_weights_exist():
    known = {tag for _, tag in RELEASED} | set(ALIASES)
    programs_too = [*(ROOT / "recipes").glob("*.py")]
    texts = [*TEXTS.values(), *(path.read_text() for path in programs_too)]
    pattern = r"--model \w+[\s\\]+--weights (\w[\w+-]*)(?![\w.+/-])"
    named = re.findall(pattern, "".join(texts))
    assert len(named) > 5
    assert not set(named) - known


def test_formats_are_those_of_the_code():
    for name in FORMATS:
        assert f"`{name}`" in TEXTS["docs/formats.md"], name
    counted = [n for text in TEXTS.values() for n in re.findall(r"(\d+) formats", text)]
    assert counted and set(counted) == {str(len(FORMATS))}
    assert f"{len(FORMATS)} formats" in command.COMMANDS["convert"][-1]


def test_commands_in_pages_exist():
    known = {*command.COMMANDS, "new"}
    for page, text in TEXTS.items():
        found = set(re.findall(r"(?:^ {4}|`)keras-vit ([a-z][\w-]*)", text, re.M))
        assert found <= known, page
