"""Memory of training.

The bytes of ViT-H/14 on each device when it is split over 1 to 8 devices
(computed from shapes and layouts, without allocation), and the peak memory of a
process that runs a training step of 4 blocks of S/16 on 16 images, with and
without gradient checkpointing. XLA's CPU compiler removes the checkpointing:
use PyTorch, TensorFlow or a GPU to measure it. And the peak memory of a process
that segments a photograph of 1,500 x 1,000 pixels with Ti/16, whole and with
`segmentation.sliding_window`, into 150 classes.
"""

import subprocess
import sys


def output(code):
    """Returns the last number that a new process prints."""
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

SEGMENTATION = """
import resource, sys
import keras, numpy as np, keras_vit
from PIL import Image
from sklearn.datasets import load_sample_image
photo = Image.fromarray(load_sample_image("china.jpg")).resize((1500, 1000))
photo = np.asarray(photo, "float32") / 127.5 - 1
encoder = keras_vit.ViTTi16(
    input_shape=(224, 224, 3), include_top=False, pad_to_patch=True
)
model = keras_vit.segmentation.LinearSegmenter(encoder, 150)
kind = {kind!r}
if kind == "whole":
    found = model.predict_on_batch(photo[None])[0].argmax(-1)
elif kind == "windows":
    found = keras_vit.segmentation.sliding_window(
        model, photo, window=512, stride=384, batch_size=1, argmax=True
    )
if kind != "nothing":
    assert found.shape == (1000, 1500)
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
    print_segmentation()


def print_segmentation():
    for kind in ("nothing", "windows", "whole"):
        code = SEGMENTATION.format(kind=kind)
        print(
            f"segmentation of 1,500 x 1,000 pixels, {kind}: "
            f"{output(code):.0f} MB at most"
        )
