"""Trains an object detector on a Vision Transformer.

  python recipes/detect.py
      finds handwritten digits on photographs, in minutes on a CPU and without
      a download; docs/detection-measured.md contains measurements
  python recipes/detect.py --dataset photos --weights ViT-S_16.npz \\
      --image-size 512
      fine-tunes on your own images: photos/train.json and test.json with
      annotations in COCO's format, or photos/train.csv and test.csv with the
      columns path,class,x_min,y_min,x_max,y_max in pixels, one line for each
      box; see keras_vit.data.load_detection
  python recipes/detect.py --stamps stamps/animals --weights dinov2_s14 \\
      --train head
      trains on pictures with an alpha channel, stamps/animals/CLASS/*.png,
      which are composed on photographs, with a frozen encoder

All images are read before training begins. An interrupted run resumes bit for
bit with the same command.

The output folder contains model.keras, metrics.csv with the loss, AP and AP50
of the test images, curves.png, config.json, coco.json with COCO's twelve
metrics, and detection.png with test images, their boxes and the predictions.
Object sizes are measured in images resized to --image-size. The environment
variable KERAS_BACKEND selects jax, tensorflow or torch.
"""

import dataclasses
import os

# TensorFlow's start-up messages would hide the output of this program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# By default, PyTorch's threads spin while they wait. On a CPU that other
# programs use too, a step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import keras_vit
from keras_vit_programs import (
    building,
    curves,
    defaults,
    flags,
    run_folder,
    runs,
    setup,
    sizes,
    stamps,
)

# Options of FCOS for digits and stamps, whose objects are large in the image.
LARGE = {"levels": ("P4", "P5"), "filters": 64}
NUM_PICTURES = 6
LEAST_SCORE = 0.4  # of the boxes in pictures
# A ResNet of one unit, so that a position of its feature map is 4 pixels wide.
HYBRID = {"resnet_layers": (1,)}


def is_composed(s):
    """Returns whether images are composed of digits or of --stamps."""
    return s.dataset == "digits"


def learning_rate(s, data):
    tunes = s.weights and s.train == "all" and (s.stamps or not is_composed(s))
    return 0.0001 if tunes else 0.001


# The defaults, in the order in which they are set.
DEFAULTS = (
    flags.Rule(
        "model",
        "the architecture of --weights, or without them compact-hybrid for "
        "digits, else compact-vit",
        lambda s, data: (
            "compact-hybrid" if is_composed(s) and not (s.stamps or s.weights) else None
        ),
    ),
    defaults.SPEC,
    flags.Rule(
        "image_size",
        "that of the dataset, else of the model, else 224",
        lambda s, data: defaults.first(data.image_size, s.spec["image_size"], 224),
    ),
    defaults.PATCH_SIZE,
    *defaults.batch_size(16),
    defaults.steps(
        "20000, and 800 for digits and stamps",
        lambda s, data: 800 if is_composed(s) else 20000,
    ),
    defaults.NO_EPOCHS,
    defaults.evaluate_every(5),
    flags.Rule(
        "learning_rate",
        "0.001, or 0.0001 for all weights of --weights on images other than digits",
        learning_rate,
    ),
    flags.Rule(
        "scale",
        "2, or 1.1 for digits and stamps",
        lambda s, data: 1.1 if is_composed(s) else 2.0,
    ),
    flags.Rule(
        "queries",
        "100, or 8 for digits and stamps",
        lambda s, data: 8 if is_composed(s) else 100,
    ),
    defaults.constant("weight_decay", 0.05),
    defaults.constant("warmup", 0.05),
    defaults.constant("keep", "last"),
    defaults.MODE,
)


@dataclasses.dataclass(frozen=True)
class Config(
    flags.Weights,
    flags.Patches,
    flags.Epochs,
    flags.Keep,
    flags.Warmup,
    flags.Training,
):
    dataset: str = flags.flag(
        "'digits', handwritten digits on photographs; voc or coco of TFDS; or a "
        "folder with train.json and test.json in COCO's format, or train.csv and "
        "test.csv",
        "digits",
        "NAME|FOLDER",
    )
    stamps: str | None = flags.flag(
        "instead of --dataset, a folder of pictures with an alpha channel, "
        "DIR/CLASS/*.png, to compose on photographs of scikit-learn",
        metavar="DIR",
    )
    head: str = flags.flag(
        "fcos (points on a feature pyramid, without anchors) or yolos (detection "
        "tokens in the encoder, which needs more steps)",
        "fcos",
        choices=("fcos", "yolos"),
    )
    train: str = flags.flag(
        "trainable weights: all, or head (with a frozen encoder)",
        "all",
        choices=("all", "head"),
    )
    queries: int | None = flags.flag(
        "number of detection tokens of yolos, the maximum number of boxes in an image",
        minimum=1,
    )
    scale: float | None = flags.flag(
        "images are scaled by a random factor between 1/X and X before they "
        "are cropped",
        minimum=1,
    )

    defaults = DEFAULTS

    def __post_init__(self):
        super().__post_init__()
        if self.train == "head" and self.weights is None:
            raise ValueError("--train head needs an encoder: give --weights.")
        if self.stamps is not None and self.dataset != "digits":
            raise ValueError("Give --stamps or --dataset, not both.")


