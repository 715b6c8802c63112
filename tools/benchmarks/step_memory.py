"""Peak memory of training steps under PyTorch, predicted and measured.

Each step runs in a new process. Measured is the peak of the resident memory
minus that of the process before the model is built, after a step of a tiny
model has loaded the libraries. So that memory that is freed is returned to the
system, malloc maps every array of 64 KiB or more.
"""

import json

from benchmarks.processes import numbers

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
        line = next(line for line in file if line.startswith(key))
    return int(line.split()[1]) / 1e3 * 1.024


def step(model, size, batch, accumulate):
    options = {"gradient_accumulation_steps": accumulate}
    if accumulate == 1:
        options = {}
    if optimizer == "sgd":
        made = optimizers.PublishedSGD(
            1e-4, global_clipnorm=1.0, momentum=0.9, **options
        )
    else:
        made = optimizers.PublishedAdamW(1e-4, global_clipnorm=1.0, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(made, loss)
    count = batch // accumulate
    images = np.zeros((count, size, size, 3), "float32")
    for _ in range(accumulate):
        model.train_on_batch(images, np.zeros(count, "int32"))


keras.config.set_dtype_policy(precision)
tiny = keras_vit.HybridVisionTransformer(
    input_shape=(32, 32, 3), resnet_layers=(1,), width_factor=0.5,
    patch_size=2, hidden_size=32, num_layers=1, num_heads=2, classes=2
)
step(tiny, 32, 2, 1)
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # resets the peak
model = getattr(keras_vit, name)(input_shape=(size, size, 3), **other)
step(model, size, batch, accumulate)
print(resident("VmHWM") - before)
"""


def measure(setting):
    """Returns the measured peak of a setting in MB."""
    return numbers(
        WORKER,
        json.dumps(setting),
        KERAS_BACKEND="torch",
        MALLOC_MMAP_THRESHOLD_="65536",
        MALLOC_ARENA_MAX="1",
    )[-1]


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


def main():
    print(
        "| step | batch | predicted MB | measured MB | ratio | peak |\n"
        "|---|---|---|---|---|---|"
    )
    for setting in SETTINGS:
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
