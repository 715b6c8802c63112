"""How many of a block's tokens are read: its model knows that, and it does not.

Only for the time of a call, and in its thread: another model of the same block
may read more.
"""

import contextlib
import threading

_now = threading.local()


@contextlib.contextmanager
def first_of(block, count):
    """Within it, a call of the block computes its first tokens alone.

    Args:
        block: The block.
        count: Integer. How many tokens.
    """
    before = getattr(_now, "read", None)
    _now.read = block, count
    try:
        yield
    finally:
        _now.read = before


def count_of(block):
    """Returns how many of the block's first tokens are read; None for all."""
    read = getattr(_now, "read", None)
    return read[1] if read is not None and read[0] is block else None
