"""The `keras_vit` logger, and how programs show what it logs."""

import logging
import sys

logger = logging.getLogger("keras_vit")


def show():
    """Shows what the library logs, as programs do.

    Messages of level INFO go to standard output, warnings and errors to
    standard error, as plain text. Libraries leave this to whoever uses them:
    without it, Python shows warnings and errors only.
    """
    if not any(isinstance(handler, _Plain) for handler in logger.handlers):
        logger.addHandler(_Plain())
    logger.setLevel(logging.INFO)
    # A library that configures the root logger would show each line again.
    logger.propagate = False


class _Plain(logging.Handler):
    def emit(self, record):
        # Looked up at each message: tests and notebooks replace the streams.
        is_problem = record.levelno >= logging.WARNING
        stream = sys.stderr if is_problem else sys.stdout
        try:
            print(self.format(record), file=stream, flush=True)
        except Exception:
            self.handleError(record)
