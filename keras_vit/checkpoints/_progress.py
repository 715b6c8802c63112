"""A progress bar for long work, where somebody watches."""

import sys

_LARGE = 1e8  # bytes; less is done before a bar could be read


def track(items, title, size=None):
    """Yields the items, with a bar on a terminal's stderr if rich is there.

    Args:
        items: A sequence.
        title: String. What is being done.
        size: Integer. Bytes of the work; without a bar if they are few.
    """
    if sys.stderr.isatty() and (size is None or size > _LARGE):
        try:
            from rich.console import Console
            from rich.progress import track as bar
        except ImportError:
            pass
        else:
            console = Console(stderr=True)
            return bar(items, title, console=console, transient=True)
    return iter(items)
