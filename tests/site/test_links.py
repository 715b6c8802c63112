"""Every link of the repository's Markdown leads somewhere, without network."""

import pathlib
import re

import pytest

from tests.site import links

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    ROOT / "recipes" / "README.md",
    ROOT / "keras_vit" / "weights" / "README.md",
    ROOT / "tests" / "golden" / "README.md",
]


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES]
)
def test_links_of_markdown(path):
    """Files exist, anchors are headings, other addresses are well-formed."""
    problems = []
    for link in links.markdown_links(path.read_text()):
        if re.match(r"[a-z]+:", link):
            problem = links.problem_of_url(link)
        else:
            problem = problem_of_file(path, link)
        if problem:
            problems.append(f"{link}: {problem}")
    assert not problems


def problem_of_file(path, link):
    target, _, anchor = link.partition("#")
    there = (path.parent / target).resolve() if target else path
    if not there.exists():
        return "there is no such file"
    if not there.is_relative_to(ROOT):
        return "it is outside the repository"
    if anchor and there.suffix == ".md":
        if anchor not in links.markdown_anchors(there.read_text()):
            return "there is no such heading"
    return None


def test_every_page_of_docs_is_linked():
    """A page that no other page leads to is not found by its readers."""
    linked = set()
    for path in PAGES:
        for link in links.markdown_links(path.read_text()):
            linked.add((path.parent / link.partition("#")[0]).resolve())
    for path in ROOT.glob("docs/*.md"):
        assert path in linked, path.name
