"""Warnings that point at the caller's code."""

import pathlib
import sys
import warnings

_PACKAGE = str(pathlib.Path(__file__).parent)


def warn(message, category=UserWarning):
    """Issue a warning whose location is the first caller outside the package.

    Args:
        message: String.
        category: Class of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    # From Python 3.12 on, `skip_file_prefixes` does the same.
    warnings.warn(message, category, stacklevel=level)
