"""The imports of the source: one direction, no cycle, nothing private.

Every `import` statement counts, also those inside functions, and refers to the
module that it names, not to the `__init__.py` of the packages that contain it.
A cycle through such a file is found nevertheless if it joins two subpackages,
because references between whole subpackages must not form a cycle either.
"""

import ast
import collections
import graphlib
import pathlib
import re
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "keras_vit"
# What imports the package and is imported by none of its modules.
PROGRAMS = "keras_vit_programs", "recipes", "tools"

# The order of the subpackages: each may import those on lines above its own.
ORDER = (
    {"utils"},
    {"config"},
    {"weights"},
    {"layers"},
    {"models"},
    {"converters", "preprocessing"},
    {"pretraining", "inspection", "segmentation", "hub", "text"},
    {"costs", "detection"},
    {"families"},
    {"load_save", "exporting", "distribution"},
    {"optimizers", "schedules", "losses", "metrics", "data"},
    {"training"},
    {"evaluation"},
    {"distillation"},
)
# All that these may import, besides `utils`.
ALLOWED = {
    "utils": set(),
    "config": set(),
    "weights": {"config"},
    "layers": set(),
    "preprocessing": {"layers", "models"},
    "distribution": set(),
    "optimizers": set(),
    "schedules": set(),
    "losses": set(),
    "metrics": set(),
    "data": {"preprocessing", "distribution", "layers"},
}
# What `weights` and `config`, which are plain Python and NumPy, must not
# import with themselves.
FRAMEWORKS = {"keras", "jax", "torch", "tensorflow"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Reference(NamedTuple):
    """An import statement, or a private attribute of an imported module."""

    importer: str  # a module, such as keras_vit.layers.blocks
    line: int
    target: str  # the module, or the program's package
    name: str | None  # what is imported from it, if it is no module
    in_function: bool


def nodes(tree, inside=False):
    """Yields all nodes below one, and whether a function contains them."""
    for node in ast.iter_child_nodes(tree):
        within = inside or isinstance(node, FUNCTIONS)
        yield node, within
        yield from nodes(node, within)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def imports(path):
    """Yields the fields of a file's references but the first."""
    found = list(nodes(ast.parse(path.read_text(), str(path))))
    modules = {}  # what names of this file stand for
    for node, inside in found:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # The longest part of the name that is one of our modules.
                target = alias.name
                while target and target not in FILES:
                    target = target.rpartition(".")[0]
                top = alias.name.partition(".")[0]
                modules[alias.asname or top] = target if alias.asname else top
                yield node.lineno, target or alias.name, None, inside
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            for alias in node.names:
                target, name = node.module, alias.name
                if f"{target}.{name}" in FILES:
                    target, name = f"{target}.{name}", None
                    modules[alias.asname or alias.name] = target
                yield node.lineno, target, name, inside
    for node, _ in found:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            first, *rest = ast.unparse(node.value).split(".")
            target = ".".join([modules.get(first, ""), *rest])
            if target in FILES:
                yield node.lineno, target, node.attr, True


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for top in (PACKAGE, *PROGRAMS)
    for path in sorted((ROOT / top).rglob("*.py"))
}
REFERENCES = [
    Reference(module, *found)
    for module, path in FILES.items()
    for found in imports(path)
]


def area(module):
    """Returns the name below the package: "layers" of keras_vit.layers.blocks,
    "keras_vit" of keras_vit itself, and None outside."""
    top, _, rest = module.partition(".")
    return (rest.partition(".")[0] or PACKAGE) if top == PACKAGE else None


def graph(label=str):
    """Returns what imports what within the package, by names that `label`
    makes of those of modules."""
    found = collections.defaultdict(set)
    for r in REFERENCES:
        ends = label(r.importer), label(r.target)
        if area(r.importer) and area(r.target) and ends[0] != ends[1]:
            found[ends[0]].add(ends[1])
    return found


def reached(start, edges):
    """Returns the names that one comes to from some of them."""
    found, waiting = set(), list(start)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += edges[name]
    return found


def private_imports():
    """Yields references to private modules and names of another folder;
    `keras_vit/_x.py` may be imported by all of the package."""
    for r in REFERENCES:
        parts = r.target.split(".")
        private = [i for i, part in enumerate(parts) if is_private(part)]
        if private:  # of the package that contains the first of them
            owner = ".".join(parts[: private[0]])
        elif r.name and is_private(r.name):
            path = FILES.get(r.target)
            is_package = path is not None and path.name == "__init__.py"
            owner = r.target if is_package else r.target.rpartition(".")[0]
        else:
            continue
        if area(r.target) and not f"{r.importer}.".startswith(f"{owner}."):
            yield r


def wrong_order():
    """Yields references against `ORDER` and `ALLOWED`."""
    rank = {name: i for i, names in enumerate(ORDER) for name in names}
    for r in REFERENCES:
        importer, target = area(r.importer), area(r.target)
        if not importer or not target or importer == target:
            continue
        if importer in ALLOWED:
            wrong = target not in {"utils", *ALLOWED[importer]}
        else:
            wrong = rank.get(importer, len(rank)) < rank.get(target, 0)
        if wrong and target != "_version":
            yield r


def frameworks():
    """Yields imports of frameworks that importing `weights` or `config`
    makes."""
    at_import = [r for r in REFERENCES if not r.in_function]
    edges = collections.defaultdict(set)
    for r in at_import:
        edges[r.importer].add(r.target)
    plain = [m for m in FILES if area(m) in ("weights", "config")]
    plain = reached(plain, edges)
    for r in at_import:
        if r.importer in plain and r.target.partition(".")[0] in FRAMEWORKS:
            yield r


def programs():
    """Yields references of the package to recipes and tools."""
    for r in REFERENCES:
        if area(r.importer) and r.target.partition(".")[0] in PROGRAMS:
            yield r


@pytest.mark.parametrize("label", [str, area])
def test_no_import_cycle(label):
    edges = graph(label)
    if label is area:
        edges.pop(PACKAGE, None)  # its `__init__.py` imports all of them
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        # It lists each module before those that import it.
        pytest.fail(" -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("rule", [private_imports, wrong_order, frameworks, programs])
def test_imports_follow_the_rules(rule):
    assert not list(rule())


# Also at the end of a part of a formatted string, where its name follows.
FLAG = re.compile(r"(^|[\s\"'`(:])--[a-z]{2}|[\s\"'`(:]--$")


def sources(top):
    """Yields the syntax tree of each file of a package, with its path."""
    for path in sorted((ROOT / top).rglob("*.py")):
        yield path, ast.parse(path.read_text(), str(path))


def test_the_library_speaks_of_arguments_and_programs_of_flags():
    """Below the wall there are no flags, no argparse, no prints but that of the
    logger, and no settings object without a type."""
    found = []
    for path, tree in sources(PACKAGE):
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if id(node) not in documentation:
                    wrong = FLAG.search(text)
                case ast.Import(names=names):
                    wrong = any(name.name == "argparse" for name in names)
                case ast.arg(arg="config", annotation=ast.Name(id="Any")):
                    wrong = True
                case ast.Call(func=ast.Name(id="print")):
                    wrong = path.name != "logging.py"
                case _:
                    continue
            if wrong:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
