"""Convert checkpoints between Keras, JAX and PyTorch; see `--help`.

Importing keras_vit imports Keras and its backend, which takes 3 seconds (JAX)
to 8 (PyTorch). Converting between files needs neither and is often done in
less, so this program imports the modules of keras_vit without running
`keras_vit/__init__.py`. `--help` then takes 0.3 seconds.
"""

import importlib.util
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent


def skip_package_init():
    """Make keras_vit importable without running its `__init__.py`."""
    spec = importlib.util.find_spec("keras_vit")
    folders = spec.submodule_search_locations if spec else None
    package = types.ModuleType("keras_vit")
    package.__path__ = list(folders or [str(ROOT / "keras_vit")])
    sys.modules["keras_vit"] = package


if __name__ == "__main__":
    skip_package_init()
    from keras_vit_programs.convert import main

    sys.exit(main())
