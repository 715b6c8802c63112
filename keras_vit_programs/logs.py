"""The output of the `keras_vit` logger in programs."""

import contextlib
import logging
import pathlib
import sys
from collections.abc import Iterator

# The library logs to this logger, too; importing it from there would import Keras
# before --help.
logger = logging.getLogger("keras_vit")
warned: list[str] = []  # the warnings of a program, most of which precede its log file


def show() -> None:
    """Makes a command-line program print log messages of level INFO and above.

    INFO is printed to standard output, warnings and errors to standard error,
    as plain text. Without this call, Python prints only warnings and errors.
    """
    if not any(isinstance(handler, _PrintHandler) for handler in logger.handlers):
        logger.addHandler(_PrintHandler())
    logger.setLevel(logging.INFO)
    # If a library configures the root logger, lines would be printed twice.
    logger.propagate = False


@contextlib.contextmanager
def log_file(path: pathlib.Path) -> Iterator[None]:
    """Appends the program's warnings so far, and in its context log messages, to a
    file with the time."""
    # Names of classes and files may have any characters.
    handler = logging.FileHandler(
        path, delay=True, encoding="utf-8", errors="backslashreplace"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
    handler.handleError = lambda record: None  # a full disk, for example
    for line in warned:
        handler.emit(logging.makeLogRecord({"msg": line}))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class _PrintHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Looked up for each message: tests and notebooks replace the streams.
        is_warning = record.levelno >= logging.WARNING
        stream = sys.stderr if is_warning else sys.stdout
        try:
            print(self.format(record), file=stream, flush=True)
        except Exception:
            self.handleError(record)
