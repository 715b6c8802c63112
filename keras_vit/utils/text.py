"""Names and messages as text that a terminal or a figure shows as it is."""

import difflib
import re
from collections.abc import Iterable

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


_SIZES = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Returns the name that another is a spelling of, or timm's or transformers' name
    of, such as "ViTB16" for "vit_base_patch16_224"; None if there is none."""
    spelled = {_spelled(x): x for x in names}
    close = difflib.get_close_matches(_spelled(str(name)), spelled, 1)
    return spelled[close[0]] if close else None


def _spelled(name: str) -> str:
    name = re.sub(r"patch(\d+).*", r"\1", name.lower())
    name = "".join(filter(str.isalnum, name))
    for word, letter in _SIZES.items() if name.startswith("vit") else ():
        name = name.replace(word, letter)
    return name
