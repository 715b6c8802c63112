"""The library logs; programs show what it logs."""

import logging
import warnings

import pytest

from keras_vit.utils.logging import logger as package_logger
from keras_vit_programs import console, logs, rows
from keras_vit_programs.logs import log_file, show
from tests.training import run_small
from tests.training.fitting import fit

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def logger(monkeypatch):
    """The logger of a process in which no handler was added."""
    logger = package_logger
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(level)


def train(folder):
    folder.mkdir()
    model, _ = run_small.build()
    recorder = rows.Recorder(folder / "checkpoints", 100, {}, batch_size=4)
    recorder.sinks.append(rows.Progress(2))
    fit(
        model,
        run_small.Stream,
        run_small.Stream(100, count=1),
        steps=2,
        interval=1,
        callbacks=[],
        checkpoints=recorder,
    )


def test_training_shows_its_lines_once_where_that_was_asked_for(
    logger, tmp_path, capsys
):
    train(tmp_path / "silent")
    assert capsys.readouterr().out == ""
    show()
    show()
    train(tmp_path / "shown")
    logger.warning("a warning")
    shown = capsys.readouterr()
    rows = [line.split()[0] for line in shown.out.splitlines()]
    assert rows == ["train", "step", "1/2", "2/2"]
    assert shown.err == "a warning\n"
    logger.setLevel(logging.WARNING)
    train(tmp_path / "warnings")
    assert capsys.readouterr().out == ""


def test_a_log_file_takes_any_name(logger, tmp_path, monkeypatch):
    """Of a class or a file, also one with bytes that are no characters."""
    # xdist cannot send a message with such bytes, which pytest would record.
    monkeypatch.setattr(logger, "propagate", False)
    path = tmp_path / "log.txt"
    with log_file(path):
        logger.warning("é \udcff")
    assert path.read_bytes().decode().endswith("  é \\udcff\n")


def test_a_log_file_begins_with_the_warnings_so_far(logger, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(logger, "propagate", False)
    console.format_warnings(())
    warnings.formatwarning("2 of 9 images are skipped.", UserWarning, "a.py", 1)
    path = tmp_path / "log.txt"
    with log_file(path):
        logger.warning("later")
    first, second = path.read_text().splitlines()
    assert first.endswith("  warning: 2 of 9 images are skipped.")
    assert second.endswith("  later")
    console.format_warnings(())  # a program forgets those of the one before
    assert not logs.warned
