"""The imports of the source: one direction, no cycle, nothing private.

Every `import` statement counts, also those inside functions. A statement refers
to the module that it names: `from keras_vit.layers import TransformerBlock`
refers to `keras_vit.layers`, `from keras_vit.layers import initializers` and
`import keras_vit.layers.initializers` to `keras_vit.layers.initializers`.
Python runs the `__init__.py` of a package as well before a module in it. That
is no reference: a package whose `__init__.py` imports its own modules is no
cycle, unless one of them imports a name from the package. Between two
subpackages such a cycle is found nevertheless, because references between
whole subpackages must not form a cycle either.
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
    {"costs", "detection"},
    {"exporting", "distribution"},
    {"optimizers", "schedules", "losses", "metrics", "data"},
    {"training"},
    {"evaluation"},
    {"convert"},
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


@dataclasses.dataclass(frozen=True)
class Reference:
    """An import statement, or a private attribute of an imported module."""

    importer: str  # a module, such as keras_vit.layers.blocks
    line: int
    target: str  # the module, or the program's package
    name: str | None = None  # what is imported from it, if it is no module
    in_function: bool = False

    def __str__(self):
        what = f"{self.target}.{self.name}" if self.name else self.target
        return f"{self.importer}, line {self.line}, imports {what}"


class Source:
    """The modules below a folder and what they import."""

    def __init__(self, folder):
        self.folder, self.files = folder, {}
        for top in (PACKAGE, *PROGRAMS):
            for path in sorted((folder / top).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                self.files[name] = path
        self.references = [
            reference
            for module, path in self.files.items()
            for reference in self._read(module, path)
        ]

    def graph(self, label=str):
        """Returns what imports what within the package, by names that `label`
        makes of those of modules."""
        graph = collections.defaultdict(set)
        for r in self.references:
            if not area(r.importer) or not area(r.target):
                continue
            ends = label(r.importer), label(r.target)
            if ends[0] != ends[1]:
                graph[ends[0]].add(ends[1])
        return graph

    def is_package(self, module):
        path = self.files.get(module)
        return path is not None and path.name == "__init__.py"

    def folder_of(self, module):
        """Returns the package that contains a module, or is it."""
        return module if self.is_package(module) else parent(module)

    def _read(self, module, path):
        tree = ast.parse(path.read_text(), str(path))
        inside = {
            node
            for function in ast.walk(tree)
            if isinstance(
                function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            )
            for node in ast.walk(function)
        }
        bound = {}  # names of this file that stand for modules
        attributes = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    target = self._module(alias.name)
                    if alias.asname:
                        bound[alias.asname] = target
                    else:
                        top = alias.name.partition(".")[0]
                        bound[top] = top
                    yield Reference(
                        module, node.lineno, target, None, node in inside
                    )
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = self.folder_of(module).split(".")
                    package = package[: len(package) - node.level + 1]
                    base = ".".join([*package, *filter(None, [base])])
                for alias in node.names:
                    whole = f"{base}.{alias.name}"
                    name = alias.name
                    if whole in self.files:
                        base_or_module, name = whole, None
                        bound[alias.asname or alias.name] = whole
                    else:
                        base_or_module = base
                    yield Reference(
                        module,
                        node.lineno,
                        base_or_module,
                        name,
                        node in inside,
                    )
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                attributes.append(node)
        for node in attributes:
            base = dotted(node.value)
            if base:
                first, _, rest = base.partition(".")
                base = ".".join(filter(None, [bound.get(first), rest]))
            if base in self.files:
                yield Reference(module, node.lineno, base, node.attr, True)

    def _module(self, name):
        """Returns the longest part of a dotted name that is one of our modules,
        or all of it."""
        found = name
        while found and found not in self.files:
            found = parent(found)
        return found or name


def parent(module):
    return module.rpartition(".")[0]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def dotted(node):
    """Returns `a.b.c` of such an expression, or None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return None


def area(module):
    """Returns the name below the package: "layers" of keras_vit.layers.blocks,
    "keras_vit" of keras_vit itself, and None outside."""
    top, _, rest = module.partition(".")
    if top == PACKAGE:
        return rest.partition(".")[0] or PACKAGE
    return None


def cycles(source):
    """Returns one import cycle of modules and one of subpackages, if any."""
    found = []
    for label in (str, area):
        graph = source.graph(label)
        if label is area:
            graph.pop(PACKAGE, None)  # its `__init__.py` imports all of them
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            # It lists each module before those that import it.
            found.append(" -> ".join(reversed(error.args[1])))
    return found


def private_imports(source):
    """Returns references to private modules and names of another folder.

    `keras_vit/_x.py` may be imported by all of the package.
    """
    found = []
    for r in source.references:
        if not area(r.target):
            continue
        parts = r.target.split(".")
        private = [i for i, part in enumerate(parts) if is_private(part)]
        if private:  # of the package that contains the first of them
            owner = ".".join(parts[: private[0]])
        elif r.name and is_private(r.name):
            owner = source.folder_of(r.target)
        else:
            continue
        if not f"{r.importer}.".startswith(f"{owner}."):
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
    begin = {m for m in source.files if area(m) in ("weights", "config")}
    graph = collections.defaultdict(set)
    for r in source.references:
        if not r.in_function and r.target in source.files:
            graph[r.importer].add(r.target)
    reached, waiting = set(), list(begin)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph[module]
    return [
        r
        for r in source.references
        if r.importer in reached
        and not r.in_function
        and r.target.partition(".")[0] in FRAMEWORKS
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


@pytest.mark.slow
def test_no_import_cycle(source):
    found = cycles(source)
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_rules(rule, source):
    found = [str(reference) for reference in RULES[rule](source)]
    assert not found, "\n".join(["", *found])
