"""The suite itself: each test runs on at least one backend."""

import os
import subprocess
import sys

import pytest

from tests import __main__ as suite
from tests.markers import runs_on

pytestmark = pytest.mark.backends("torch")

# Each test's name says what must happen to it under PyTorch.
MODULES = {
    "test_skipped.py": """
import pytest
pytest.skip("", allow_module_level=True)
""",
    "test_markers.py": """
import pytest

pytestmark = pytest.mark.backends("jax")

def test_not_the_module():
    raise AssertionError("must not run")

@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("x", [
    1, pytest.param(2, marks=pytest.mark.backends("tensorflow"))
])
def test_runs(x, record_property):
    assert x == 1
    record_property("error: case", "0.125 1.0")
    record_property("error: case", "0.25 1.0")

@pytest.mark.backends("torch")
def test_not_skipped():
    pytest.skip("")

@pytest.mark.backends("torch")
@pytest.mark.suite("jax", "tensorflow")
@pytest.mark.parametrize("x", [
    1, pytest.param(2, marks=pytest.mark.suite("torch"))
])
def test_runs_or_is_nightly(x):
    assert x == 2
""",
}


def test_a_run_of_all_backends_fails_if_a_test_ran_on_none(
    tmp_path, pytestconfig, monkeypatch, capsys
):
    """A test that is skipped did not run, unless it ran on another backend."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "results.xml"
    options = ["-p", "tests.markers", "--junitxml", str(path), "-n", "0"]
    options += ["-m", "not nightly", "-p", "no:cacheprovider"]
    options += ["-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=pytestconfig.rootpath,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran, skipped, errors = suite.read(path)
    name = "test_markers.test_"
    assert ran == {name + "runs[1]", name + "runs_or_is_nightly[2]"}
    assert skipped == {name + "not_skipped", "test_skipped"}
    assert errors == {"case": (0.25, 1.0)}
    elsewhere = {name + "not_skipped", "test_skipped.test_x"}
    monkeypatch.setattr(suite, "STYLE", ())
    monkeypatch.setattr(sys, "argv", ["tests"])
    for more, status in ((set(), 1), (elsewhere, 0)):
        found = ran | more, skipped, errors
        monkeypatch.setattr(suite, "run", lambda *_, found=found: (0, found))
        assert suite.main() == status
        listed = "".join(f"\n  {x}" for x in sorted(skipped if status else ()))
        expected = f"no backend: {2 * status}{listed}\n"
        assert expected in capsys.readouterr().out


def test_misspelt_backend_raises(request):
    request.node.add_marker(pytest.mark.backends("pytorch"), append=False)
    with pytest.raises(pytest.UsageError, match="'pytorch'"):
        runs_on(request.node, "torch")
