"""Converts checkpoints between Keras, JAX and PyTorch; `--help` tells how.

Importing keras_vit imports Keras and its backend, which converting between
files does not need and which takes longer than the work. So the package is
entered here beside its front door; what needs Keras imports it.
"""

import importlib.util
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent


def enter_beside_the_door():
    spec = importlib.util.find_spec("keras_vit")
    folders = spec.submodule_search_locations if spec else None
    package = types.ModuleType("keras_vit")
    package.__path__ = list(folders or [str(ROOT / "keras_vit")])
    sys.modules["keras_vit"] = package


if __name__ == "__main__":
    enter_beside_the_door()
    from keras_vit.convert import main

    sys.exit(main())
