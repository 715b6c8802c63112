"""Converters without their talk."""

import contextlib
import io
import logging
import warnings


@contextlib.contextmanager
def quiet():
    """What converters tell of their own insides is for their makers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
