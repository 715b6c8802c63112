"""Former name of `report.py`."""

import os

if __name__ == "__main__":
    import runpy

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report.py")
    runpy.run_path(path, run_name="__main__")
else:
    # A tool, whose folder is first on sys.path, imports Python's `inspect`.
    __file__ = os.path.join(os.path.dirname(os.__file__), "inspect.py")
    with open(__file__, encoding="utf-8") as file:
        exec(compile(file.read(), __file__, "exec"))
