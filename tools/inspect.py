"""Looks inside a model and writes a report; `--help` tells how."""

import importlib.machinery
import importlib.util
import os
import sys


def load_pythons_own():
    """Gives Python's module `inspect` to whoever imported this file for it.

    A program's folder comes first on the path, so `import inspect` in any tool
    of this folder, or in what it uses, finds this file.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("inspect", others)
    module = importlib.util.module_from_spec(spec)
    sys.modules["inspect"] = module
    spec.loader.exec_module(module)


if __name__ == "inspect":
    load_pythons_own()

if __name__ == "__main__":
    # TensorFlow's greetings would hide what this program says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from keras_vit.inspection._cli import main

    sys.exit(main())
