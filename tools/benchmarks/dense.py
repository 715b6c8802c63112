"""Segmentation by the features of a trained and of a random encoder.

`--images` is a folder with {train,test}/{images,masks}/*, as for
recipes/segment.py. A `LinearSegmenter` on the frozen features of the last block
is trained without augmentation, so that they are computed once. The foreground
is that of `feature_pca`, computed for each test image on its own; it is
compared with the pixels of any class but the first, the background. The random
encoder is a ViT-S with the initial weights of the paper.
"""

import argparse

import numpy as np

BATCH = 32
EPOCHS = 60


def read(data: object, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images, preprocessed as for DINOv2, and masks of a split."""
    count = getattr(data, f"num_{split}")
    return data.batches(split, image_size=size, batch_size=count, mode="torch")[
        0
    ]


def linear_iou(
    encoder: object, data: object, train: tuple, test: tuple
) -> float:
    """Returns the mean IoU of a linear head on the frozen encoder."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    encoder.trainable = False
    classes = len(data.class_names)
    model = keras_vit.segmentation.LinearSegmenter(encoder, classes)
    maps = model.get_layer("head_norm").input
    features = keras.Model(model.input, maps)
    head = keras.Model([maps, model.input], model.output)
    (x, y), (test_x, test_y) = train, test
    steps = EPOCHS * -(-len(x) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(0.01, steps)
    head.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=data.ignore
        ),
    )
    inputs = [features.predict(x, BATCH, verbose=0), x]
    head.fit(inputs, y, BATCH, EPOCHS, verbose=0)
    inputs = [features.predict(test_x, BATCH, verbose=0), test_x]
    found = head.predict(inputs, BATCH, verbose=0).argmax(-1)
    confusion = keras_vit.evaluation.confusion_matrix(
        found, test_y, classes, data.ignore
    )
    return keras_vit.evaluation.mean_iou(confusion)[0]


def foreground_iou(
    encoder: object, images: np.ndarray, masks: np.ndarray, ignore: int
) -> float:
    """Returns the mean IoU of foreground and background of `feature_pca`."""
    import keras_vit
    from keras_vit.data import segmentation

    found = []
    for image in images:
        result = keras_vit.inspection.feature_pca(encoder, image[None])
        found += result.foreground
    found = [segmentation.resize_mask(x, masks.shape[1:]) for x in found]
    objects = np.where(masks == ignore, ignore, masks > 0)
    confusion = keras_vit.evaluation.confusion_matrix(
        np.stack(found).astype(int), objects, 2, ignore
    )
    return keras_vit.evaluation.mean_iou(confusion)[0]


def main(a: argparse.Namespace) -> None:
    import keras_vit

    (size,) = a.image_size or [112]
    data = keras_vit.data.load_segmentation(a.images)
    train, test = read(data, "train", size), read(data, "test", size)
    shape = (size, size, 3)
    print("| encoder | linear head | foreground by PCA |\n|---|---|---|")
    for name in ("random", "trained"):
        encoder = (
            keras_vit.converters.load(a.encoder, input_shape=shape)
            if name == "trained"
            else keras_vit.ViTS16(
                input_shape=shape, patch_size=14, include_top=False
            )
        )
        linear = linear_iou(encoder, data, train, test)
        found = foreground_iou(encoder, *test, data.ignore)
        print(f"| {name} | {linear:.3f} | {found:.3f} |", flush=True)
