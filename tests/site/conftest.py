"""The site is built where its extra is installed: it is in `test`, too."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("mkdocs") is None:
    collect_ignore.append("test_build.py")
