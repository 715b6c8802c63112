"""The pages in docs/ whose Python does something else under JAX."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"
BLOCKS = {
    path.name: re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    for path in sorted(DOCS.glob("*.md"))
}
PAGES = [
    name
    for name, blocks in BLOCKS.items()
    if any('backend() == "jax"' in block for block in blocks)
]


@pytest.mark.backends("jax")
@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_run(name):
    names = {}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), names)


@pytest.mark.backends("jax")
def test_there_is_such_a_page():
    assert "scale.md" in PAGES
