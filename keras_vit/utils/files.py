"""Writing of files that are complete or absent."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from keras_vit.utils.logging import logger
from keras_vit.utils.types import StrPath


@contextlib.contextmanager
def log_os_errors(what: Any) -> Iterator[list[Any]]:
    """Logs an `OSError` in its context as a warning, and suppresses it; the
    list that it yields is empty afterwards if there was one."""
    written = []
    try:
        yield written
        written.append(what)
    except OSError as error:
        logger.warning("%s could not be written: %s", what, error)


@contextlib.contextmanager
def atomic_write(path: StrPath) -> Iterator[pathlib.Path]:
    """Yields the path of a temporary file in the same folder, which is created,
    and which replaces the file at the end of the context, unless the context
    raises."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is kept, because writers choose the file format by it.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
