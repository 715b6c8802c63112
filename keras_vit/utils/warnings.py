"""Warnings that point at the line of the caller."""

import inspect
import os
import warnings
from types import FrameType

# The beginning of the path of keras_vit, and of keras_vit_programs in the same folder.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning that points to the caller's line outside this package.

    `warnings.warn` can do this with `skip_file_prefixes` in Python 3.12 or
    newer.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_in_package(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_in_package(frame: FrameType) -> bool:
    return os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE)
