"""Hooks of MkDocs: pages that are generated, and links of pages to the sources.

mkdocs.yml names this file. The hooks add

- the pages of the repository outside docs/, such as README.md;
- a page for each family of released weights, from the package's own table
  (keras_vit/weights/released.toml) and released.toml here;
- the pages of the API reference, one for each public package;
- a link to the page of docs/demo, which README.md says how to write;
- a notebook of each page that has the comment of `NOTEBOOK`, with a link to it.

Links between pages are written as GitHub reads them, relative to the file. They
become links of the site here, and those to other files of the repository become
links to the repository.
"""

import importlib.util
import json
import os
import pathlib
import posixpath
import re
import sys
import tomllib

from mkdocs.structure.files import File

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]  # keras_vit, and the modules here

# The pages are the same with every backend.
if not os.environ.get("KERAS_BACKEND"):
    installed = filter(importlib.util.find_spec, ("jax", "torch", "tensorflow"))
    os.environ["KERAS_BACKEND"] = next(installed, "jax")

import api  # noqa: E402
import cards  # noqa: E402

# Pages of the repository outside docs/: their place on the site.
PAGES = {
    "README.md": "project/readme.md",
    "recipes/README.md": "recipes.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "keras_vit/weights/README.md": "project/checkpoint-formats.md",
}


# In place of comments in docs/: the second, if docs/demo has a page.
NOTEBOOK = "<!-- notebook -->"
DEMO = """[Try it](demo/index.html): a page of a Vision Transformer that was
trained on scikit-learn's digits, for a white digit on black."""


def repository():
    """Returns the repository's address, which pyproject.toml states."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["urls"]["Repository"]


def on_config(config):
    if "OWNER/" not in repository():  # set by tools/set_repository.py
        config.repo_url = repository()
        config.repo_name = "/".join(config.repo_url.split("/")[-2:])
    return config


def on_files(files, config):
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for target, text in {**cards.pages(), **api.pages()}.items():
        files.append(File.generated(config, target, content=text))
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text("utf-8")
        if NOTEBOOK in text:
            target = f"notebooks/{path.stem}.ipynb"
            files.append(File.generated(config, target, content=notebook(text)))
    return files


def notebook(markdown):
    """Returns a page as a notebook, whose Python and commands are cells, with
    the outputs that the page has after them."""
    markdown = markdown.replace(NOTEBOOK, "")
    links = r"\[([^]]*)\]\((?!https:)[^)]*\)"  # to other pages
    line = r"[^\n]*\n"
    command = rf"^    keras-vit {line}"
    other = rf"(?!```|{command})^{line}"
    pieces = rf"^```(.*?)^```\n|((?:{command})+)|((?:{other})+)"
    cells = []

    def add(kind, source, **more):
        cell = {"cell_type": kind, "metadata": {}, "source": source, **more}
        cells.append(cell)

    for fence, indented, text in re.findall(pieces, markdown, re.M | re.S):
        kind, _, code = fence.partition("\n")
        if kind == "text" and cells and cells[-1]["cell_type"] == "code":
            output = {"output_type": "stream", "name": "stdout", "text": code}
            cells[-1]["outputs"] = [output]
        elif kind == "python" or indented:
            code = code or re.sub("^    ", "!", indented.rstrip(), flags=re.M)
            add("code", code, execution_count=None, outputs=[])
        elif fence or text.strip():
            source = f"```{fence}```" if fence else text.strip("\n")
            add("markdown", re.sub(links, r"\1", source))
    return json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4},
        indent=1,
    )


def on_page_markdown(markdown, page, config, files):
    source = source_of(page.file.src_uri)
    if source is None:
        return markdown
    if files.get_file_from_path("demo/index.html"):
        markdown = markdown.replace("<!-- demo -->", DEMO)
    name = pathlib.PurePath(source).stem
    markdown = markdown.replace(
        NOTEBOOK,
        f"[Download as a notebook](notebooks/{name}.ipynb)"
        f"{{ .md-button download={name}.ipynb }}",
    )
    return rewrite_links(markdown, source, page.file.src_uri, repository())


def on_page_content(html, page, config, files):
    """Marks numbers such as 1e-05, which would be broken at the hyphen."""
    return re.sub(r"<td>(\d[\d.]*e-\d+)</td>", r'<td class="number">\1</td>', html)


def source_of(src_uri):
    """Returns a page's file in the repository, or None if it is generated."""
    pages = {target: source for source, target in PAGES.items()}
    if src_uri in pages:
        return pages[src_uri]
    path = f"docs/{src_uri}"
    return path if (ROOT / path).exists() else None


def rewrite_links(markdown, source, target, repo_url):
    """Returns a page whose links, relative to its file in the repository, lead
    to pages of the site, or, to files that are not there, to the repository."""
    start = posixpath.dirname(target)

    def link(match):
        opening, path, rest = match.groups()
        if re.match(r"[a-z]+:|#|$", path):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if place in PAGES:
            place = PAGES[place]
        elif place.startswith("docs/"):
            place = place.removeprefix("docs/")
        elif (ROOT / place).exists():
            kind = "tree" if (ROOT / place).is_dir() else "blob"
            return f"{opening}{repo_url}/{kind}/main/{place}{rest}"
        else:
            return match[0]  # MkDocs reports it
        return f"{opening}{posixpath.relpath(place, start or '.')}{rest}"

    # Fenced and inline code stays as it is.
    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.M | re.S)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(\]\()([^)#\s]*)((?:#[^)]*)?\))", link, pieces[i])
    return "".join(pieces)
