"""The suite itself: each test runs on at least one backend."""

import os
import re
import subprocess
import sys

import pytest

from tests import __main__ as suite
from tests.results import runs_on

pytestmark = pytest.mark.backends("torch")


def test_tests_that_ran_on_no_backend_are_named():
    runs = [
        {"collected": collected, "ran": ran}
        for collected, ran in (
            (["a.py::x", "a.py::y", "b.py"], ["a.py::x"]),
            (["a.py::x", "a.py::y", "b.py::z"], ["b.py::z"]),
            (["a.py::x", "a.py::y", "c.py"], []),
        )
    ]
    # b.py skipped itself in one run and ran in another; c.py never ran.
    assert suite.never_ran(runs) == ["a.py::y", "c.py"]


# Each test's name says what must happen to it under PyTorch.
MODULES = {
    "test_skipped.py": """
import pytest
pytest.skip("", allow_module_level=True)
""",
    "test_markers.py": """
import subprocess, sys, tempfile
import pytest

pytestmark = pytest.mark.backends("jax")
ON_OTHERS = pytest.mark.backends("tensorflow")

def test_not_the_module():
    raise AssertionError("must not run")

@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=ON_OTHERS)])
def test_runs(x, tmp_path):
    assert x == 1
    (tmp_path / "kept").touch()
    tempfile.mkdtemp()
    code = "import tempfile; tempfile.mkdtemp()"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.backends("torch")
def test_not_skipped():
    pytest.skip("")

@pytest.mark.backends("torch")
class TestOfTheClass:
    def test_runs(self):
        pass

    @pytest.mark.backends("jax")
    def test_not_the_method(self):
        raise AssertionError("must not run")

    @pytest.mark.suite("jax", "tensorflow")
    @pytest.mark.parametrize("x", [
        1, pytest.param(2, marks=pytest.mark.suite("torch"))
    ])
    def test_runs_or_is_nightly(self, x):
        assert x == 2
""",
}


@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)]
)
def test_results_of_a_run(workers, tmp_path, pytestconfig):
    """A test that is skipped or deselected is collected and did not run; one
    that is nightly is not collected. Temporary files are removed, also those
    of other processes, and folders of `tmp_path` are kept."""
    folder, temporary = tmp_path / "tests", tmp_path / "temporary"
    for path in (folder, temporary):
        path.mkdir()
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    path = tmp_path / "results.json"
    options = ["-p", "tests.results", "--results", str(path)]
    options += ["-p", "tests.temporary", "-m", "not nightly"]
    options += ["-p", "no:cacheprovider", "-n", str(workers)]
    options += ["-c", "/dev/null", "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=pytestconfig.rootpath,
        env={
            **os.environ,
            "KERAS_BACKEND": "torch",
            "TMPDIR": str(temporary),
            "PYTEST_DEBUG_TEMPROOT": str(temporary),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = suite.read_results(path)
    name = "test_markers.py::"
    assert found["ran"] == [
        name + "TestOfTheClass::test_runs",
        name + "TestOfTheClass::test_runs_or_is_nightly[2]",
        name + "test_runs[1]",
    ]
    assert suite.never_ran([found]) == [
        name + "TestOfTheClass::test_not_the_method",
        name + "test_not_skipped",
        name + "test_not_the_module",
        name + "test_runs[2]",
        "test_skipped.py",
    ]
    (left,) = temporary.iterdir()
    assert left.name.startswith("pytest-of-")
    assert [path.name for path in left.rglob("kept")] == ["kept"]


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
