"""Memory of several devices, gradient checkpointing, sliding windows.

The bytes of ViT-H/14 on each device when it is split over 1 to 8 devices
(computed from shapes and layouts, without allocation), and the peak memory of a
process that runs a training step of 4 blocks of S/16 on 16 images, with and
without gradient checkpointing. XLA's CPU compiler removes the checkpointing:
use PyTorch, TensorFlow or a GPU to measure it. And the peak memory of a process
that segments a photograph of 1,500 x 1,000 pixels with Ti/16, whole and with
`segmentation.sliding_window`, into 150 classes.
"""

from benchmarks.processes import PEAK
from benchmarks.processes import numbers

STEP = """
import sys
import keras, numpy as np, keras_vit
model = keras_vit.ViTS16(
    input_shape=(224, 224, 3), classes=10, num_layers=4,
    remat=sys.argv[1] == "True",
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
jit = keras.backend.backend() == "jax"
model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit)
images = np.zeros((16, 224, 224, 3), "float32")
for _ in range(2):
    model.train_on_batch(images, np.zeros(16, int))
"""

SEGMENTATION = """
import sys
import numpy as np, keras_vit
from PIL import Image
from sklearn.datasets import load_sample_image
photo = Image.fromarray(load_sample_image("china.jpg")).resize((1500, 1000))
photo = np.asarray(photo, "float32") / 127.5 - 1
encoder = keras_vit.ViTTi16(
    input_shape=(224, 224, 3), include_top=False, pad_to_patch=True
)
model = keras_vit.segmentation.LinearSegmenter(encoder, 150)
if sys.argv[1] == "whole":
    model.predict_on_batch(photo[None])[0].argmax(-1)
elif sys.argv[1] == "windows":
    keras_vit.segmentation.sliding_window(
        model, photo, window=512, stride=384, batch_size=1, argmax=True
    )
"""


def main(a):
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
    for what, code, cases in (
        ("training step, remat", STEP, (False, True)),
        (
            "segmentation of 1,500 x 1,000 pixels",
            SEGMENTATION,
            ("nothing", "windows", "whole"),
        ),
    ):
        for case in cases:
            peak = numbers(code + PEAK, case)[-1]
            print(f"{what}: {case}: {peak:.0f} MB at most", flush=True)
