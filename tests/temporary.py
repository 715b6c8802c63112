"""A folder for all temporary files of a test session, removed at its end.

Libraries leave temporary files behind: `tfds.builder`, for example, an empty
folder at each call. The functions are hooks of pytest; `conftest.py` imports
them. Folders of the fixture `tmp_path` stay where pytest keeps them.
"""

import os
import shutil
import tempfile

import pytest

_FOLDER = pytest.StashKey()
_BEFORE = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if hasattr(config, "workerinput"):
        return  # of pytest-xdist, which inherits the environment
    config.stash[_BEFORE] = os.environ.get("TMPDIR")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    config.stash[_FOLDER] = tempfile.mkdtemp(prefix="tests-")
    os.environ["TMPDIR"] = tempfile.tempdir = config.stash[_FOLDER]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if hasattr(config, "workerinput"):
        return
    shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
    tempfile.tempdir = None
    if config.stash[_BEFORE] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = config.stash[_BEFORE]
