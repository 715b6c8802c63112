"""The suite itself: each test runs on at least one backend."""

import os
import re
import subprocess
import sys

import pytest

from tests import __main__ as suite
from tests.results import runs_on

pytestmark = pytest.mark.backends("torch")


def results(collected, ran):
    return {"collected": collected, "ran": ran, "errors": {}}


def test_tests_that_ran_on_no_backend_are_named():
    runs = [
        results(["a.py::x", "a.py::y", "b.py"], ["a.py::x"]),
        results(["a.py::x", "a.py::y", "b.py::z"], ["b.py::z"]),
        results(["a.py::x", "a.py::y", "c.py"], []),
    ]
    # b.py skipped itself in one run and ran in another; c.py never ran.
    assert suite.never_ran(runs) == ["a.py::y", "c.py"]


SKIPPED = """
import pytest

@pytest.mark.backends("jax")
def test_on_jax_only():
    raise AssertionError("must not run")

@pytest.mark.skipif(True, reason="")
def test_skipped():
    pass

def test_skips_itself():
    pytest.skip("")

@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("x", [
    1, pytest.param(2, marks=pytest.mark.backends("tensorflow"))
])
def test_on_torch(x):
    assert x == 1
"""


def run_pytest(folder, pytestconfig, workers=0, **environment):
    """Runs the tests of a folder under PyTorch and returns their results."""
    path = folder / "results.json"
    options = ["-p", "tests.results", "--results", str(path)]
    options += ["-p", "tests.temporary"]
    options += ["-p", "no:cacheprovider", "-n", str(workers)]
    options += ["-c", "/dev/null", "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=pytestconfig.rootpath,
        env={**os.environ, "KERAS_BACKEND": "torch", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return suite.read_results(path)


@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)]
)
def test_results_of_a_run(workers, tmp_path, pytestconfig):
    """A test that is skipped or deselected is collected and did not run."""
    (tmp_path / "test_some.py").write_text(SKIPPED)
    (tmp_path / "test_module.py").write_text(
        'import pytest\npytest.skip("", allow_module_level=True)\n'
    )
    found = run_pytest(tmp_path, pytestconfig, workers)
    name = "test_some.py::"
    assert found["ran"] == [name + "test_on_torch[1]"]
    assert suite.never_ran([found]) == [
        "test_module.py",
        name + "test_on_jax_only",
        name + "test_on_torch[2]",
        name + "test_skipped",
        name + "test_skips_itself",
    ]


PARTLY_NIGHTLY = """
import pytest

@pytest.mark.suite("jax", "tensorflow")
@pytest.mark.parametrize("x", [
    1, pytest.param(2, marks=pytest.mark.suite("torch"))
])
def test_some(x):
    assert x == 2

@pytest.mark.suite("torch", "jax")
def test_both():
    pass
"""


@pytest.mark.slow
def test_nightly_on_some_backends(tmp_path, pytestconfig):
    (tmp_path / "test_some.py").write_text(PARTLY_NIGHTLY)
    found = run_pytest(
        tmp_path, pytestconfig, PYTEST_ADDOPTS="-m 'not nightly'"
    )
    assert found["ran"] == [
        "test_some.py::test_both",
        "test_some.py::test_some[2]",
    ]
    # Tests that are nightly on this backend do not count as collected.
    assert found["collected"] == found["ran"]


LEAVES_FILES = """
import subprocess
import sys
import tempfile

def test_leaves_files(tmp_path):
    (tmp_path / "kept").touch()
    tempfile.mkdtemp()
    code = "import tempfile; tempfile.mkdtemp()"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.nightly)]
)
def test_temporary_files_are_removed(workers, tmp_path, pytestconfig):
    """Files of other processes are removed as well, folders of `tmp_path` are
    kept."""
    (tmp_path / "test_files.py").write_text(LEAVES_FILES)
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {"TMPDIR": str(folder), "PYTEST_DEBUG_TEMPROOT": str(folder)}
    run_pytest(tmp_path, pytestconfig, workers, **environment)
    (left,) = folder.iterdir()
    assert left.name.startswith("pytest-of-")
    assert [path.name for path in left.rglob("kept")] == ["kept"]


NEAREST = """
import pytest

pytestmark = pytest.mark.backends("jax")

def test_with_module_marker():
    raise AssertionError("must not run")

@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("x", [
    1, pytest.param(2, marks=pytest.mark.backends("tensorflow"))
])
def test_with_function_marker(x):
    assert x == 1

@pytest.mark.backends("torch")
class TestOfTheClass:
    def test_with_class_marker(self):
        pass

    @pytest.mark.backends("jax")
    def test_with_method_marker(self):
        raise AssertionError("must not run")
"""


@pytest.mark.slow
def test_nearest_marker_applies(tmp_path, pytestconfig):
    (tmp_path / "test_nearest.py").write_text(NEAREST)
    found = run_pytest(tmp_path, pytestconfig)
    name = "test_nearest.py::"
    assert found["ran"] == [
        name + "TestOfTheClass::test_with_class_marker",
        name + "test_with_function_marker[1]",
    ]


def test_misspelt_backend_raises(request):
    request.node.add_marker(pytest.mark.backends("pytorch"), append=False)
    with pytest.raises(pytest.UsageError, match="'pytorch'"):
        runs_on(request.node, "torch")


def test_backends_are_selected_only_by_markers(pytestconfig):
    """The check of the collected ids sees markers only, not other skips."""
    folder = pytestconfig.rootpath / "tests"
    for path in folder.rglob("test_*.py"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if re.search(r"(skipif|pytest\.skip)\(", line):
                text = " ".join(lines[max(number - 1, 0) : number + 2])
                assert not re.search(r"BACKEND\b|backend\(\)", text), (
                    f"{path}:{number + 1}: {line.strip()}"
                )
