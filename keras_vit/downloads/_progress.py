import contextlib


@contextlib.contextmanager
def bar(name, done, total):
    """Shows a bar on a terminal or in a notebook; gives what moves it on.

    Args:
        name: String.
        done: Integer. Bytes that are there already.
        total: Integer, bytes in all; None if unknown.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn
        from rich.progress import DownloadColumn
        from rich.progress import Progress
        from rich.progress import TimeRemainingColumn
        from rich.progress import TransferSpeedColumn
    except ImportError:  # Keras brings it; converting needs no Keras
        yield lambda count: None
        return
    console = Console(stderr=True)
    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal or console.is_jupyter
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda count: progress.advance(task, count)
