"""Peak memory of training steps under PyTorch, predicted and measured.

Each step runs in a new process. Measured is the peak of the resident memory
minus that of the process before the model is built, after a step of a tiny
model has loaded the libraries. So that memory that is freed is returned to the
system, malloc maps every array of 64 KiB or more.
"""

import json
import os
import subprocess
import sys

# (name, image size, batch, optimizer, accumulate, precision, other arguments)
SETTINGS = (
    ("ViTS16", 224, 16, "adamw", 1, "float32", {"num_layers": 4}),
    ("ViTB32", 224, 4, "sgd", 1, "float32", {"num_layers": 4}),
    ("ViTTi16", 384, 4, "adamw", 1, "float32", {"pooling": "gap"}),
    ("ViTTi16", 224, 16, "adamw", 1, "float32", {"remat": True}),
    ("ViTS16", 224, 16, "adamw", 4, "float32", {"num_layers": 4}),
    ("ViTTi16", 224, 8, "sgd", 1, "mixed_bfloat16", {}),
    ("R26ViTS32", 224, 2, "sgd", 1, "float32", {"num_layers": 4}),
    ("BiT_R50x1", 224, 2, "sgd", 1, "float32", {}),
)

WORKER = """
import json, sys
import keras, numpy as np, keras_vit
from keras_vit import optimizers

name, size, batch, optimizer, accumulate, precision, other = json.loads(
    sys.argv[1]
)


def resident(key):
    with open("/proc/self/status") as file:
        return next(
            int(line.split()[1]) / 1e3 * 1.024
            for line in file
            if line.startswith(key)
        )


def step(build, size, batch, accumulate, times):
    model = build()
    make = optimizers.PublishedAdamW
    if optimizer == "sgd":
        make = optimizers.PublishedSGD
    options = {"momentum": 0.9} if optimizer == "sgd" else {}
    if accumulate > 1:
        options["gradient_accumulation_steps"] = accumulate
    model.compile(
        make(1e-4, global_clipnorm=1.0, **options),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    images = np.zeros((batch, size, size, 3), "float32")
    labels = np.zeros(batch, "int32")
    count = batch // accumulate
    for _ in range(times):
        for i in range(accumulate):
            part = slice(i * count, (i + 1) * count)
            model.train_on_batch(images[part], labels[part])


keras.config.set_dtype_policy(precision)
step(
    lambda: keras_vit.HybridVisionTransformer(
        input_shape=(32, 32, 3), resnet_layers=(1,), width_factor=0.5,
        patch_size=2, hidden_size=32, num_layers=1, num_heads=2, classes=2
    ),
    32, 2, 1, 1,
)
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # resets the peak
function = getattr(keras_vit, name)
step(
    lambda: function(input_shape=(size, size, 3), **other),
    size, batch, accumulate, 1,
)
print(json.dumps(resident("VmHWM") - before))
"""


def measure(setting):
    """Returns the measured peak of a setting in MB."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(setting)],
        env={
            **os.environ,
            "KERAS_BACKEND": "torch",
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_ARENA_MAX": "1",
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def predict(setting):
    """Returns the predicted peak of a setting in MB, and its moment."""
    import keras_vit

    name, size, batch, optimizer, accumulate, precision, other = setting
    parts = keras_vit.cost(
        name,
        size,
        batch,
        optimizer=optimizer,
        accumulate=accumulate,
        precision=precision,
        **other,
    ).step_parts()
    moment = max(parts, key=parts.get)
    return parts[moment] / 1e6, moment


def main(settings=SETTINGS):
    print(
        "| step | batch | predicted MB | measured MB | ratio | peak |\n"
        "|---|---|---|---|---|---|"
    )
    for setting in settings:
        name, size, batch, optimizer, accumulate, precision, other = setting
        predicted, moment = predict(setting)
        measured = measure(setting)
        parts = [f"`{name}`", f"{size} px", optimizer]
        parts += [precision] * (precision != "float32")
        parts += [f"{accumulate} micro-batches"] * (accumulate > 1)
        parts += [f"{key}={value!r}" for key, value in other.items()]
        print(
            f"| {', '.join(parts)} | {batch} | {predicted:.0f} | "
            f"{measured:.0f} | {predicted / measured:.3f} | {moment} |",
            flush=True,
        )
