"""Examples of docstrings in the API reference.

They begin with `>>> `, as those of Keras, which Markdown reads as quotations. This
extension of griffe, which mkdocs.yml names, puts them into fences.
"""

import re

import griffe


class Examples(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring):
    """Returns a docstring whose lines from each `>>> ` to an empty line are code."""
    return re.sub(
        r"^>>> .*(?:\n.+)*",
        lambda found: f"```pycon\n{found[0]}\n```",
        docstring,
        flags=re.M,
    )
