"""A progress bar for large files."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
MIN_TRACKED_BYTES = 1e8  # smaller files need no progress bar


def track(
    items: Sequence[Item], title: str, size: float | None = None
) -> Iterable[Item]:
    """Returns an iterable of items that shows a progress bar on a terminal,
    unless their size in bytes is below `MIN_TRACKED_BYTES`."""
    if not sys.stderr.isatty() or (size or math.inf) <= MIN_TRACKED_BYTES:
        return items
    from rich.console import Console  # here, as importing it takes a while
    from rich.progress import track as bar

    return bar(items, title, console=Console(stderr=True), transient=True)
