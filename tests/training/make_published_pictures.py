"""Makes published_pictures.npz with the functions of big_vision.

    python -m tests.training.make_published_pictures BIG_VISION

where BIG_VISION is a checkout of google-research/big_vision. The file in this
folder was made with commit 0127fb6 and TensorFlow 2.21. It holds:

- `image`, uint8, and `png`, the same image of another size, encoded
- `randaugment/OPERATION/MAGNITUDE/WAY`: what the operations of
  pp/archive/autoaugment.py make of `image`, in graph mode, with way 0 for an
  argument above zero and 1 for one below, where a sign is sampled
- `pp/NAME`: what the functions of pp/ops_image.py make of `png`; NAME
  `inception_K` has the window that TensorFlow samples from the seed (0, K)

tensorflow_addons, of which autoaugment.py takes three functions, does not run
with this TensorFlow. They are one call of TensorFlow each, and are restated.
"""

import pathlib
import sys
import types

import numpy as np
import tensorflow as tf

from tests.training.pictures import encode, noise

PATH = pathlib.Path(__file__).with_name("published_pictures.npz")
SIZE = 32
MAGNITUDES = (0, 4, 10, 15, 20)
SEEDS = range(4)
# These have no magnitude, and those a random sign.
CONSTANT = ("AutoContrast", "Equalize", "Invert")
SIGNED = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def addons():
    """Returns a module with the functions of `tensorflow_addons.image`."""

    def transform(image, matrix):
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=image[None],
            transforms=tf.reshape(tf.cast(matrix, tf.float32), (1, 8)),
            output_shape=tf.shape(image)[:2],
            fill_value=0.0,
            interpolation="NEAREST",
            fill_mode="CONSTANT",
        )[0]

    def rotate(image, angle):
        rows, columns = (float(n - 1) for n in image.shape[:2])
        cos, sin = tf.cos(angle), tf.sin(angle)
        right = (columns - (cos * columns - sin * rows)) / 2
        down = (rows - (sin * columns + cos * rows)) / 2
        return transform(image, tf.stack([cos, -sin, right, sin, cos, down, 0.0, 0.0]))

    def translate(image, offset):
        right, down = offset
        return transform(image, [1, 0, -right, 0, 1, -down, 0, 0])

    module = types.ModuleType("tensorflow_addons")
    module.image = types.SimpleNamespace(
        transform=transform, rotate=rotate, translate=translate
    )
    return module


def randaugment(image):
    from big_vision.pp.archive import autoaugment

    hparams = autoaugment.HParams(cutout_const=40, translate_const=100)
    sampled = {0: 0.9, 1: 0.1}  # above zero, and below
    for magnitude in MAGNITUDES:
        for name in autoaugment.NAME_TO_FUNC:
            if name == "Cutout":  # its position is random
                continue
            if name in CONSTANT and magnitude != MAGNITUDES[0]:
                continue
            for way in sampled if name in SIGNED else (0,):

                @tf.function(autograph=False)
                def augment(x, name=name, way=way, magnitude=magnitude):
                    autoaugment.tf.random_uniform = lambda *shape, **_: tf.constant(
                        sampled[way]
                    )
                    function, _, arguments = autoaugment._parse_policy_info(
                        name, 0.0, float(magnitude), [128] * 3, hparams
                    )
                    return function(x, *arguments)

                found = augment(tf.constant(image)).numpy()
                yield f"randaugment/{name}/{magnitude}/{way}", found


def pp(png):
    from big_vision.pp import ops_image

    def of(*functions):
        data = {"image": tf.constant(png)}
        for function in (ops_image.get_decode(), *functions):
            data = function(data)
        assert data["image"].dtype == tf.uint8
        return data["image"].numpy()

    ops = ops_image
    # 256 and 224 pixels, and 448 and 384, in proportion.
    yield "few_shot", of(ops.get_resize(64), ops.get_central_crop(56))
    yield "eval", of(ops.get_resize_small(64), ops.get_central_crop(56))
    resized = ops.get_resize_small(56)
    yield "transfer_eval", of(resized, ops.get_central_crop(48))
    yield "transfer_before_crop", of(resized)
    sample_box = tf.image.stateless_sample_distorted_bounding_box
    for seed in SEEDS:

        def sample(shape, boxes, seed=seed, **keywords):
            boxes = tf.zeros((1, 0, 4))
            return sample_box(shape, boxes, seed=(0, seed), **keywords)

        tf.image.sample_distorted_bounding_box = sample
        yield f"inception_{seed}", of(ops.get_inception_crop(48))


def main(folder):
    sys.path.insert(0, folder)
    sys.modules["tensorflow_addons"] = addons()
    image = (20 + noise(SIZE, SIZE) * 0.8).astype(np.uint8)
    png = encode(noise(61, 83))
    arrays = {"image": image, "png": np.frombuffer(png, np.uint8)}
    arrays.update(randaugment(image))
    arrays.update({f"pp/{name}": x for name, x in pp(png)})
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {len(arrays)} arrays, {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
