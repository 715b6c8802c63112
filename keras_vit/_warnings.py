import inspect
import os
import warnings

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(message, category=UserWarning):
    """Issues a warning at the line outside of this package that led to it.

    The `skip_file_prefixes` of `warnings.warn` does so from Python 3.12 on.

    Args:
        message: String.
        category: Class of the warning.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(frame):
    return os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE)
