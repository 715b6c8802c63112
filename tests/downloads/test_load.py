"""Concurrent processes; `python -m tests.load` runs 16, in more cases."""

import os

import pytest

from tests import load

pytestmark = pytest.mark.backends("torch")

BODY = os.urandom(300_000)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["slow", "killed", "404, then good"])
def test_concurrent_processes_download_once(case, tmp_path):
    """One case kills the process that downloads during its download."""
    # The process must be killed before the server has sent all.
    seconds = 2 if case == "killed" else 0.4
    found = load.ask(4, BODY, tmp_path, case, seconds=seconds)
    assert load.problem(case, 4, found, len(BODY), tmp_path) is None
    paths = [path for path, _ in found.requests]
    assert len(paths) == (1 if case == "slow" else 2)
