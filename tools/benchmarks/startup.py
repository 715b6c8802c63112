"""The time until the first prediction, in new processes.

Seconds to import Keras and keras_vit; to build ViT-B/16 and ViT-H/14; to build
B/16 and L/16 with random weights from .npz files; and of the first call of
B/16, which compiles, and of the second. Only the first figure includes the
import. Best and median.
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile

_IMPORT = """
import time
start = time.perf_counter()
import keras
middle = time.perf_counter()
import keras_vit
print(middle - start)
print(time.perf_counter() - middle)
"""
_BEGIN = "import time, sys, numpy as np, keras_vit\n"
_TIMED = _BEGIN + "s = time.perf_counter(); {}; print(time.perf_counter() - s)"
_WRITE = (
    _BEGIN + "keras_vit.converters.save(keras_vit.{}(), sys.argv[1])\nprint(0)"
)
_CALLS = (
    _BEGIN
    + """
model = keras_vit.ViTB16()
images = np.zeros((1, 224, 224, 3), "float32")
for _ in range(2):
    s = time.perf_counter()
    model.predict_on_batch(images)
    print(time.perf_counter() - s)
"""
)


def main(rounds):
    times = [_run(_IMPORT)[-2:] for _ in range(rounds)]
    for what, seconds in zip(
        ("import keras", "import keras_vit, after it"),
        zip(*times, strict=True),
        strict=True,
    ):
        _print(what, seconds)
    for name in ("ViTB16", "ViTH14"):
        code = _TIMED.format(f"keras_vit.{name}()")
        _print(f"build {name}", [_run(code)[-1] for _ in range(rounds)])
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ViTB16", "ViTL16"):
            path = pathlib.Path(folder) / f"{name}.npz"
            _run(_WRITE.format(name), path)
            code = _TIMED.format(f"keras_vit.{name}(weights=sys.argv[1])")
            _print(
                f"build {name} with weights",
                [_run(code, path)[-1] for _ in range(rounds)],
            )
            path.unlink()
    calls = [_run(_CALLS)[-2:] for _ in range(rounds)]
    for which, times in zip(
        ("first", "second"), zip(*calls, strict=True), strict=True
    ):
        _print(f"{which} call of ViTB16", times)


def _run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(line) for line in done.stdout.split()]


def _print(what, seconds):
    print(
        f"{what:26} best {min(seconds):6.2f} s, "
        f"median {statistics.median(seconds):6.2f} s",
        flush=True,
    )
