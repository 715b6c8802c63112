"""Writes the repository's address into every file that contains it.

  python tools/set_repository.py OWNER/NAME

pyproject.toml states the address (`[project.urls]`). The files in `FILES`
repeat it, in links that must work outside the repository. Until it is known,
all of them have the placeholder OWNER/REPOSITORY, and links that a reader would
click are in comments, `<!--set_repository ... -->`, which are then removed.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = (
    "pyproject.toml",
    "README.md",
    "docs/start.md",
    "recipes/finetune_cifar_tpu.ipynb",
)


def current():
    """Returns the address that pyproject.toml states, as `"OWNER/NAME"`."""
    text = (ROOT / "pyproject.toml").read_text()
    url = tomllib.loads(text)["project"]["urls"]["Repository"]
    return url.removeprefix("https://github.com/")


def main(arguments):
    if len(arguments) != 1 or not re.fullmatch(r"[\w-]+/[\w.-]+", arguments[0]):
        print(f"{__doc__}\nReceived: {arguments}", file=sys.stderr)
        return 2
    old, new = current(), arguments[0]
    for name in FILES:
        path = ROOT / name
        text = path.read_text()
        shown = re.sub(r"(?s)<!--set_repository\n(.*?)\n-->", r"\1", text)
        path.write_text(shown.replace(old, new))
        print(f"{name}: {text.count(old)} replaced")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
