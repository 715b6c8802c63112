"""A progress bar for large files."""

import sys
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
MIN_TRACKED_BYTES = 1e8  # smaller files need no progress bar


def track(
    items: Sequence[Item], title: str, size: float | None = None
) -> Iterable[Item]:
    """Returns an iterable of items that shows a progress bar on a terminal,
    unless their size in bytes is below `MIN_TRACKED_BYTES`."""
    if sys.stderr.isatty() and (size is None or size > MIN_TRACKED_BYTES):
        try:
            from rich.console import Console
            from rich.progress import track as bar
        except ImportError:
            pass
        else:
            console = Console(stderr=True)
            return bar(items, title, console=console, transient=True)
    return items
