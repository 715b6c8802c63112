"""Names and messages as text that a terminal or a figure shows as it is."""

import re

# Control characters, marks that reverse text, and invalid bytes of file names.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """Returns a name as one line of text, in which characters that would
    change what a terminal shows are escaped."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], str(text))


def plot_label(name: object, longest: int | None = None) -> str:
    """Returns a name as matplotlib text, which is not parsed as a formula and
    has at most `longest` characters."""
    name = printable(name)
    if longest and len(name) > longest:
        name = name[: longest - 1] + "…"
    return name.replace("$", r"\$")