def main(config):
    setup.launch(config, resolve_config, train, load)


def load(config):
    if config.stamps is not None:
        return stamps.load_stamps(config.stamps)
    return keras_vit.data.load_detection(config.dataset)


def train(config, data, strategy, output):
    """Trains with the settings of `resolve_config`, and saves the results."""
    summary = "the head" if config.train == "head" else "encoder and head"
    summary = f"{config.head}, {summary}"
    with setup.open_run(config, data, strategy, output, summary) as run:
        if strategy.num_devices > 1:
            raise ValueError(
                "Detectors train on one device: give --strategy none. "
                f"Received: {strategy.num_devices} devices"
            )

        # 1. Data: batches of images, and of classes with boxes.
        batches = {"image_size": config.image_size, "mode": config.mode}

        def train_batches(start):
            return data.train(
                **batches,
                batch_size=config.batch_size,
                seed=config.seed,
                start=start,
                flip=data.can_flip and not config.no_flip,
                scale=config.scale,
            )

        test = data.evaluation(**batches, batch_size=config.batch_size)

        # 2. Model: an encoder, and what finds boxes in its features.
        model = build_model(config, data)

        # 3. Optimizer. The model has its own loss.
        schedule = keras_vit.schedules.warmup_cosine(
            config.learning_rate, config.steps, config.warmup
        )
        model.compile(setup.build_optimizer(config, schedule))

        # 4. Training, from the last checkpoint if there is one.
        run.callbacks.append(keras_vit.evaluation.CocoMetrics(test, ("AP", "AP50")))
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: the model, the numbers of COCO, pictures and settings.
        def write(model, output):
            runs.write_model(model, output / "model.keras")
            found = keras_vit.evaluation.evaluate_boxes(model, test)
            run_folder.save_json(found, output / "coco.json")
            write_pictures(model, test, data, config, output, found)

        return run.save(model, write)


def build_model(config, data):
    encoder = building.build_model(
        config.model,
        config.weights,
        config.patch_size,
        config.seed,
        input_shape=config.input_shape(data.channels),
        classes=2,  # of a head that is not used
        remat=config.remat,
        **(HYBRID if config.model == "compact-hybrid" else {}),
    )
    if config.train == "head":
        keras_vit.training.freeze_weights(encoder)
    names = data.class_names
    if config.head == "fcos":
        options = LARGE if config.dataset == "digits" else {}
        return keras_vit.detection.FCOS(
            encoder, len(names), class_names=names, **options
        )
    return keras_vit.detection.YOLOS(
        encoder, len(names), config.queries, class_names=names
    )


def write_pictures(model, test, data, config, output, found):
    """Plots some test images with their boxes and the predictions."""
    chosen = np.linspace(0, data.num_test - 1, NUM_PICTURES).astype(int)
    images, truth, predicted = [], [], []
    for index in np.unique(chosen):
        batch, row = divmod(int(index), config.batch_size)
        image, label = (x[row : row + 1] for x in test[batch])
        size = image.shape[1:3]
        (boxes,) = keras_vit.detection.decode(model.predict_on_batch(image), *size)
        sure = boxes["scores"] >= LEAST_SCORE
        predicted.append({name: x[sure] for name, x in boxes.items()})
        truth += keras_vit.evaluation.coco.targets_by_image(label, *size)
        images.append(curves.unit_range(image[0], config.mode))
    keras_vit.evaluation.plot_boxes(
        images,
        truth,
        predicted,
        data.class_names,
        f"{data.name}: AP {found['AP']:.3f}, AP50 {found['AP50']:.3f} on "
        f"{data.num_test} test images",
    ).savefig(output / "detection.png")


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    config = flags.fill(given, data)
    if not sizes.resolve_model_spec(config.model, config.weights)["stride"]:
        raise ValueError(
            "Detectors read the maps of Transformer blocks: give a Vision "
            "Transformer or a hybrid. Received: "
            f"{config.model or config.weights}"
        )
    return config


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
