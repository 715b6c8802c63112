"""Measures keras_vit: what importing it costs, and what memory it takes.

    KERAS_BACKEND=jax python tools/benchmark.py
    KERAS_BACKEND=jax python tools/benchmark.py --memory

Seconds are the best and the median of fresh processes, run alternately.
`--memory` prints what each device holds of ViT-H/14 when 1 to 8 share it
(from shapes and layouts: nothing is allocated), and the most that a process
held for a training step of 4 blocks of S/16 on 16 images, with and without
gradient checkpointing. XLA's CPU compiler undoes the latter: see it on
PyTorch, on TensorFlow, or on a GPU.
"""

import argparse
import statistics
import subprocess
import sys


def seconds_to_import(module):
    code = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    return output(code)


def output(code):
    """The last number that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


STEP = """
import resource, sys
import keras, numpy as np, keras_vit
model = keras_vit.ViTS16(
    input_shape=(224, 224, 3), classes=10, num_layers=4, remat={remat}
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.01), loss, jit_compile={jit})
images = np.zeros((16, 224, 224, 3), "float32")
for _ in range(2):
    model.train_on_batch(images, np.zeros(16, int))
kilo = 1 if sys.platform == "linux" else 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo / 1024)
"""


def print_memory():
    import keras

    import keras_vit
    from keras_vit import distribution

    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.ViTH14(input_shape=(224, 224, 3))
    alone = distribution.bytes_per_device(model)
    for count in (1, 2, 4, 8):
        mesh = keras.distribution.DeviceMesh(
            (1, count),
            ("batch", distribution.MODEL),
            [f"cpu:{i}" for i in range(count)],
        )
        parallel = distribution.ModelParallel(mesh)
        held = distribution.bytes_per_device(model, parallel)
        print(
            f"ViT-H/14, {count} devices: {held / 1e6:6.0f} MB on each, "
            f"{alone / held:.1f} times less than on one"
        )
    jit = keras.backend.backend() == "jax"
    for remat in (False, True):
        code = STEP.format(remat=remat, jit=jit)
        print(f"training step, remat={remat}: {output(code):.0f} MB at most")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="processes a module (default 7)"
    )
    parser.add_argument(
        "--memory", action="store_true", help="memory instead of seconds"
    )
    arguments = parser.parse_args()
    if arguments.memory:
        print_memory()
        return
    rounds = range(arguments.rounds)
    times = {"keras": [], "keras_vit": []}
    for _ in rounds:
        for module, measured in times.items():
            measured.append(seconds_to_import(module))
    for module, measured in times.items():
        print(
            f"import {module:10} best {min(measured):.2f} s, "
            f"median {statistics.median(measured):.2f} s"
        )
    added = min(times["keras_vit"]) - min(times["keras"])
    print(f"import keras_vit adds {added:.2f} s to import keras (best)")


if __name__ == "__main__":
    main()
