"""The site, built with `mkdocs build --strict`, and its links."""

import inspect
import json
import pathlib
import re
import urllib.parse

import pytest

import keras_vit
from tests.site import links

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    config = pytest.importorskip("mkdocs.config")
    from mkdocs.commands import build

    folder = tmp_path_factory.mktemp("site")
    path, site_dir = str(ROOT / "mkdocs.yml"), str(folder)
    build.build(config.load_config(path, site_dir=site_dir, strict=True))
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {
        path.relative_to(site).as_posix(): links.Page(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"  # its links begin at the site's address
    }


def test_links_of_the_site(site, pages):
    """Files and anchors exist, and other addresses are well-formed."""
    problems, count = [], 0
    for name, page in pages.items():
        for link in page.links:
            count += 1
            problem = problem_of(link, site, name, pages)
            if problem:
                problems.append(f"{name}: {link}: {problem}")
    assert not problems
    assert len(pages) > 40 and count > 2000


def problem_of(link, site, name, pages):
    if link.startswith(("data:", "mailto:")):
        return None
    if re.match(r"[a-z]+:|//", link):
        return links.problem_of_url(link)
    path, _, anchor = link.partition("#")
    path, anchor = map(urllib.parse.unquote, (path.partition("?")[0], anchor))
    there = (site / name).parent / path if path else site / name
    there = there / "index.html" if there.is_dir() else there
    if not there.exists():
        return "there is no such file"
    if anchor and there.suffix == ".html":
        target = pages[there.resolve().relative_to(site.resolve()).as_posix()]
        if anchor not in target.ids:
            return "there is no such anchor"
    return None


def public_names():
    """Yields the public names, one for each object, without modules."""
    for line in (ROOT / "tests" / "public_names.txt").read_text().split():
        name = line.rpartition(".")[2]
        if line != f"keras_vit.{name}" and hasattr(keras_vit, name):
            continue
        if not inspect.ismodule(getattr(keras_vit, name, None)):
            yield line


def test_the_reference_has_every_public_name(pages):
    ids = set().union(*(page.ids for page in pages.values()))
    names = set(public_names())
    assert {"keras_vit.ViTB16", "keras_vit.layers.Patches"} <= names
    assert len(names) > 200
    assert not sorted(names - ids)


def test_arguments_of_models_are_in_the_reference(site):
    text = (site / "api" / "models" / "index.html").read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    for name, kind, default, words in (
        ("num_registers", "int | None", "0", "register tokens"),
        ("pooling", "str | None", "None", "attention pooling"),
        ("std_epsilon", "float | None", "1e-10", "weight standardization"),
    ):
        (row,) = (x for x in rows if f"<code>{name}</code>" in x.split("</td>")[0])
        for part in (f"<code>{kind}</code>", f"<code>{default}</code>", words):
            assert part in row, row


def test_arguments_of_variants_are_one_below_the_other(site):
    text = (site / "api" / "models" / "index.html").read_text()
    code = "keras_vit.ViTB16(\n    include_top=True,\n    weights=None,\n"
    assert code in re.sub("<[^>]*>", "", text)


def test_examples_of_docstrings_are_code(site):
    texts = [path.read_text() for path in (site / "api").rglob("*.html")]
    assert sum("&gt;&gt;&gt; " in re.sub("<[^>]*>", "", text) for text in texts) > 10
    assert not [text for text in texts if "<blockquote" in text]


def test_a_page_is_a_notebook(site, pages):
    """Its Python and commands are cells with the outputs of the page."""
    link = "notebooks/example.ipynb"
    assert any(x.endswith(link) for x in pages["example/index.html"].links)
    cells = json.loads((site / link).read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code[0]["source"].startswith("import pathlib")
    assert code[1]["source"].startswith("!keras-vit train photos")
    assert "test accuracy" in code[1]["outputs"][0]["text"]
    text = (ROOT / "docs" / "example.md").read_text()
    for cell in code:
        assert cell["source"].replace("!", "    ").rstrip() in text


def test_nothing_is_loaded_from_other_hosts(site):
    """Fonts and scripts are the site's own."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        for tag in re.findall(r"<(?:script|link)\b[^>]*>", text):
            if 'rel="canonical"' not in tag:
                assert not re.search(r'(?:src|href)="https?:', tag), tag
        # Material loads the script for diagrams from another host.
        assert 'class="mermaid"' not in text, path
