"""The time until the first prediction, in new processes.

Seconds to import Keras and keras_vit; to build ViT-B/16 and ViT-H/14; to build
B/16 and L/16 with random weights from .npz files; and of the first call of
B/16, which compiles, and of the second. Only the first figure includes the
import. Best and median.
"""

import pathlib
import tempfile

from benchmarks.processes import numbers
from benchmarks.processes import show

_TIMER = """
import sys, time
import numpy as np

def timed(call):
    start = time.perf_counter()
    result = call()
    print(time.perf_counter() - start)
    return result

"""
_IMPORT = """
import importlib
timed(lambda: importlib.import_module("keras"))
timed(lambda: importlib.import_module("keras_vit"))
"""
_BUILD = """
import keras_vit
build, weights = getattr(keras_vit, sys.argv[1]), None
if sys.argv[2:]:
    weights = sys.argv[2]
timed(lambda: build(weights=weights))
"""
WRITE = """
import sys, keras_vit
model = getattr(keras_vit, sys.argv[1])()
keras_vit.converters.save(model, sys.argv[2])
"""
_CALLS = """
import keras_vit
model = keras_vit.ViTB16()
images = np.zeros((1, 224, 224, 3), "float32")
for _ in range(2):
    timed(lambda: model.predict_on_batch(images))
"""


def main(a):
    def measure(names, code, *arguments):
        found = [numbers(_TIMER + code, *arguments) for _ in range(a.rounds)]
        for name, seconds in zip(names, zip(*found, strict=True), strict=True):
            show(name, seconds)

    measure(("import keras", "import keras_vit, after it"), _IMPORT)
    for name in ("ViTB16", "ViTH14"):
        measure((f"build {name}",), _BUILD, name)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights.npz"
        for name in ("ViTB16", "ViTL16"):
            numbers(WRITE, name, path)
            measure((f"build {name} with weights",), _BUILD, name, path)
    measure(("first call of ViTB16", "second call of ViTB16"), _CALLS)
