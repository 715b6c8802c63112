"""The imports of the source: one direction, no cycle, nothing private.

Every `import` statement counts, also those inside functions, and refers to the
module that it names, not to the `__init__.py` of the packages that contain it.
A cycle through such a file is found nevertheless if it joins two subpackages,
because references between whole subpackages must not form a cycle either.
"""

import ast
import collections
import dataclasses
import graphlib
import pathlib

import pytest

pytestmark = pytest.mark.backends("torch")

REPOSITORY = pathlib.Path(__file__).parents[1]
PACKAGE = "keras_vit"
PROGRAMS = "recipes", "tools"

# The order of the subpackages: each may import those on lines above its own.
ORDER = (
    {"config", "downloads"},
    {"weights"},
    {"checkpoints", "layers"},
    {"models"},
    {"converters", "preprocessing"},
    {"pretraining", "inspection", "segmentation", "hub"},
    {"costs", "detection", "web"},
    {"exporting", "distribution"},
    {"optimizers", "schedules", "losses", "metrics", "data"},
    {"training"},
    {"evaluation"},
    {"convert", "distillation"},
)
# All that these may import, besides `keras_vit/_*.py`.
ALLOWED = {
    "config": set(),
    "downloads": set(),
    "weights": {"config", "downloads"},
    "checkpoints": {"weights"},
    "layers": set(),
    "preprocessing": {"downloads", "layers"},
    "distribution": set(),
    "optimizers": set(),
    "schedules": set(),
    "losses": set(),
    "metrics": set(),
    "data": {"preprocessing", "downloads", "distribution", "layers"},
}
# What `weights` and `config`, which are plain Python and NumPy, must not
# import with themselves.
FRAMEWORKS = {"keras", "jax", "torch", "tensorflow"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclasses.dataclass(frozen=True)
class Reference:
    """An import statement, or a private attribute of an imported module."""

    importer: str  # a module, such as keras_vit.layers.blocks
    line: int
    target: str  # the module, or the program's package
    name: str | None  # what is imported from it, if it is no module
    in_function: bool

    def __str__(self):
        what = f"{self.target}.{self.name}" if self.name else self.target
        return f"{self.importer}, line {self.line}, imports {what}"


class Source:
    """The modules below a folder and what they import."""

    def __init__(self, folder):
        self.files = {}
        for top in (PACKAGE, *PROGRAMS):
            for path in sorted((folder / top).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                self.files[name] = path
        self.references = [
            Reference(module, *found)
            for module, path in self.files.items()
            for found in self._read(ast.parse(path.read_text(), str(path)))
        ]

    def graph(self, label=str):
        """Returns what imports what within the package, by names that `label`
        makes of those of modules."""
        graph = collections.defaultdict(set)
        for r in self.references:
            ends = label(r.importer), label(r.target)
            if area(r.importer) and area(r.target) and ends[0] != ends[1]:
                graph[ends[0]].add(ends[1])
        return graph

    def _read(self, tree):
        """Yields the fields of the references of a file but the first."""
        bound = {}  # names of this file that stand for modules
        attributes = []
        for node, inside in nodes(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                attributes.append(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    # The longest part of the name that is one of our modules.
                    target = alias.name
                    while target and target not in self.files:
                        target = parent(target)
                    top = alias.name.partition(".")[0]
                    bound[alias.asname or top] = target if alias.asname else top
                    yield node.lineno, target or alias.name, None, inside
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, "a relative import"
                for alias in node.names:
                    target, name = node.module, alias.name
                    if f"{target}.{name}" in self.files:
                        target, name = f"{target}.{name}", None
                        bound[alias.asname or alias.name] = target
                    yield node.lineno, target, name, inside
        for node in attributes:
            first, *rest = ast.unparse(node.value).split(".")
            base = ".".join([bound.get(first, ""), *rest])
            if base in self.files:
                yield node.lineno, base, node.attr, True


def nodes(tree, inside=False):
    """Yields all nodes below one, and whether a function contains them."""
    for node in ast.iter_child_nodes(tree):
        within = inside or isinstance(node, FUNCTIONS)
        yield node, within
        yield from nodes(node, within)


def parent(module):
    return module.rpartition(".")[0]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def area(module):
    """Returns the name below the package: "layers" of keras_vit.layers.blocks,
    "keras_vit" of keras_vit itself, and None outside."""
    top, _, rest = module.partition(".")
    return (rest.partition(".")[0] or PACKAGE) if top == PACKAGE else None


def private_imports(source):
    """Returns references to private modules and names of another folder.

    `keras_vit/_x.py` may be imported by all of the package.
    """
    found = []
    for r in source.references:
        parts = r.target.split(".")
        private = [i for i, part in enumerate(parts) if is_private(part)]
        if private:  # of the package that contains the first of them
            owner = ".".join(parts[: private[0]])
        elif r.name and is_private(r.name):
            path = source.files.get(r.target)
            is_package = path is not None and path.name == "__init__.py"
            owner = r.target if is_package else parent(r.target)
        else:
            continue
        if area(r.target) and not f"{r.importer}.".startswith(f"{owner}."):
            found.append(r)
    return found


def wrong_order(source):
    """Returns references against `ORDER` and `ALLOWED`."""
    rank = {name: i for i, names in enumerate(ORDER) for name in names}
    allowed = dict(ALLOWED)
    # `keras_vit/_*.py` that these import may import such files alone.
    graph = source.graph(area)
    waiting = [name for importer in ALLOWED for name in graph[importer]]
    while waiting:
        name = waiting.pop()
        if is_private(name) and name not in allowed:
            allowed[name] = set()
            waiting += graph[name]
    found = []
    for r in source.references:
        importer, target = area(r.importer), area(r.target)
        if not importer or not target or importer == target:
            continue
        if importer in allowed:
            wrong = not is_private(target) and target not in allowed[importer]
        else:
            wrong = rank.get(importer, len(rank)) < rank.get(target, 0)
        if wrong:
            found.append(r)
    return found


def frameworks(source):
    """Returns imports of frameworks that importing `weights` or `config`
    makes."""
    at_import = [r for r in source.references if not r.in_function]
    graph = collections.defaultdict(set)
    for r in at_import:
        graph[r.importer].add(r.target)
    reached = set()
    waiting = [m for m in source.files if area(m) in ("weights", "config")]
    while waiting:
        module = waiting.pop()
        if module in source.files and module not in reached:
            reached.add(module)
            waiting += graph[module]
    return [
        r
        for r in at_import
        if r.importer in reached and r.target.partition(".")[0] in FRAMEWORKS
    ]


def programs(source):
    """Returns references of the package to recipes and tools."""
    return [
        r
        for r in source.references
        if area(r.importer) and r.target.partition(".")[0] in PROGRAMS
    ]


RULES = {
    rule.__name__: rule
    for rule in (private_imports, wrong_order, frameworks, programs)
}


@pytest.fixture(scope="module")
def source():
    return Source(REPOSITORY)


@pytest.mark.parametrize("label", [str, area])
def test_no_import_cycle(label, source):
    graph = source.graph(label)
    if label is area:
        graph.pop(PACKAGE, None)  # its `__init__.py` imports all of them
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # It lists each module before those that import it.
        pytest.fail(" -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_rules(rule, source):
    found = [str(reference) for reference in RULES[rule](source)]
    assert not found, "\n".join(["", *found])
