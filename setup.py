"""Adds the recipes to the wheel, and the README to its metadata, with absolute
links for PyPI.

All other metadata is in pyproject.toml. PyPI does not resolve relative links,
which GitHub and the documentation site do. Here they become links to the
repository at the version's tag.
"""

import pathlib
import re
import tomllib

import setuptools
from setuptools.command import build_py

ROOT = pathlib.Path(__file__).resolve().parent
# [text](target), ![image](target); the text of a badge is an image itself.
LINK = re.compile(r"(!?)\[((?:[^][]|!\[[^][]*\]\([^)]*\))*)\]\(([^)\s]+)\)")


def absolute_links(text, repository, tag):
    """Returns Markdown with absolute links.

    Args:
        text: String. Markdown of a file in the root of the repository.
        repository: String. `"https://github.com/OWNER/NAME"`.
        tag: String. Git tag or branch of the linked files.
    """
    raw = repository.replace("github.com", "raw.githubusercontent.com")

    def absolute(match):
        image, label, target = match.groups()
        if not re.match(r"https?://|#|mailto:", target):
            base = f"{raw}/{tag}" if image else f"{repository}/blob/{tag}"
            target = f"{base}/{target}"
        return f"{image}[{label}]({target})"

    return LINK.sub(absolute, text)


def readme():
    """Returns the README as PyPI shows it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    version = (ROOT / "keras_vit" / "_version.py").read_text("utf-8")
    (number,) = re.findall(r'^__version__ = "(.+)"', version, re.MULTILINE)
    return absolute_links(
        (ROOT / "README.md").read_text("utf-8"),
        project["project"]["urls"]["Repository"],
        f"v{number}",
    )


class BuildWithRecipes(build_py.build_py):
    """Adds the recipes to the package, which the command `keras-vit` runs."""

    def run(self):
        super().run()
        if not self.editable_mode:
            folder = pathlib.Path(self.build_lib, "keras_vit_programs", "recipes")
            self.mkpath(str(folder))
            for path in sorted((ROOT / "recipes").glob("*.py")):
                self.copy_file(str(path), str(folder / path.name))


if __name__ == "__main__":
    setuptools.setup(
        cmdclass={"build_py": BuildWithRecipes},
        long_description=readme(),
        long_description_content_type="text/markdown",
    )
