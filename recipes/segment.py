"""Trains a linear segmenter on a Vision Transformer: a class for each pixel.

  python recipes/segment.py
      compares three ways to segment handwritten digits on photographs, in
      minutes on 2 CPU cores, without a download: a linear head on the frozen
      encoder of a classifier of digits, the same with the encoder fine-tuned,
      and both trained from scratch; docs/segmentation.md contains measurements
  python recipes/segment.py --dataset photos --weights ViT-B_16.npz \\
      --image-size 512 --train head
      trains the head on your own images, photos/images/NAME.jpg with the masks
      photos/masks/NAME.png, or photos/{train,test}/{images,masks}/*
  python recipes/segment.py --dataset scene_parse150 --model ViTB16 \\
      --weights imagenet21k --image-size 512 --steps 40000
      fine-tunes downloaded weights on ADE20K, which TFDS downloads

A mask is a gray PNG or one with a palette. Its values, or indices, are classes
from 0; pixels with the value --ignore-value have no class, and are neither
used in training nor counted. FOLDER/classes.txt may name the classes, one on
each line. All images and masks are read before training begins.

An interrupted run resumes bit for bit with the same command.

The output folder contains model.keras, metrics.csv, curves.png, config.json,
iou.csv with the intersection over union of each class, and segmentation.png
with test images, their masks and the predictions. Test images are resized to
--image-size; to segment larger ones, use keras_vit.segmentation.sliding_window.
The environment variable KERAS_BACKEND selects jax, tensorflow or torch.
"""

import dataclasses
import os
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit_programs import (
    building,
    charts,
    curves,
    defaults,
    flags,
    run_folder,
    run_report,
    runs,
    setup,
    sizes,
    studies,
)

NUM_PICTURES = 6
# Of the comparison: name: (whether it starts from the encoder, --train)
WAYS = {
    "frozen": (True, "head"),
    "fine-tuned": (True, "all"),
    "scratch": (False, "all"),
}
# A ResNet of one unit, so that a position of its feature map is 4 pixels wide.
HYBRID = {"resnet_layers": (1,)}
# The classifier of digits: images of one digit each. A hybrid learns more from
# these few images than a plain Vision Transformer of patches of 4 pixels, whose
# accuracy was 0.74 after four times the computation.
ENCODER = {
    "model": "compact-hybrid",
    "image_size": 24,
    "batch_size": 32,
    "steps": 800,
    "evaluate_every": 200,
    "learning_rate": 0.003,
}


def learning_rate(s, data):
    if s.train == "head":
        return 0.01
    return 0.0001 if s.weights and s.dataset != "digits" else 0.003


# The defaults, in the order in which they are set.
DEFAULTS = (
    flags.Rule(
        "model",
        "the architecture of --weights, or without them compact-vit (4 layers of "
        "width 64)",
    ),
    defaults.SPEC,
    flags.Rule(
        "image_size",
        "that of the dataset, else of the model, else 224",
        lambda s, data: defaults.first(data.image_size, s.spec["image_size"], 224),
    ),
    defaults.PATCH_SIZE,
    *defaults.batch_size(32),
    defaults.steps(
        "2000, and 600 for digits",
        lambda s, data: 600 if s.dataset == "digits" else 2000,
    ),
    defaults.NO_EPOCHS,
    defaults.evaluate_every(5),
    flags.Rule(
        "learning_rate",
        "0.01 with --train head, else 0.003, or 0.0001 for --weights on images other "
        "than digits",
        learning_rate,
    ),
    flags.Rule(
        "scale",
        "2, or 1.25 for digits",
        lambda s, data: 1.25 if s.dataset == "digits" else 2.0,
    ),
    defaults.constant("weight_decay", 0.05),
    defaults.constant("warmup", 0.1),
    defaults.constant("keep", "last"),
    defaults.MODE,
)


@dataclasses.dataclass(frozen=True)
class Config(
    flags.Weights,
    flags.Patches,
    flags.Epochs,
    flags.Average,
    flags.Keep,
    flags.Warmup,
    flags.Training,
):
    dataset: str = flags.flag(
        "'digits', handwritten digits on photographs; a folder with images/ "
        "and masks/, or train/ and test/ with both; or, in TFDS, "
        "oxford_iiit_pet or scene_parse150",
        "digits",
        "NAME|FOLDER",
    )
    blocks: tuple[int, ...] = flags.flag(
        "blocks whose feature maps the head reads, from 0; negative ones "
        "count from the last",
        (-1,),
    )
    train: str = flags.flag(
        "trainable weights: all, or head (with a frozen encoder)",
        "all",
        choices=("all", "head"),
    )
    ignore_value: int = flags.flag("value of mask pixels that have no class", 255)
    scale: float | None = flags.flag(
        "images are scaled by a random factor between 1/X and X before they "
        "are cropped",
        minimum=1,
    )
    dropout: float = flags.flag(
        "dropout rate of the head's features", 0.1, minimum=0, below=1
    )

    protocol: str | None = None  # of the classifier in `compare`; no flag

    defaults = DEFAULTS
    others = {
        "--accumulate": "splits a batch, on all pixels of which the loss and the "
        "batch norm here depend, and --remat saves memory too",
    }

    def __post_init__(self):
        super().__post_init__()
        if self.train == "head" and self.weights is None:
            raise ValueError("--train head needs an encoder: give --weights.")
        if self.uses_averages and self.train == "all":
            raise ValueError(
                "--average and --average-from average the weights, but not "
                "the statistics of the head's batch norm, which are those of "
                "other features: leave them out, or give --train head. "
                f"Received: {self.average_from or self.average:g}"
            )


def main(config):
    with flags.user_errors():
        strategy, data, output = setup.begin(config, load=load)
    named = config.dataset, config.model, config.weights
    if named == ("digits", None, None) and not config.show_settings:
        compare(config, data, strategy, output)
        return
    with flags.user_errors():
        config = resolve_config(config, data)
    results = train(config, data, strategy, output)
    if strategy.is_main:
        run_report.print_results(results, output)


def load(config):
    return keras_vit.data.load_segmentation(config.dataset, config.ignore_value)


def train(config, data, strategy, output):
    """Trains with the settings of `resolve_config`, and saves the results."""
    summary = "the head" if config.train == "head" else "encoder and head"
    with setup.open_run(config, data, strategy, output, summary) as run:
        # 1. Data: batches of (images, masks).
        def train_batches(start):
            return data.train(
                image_size=config.image_size,
                batch_size=config.batch_size,
                mode=config.mode,
                seed=config.seed,
                start=start,
                shard=strategy.process,
                flip=data.can_flip and not config.no_flip,
                scale=config.scale,
            )

        test = test_batches(config, data, strategy)

        # 2. Model: an encoder, and a linear classifier of its patches.
        model = build_model(config, data)

        # 3. Optimizer, loss and metrics.
        schedule = keras_vit.schedules.warmup_cosine(
            config.learning_rate, config.steps, config.warmup
        )
        model.compile(
            optimizer=setup.build_optimizer(config, schedule),
            loss=keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, ignore_class=data.ignore
            ),
            metrics=[keras_vit.metrics.MeanIoU(len(data.class_names), data.ignore)],
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 4. Training, from the last checkpoint if there is one.
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 5. Results: the model, IoU of each class, pictures and settings.
        alone = strategy.num_devices == 1

        def write(model, output):
            runs.write_model(model, output / "model.keras")
            if alone:
                write_segmentation(data, config, output)

        results = run.save(model, write)
        if strategy.is_main and not alone:
            # In the scope of the strategy, it would take only batches that all
            # devices share.
            write_segmentation(data, config, output)
        return results


def test_batches(config, data, strategy):
    return data.evaluation(
        image_size=config.image_size,
        batch_size=config.batch_size,
        mode=config.mode,
        shard=strategy.process,
        pad=strategy.num_devices > 1,
    )


def build_model(config, data):
    # The two classes are those of a head that is not used.
    encoder = build_encoder(config, config.input_shape(data.channels), 2)
    if config.train != "all":
        keras_vit.training.freeze_weights(encoder)
    classes = len(data.class_names)
    return keras_vit.segmentation.LinearSegmenter(
        encoder, classes, config.blocks, config.dropout
    )


def build_encoder(config, input_shape, classes):
    return building.build_model(
        config.model,
        config.weights,
        config.patch_size,
        config.seed,
        input_shape=input_shape,
        classes=classes,
        remat=config.remat,
        **(HYBRID if config.model == "compact-hybrid" else {}),
    )


def write_segmentation(data, config, output):
    """Writes the IoU of each class and a picture of some predictions."""
    model = keras_vit.load(output / "model.keras")
    test = test_batches(config, data, keras_vit.distribution.get_strategy("none"))
    classes, shown, done = len(data.class_names), [], 0
    wanted = set(np.linspace(0, data.num_test - 1, NUM_PICTURES).astype(int))
    confusion = np.zeros((classes, classes), int)
    for index in range(len(test)):
        images, masks = test[index]
        predicted = np.argmax(model.predict_on_batch(images), axis=-1)
        confusion += keras_vit.evaluation.confusion_matrix(
            predicted, masks, classes, data.ignore
        )
        for row in zip(images, masks, predicted, strict=True):
            if done in wanted:
                shown.append(row)
            done += 1
    mean, by_class = keras_vit.evaluation.mean_iou(confusion)
    columns = zip(data.class_names, by_class, confusion.sum(1), strict=True)
    run_folder.save_csv(
        [{"class": x, "iou": iou, "pixels": n} for x, iou, n in columns],
        output / "iou.csv",
    )
    images, masks, predicted = (np.stack(x) for x in zip(*shown, strict=True))
    charts.plot_segmentation(
        curves.unit_range(images, config.mode),
        masks,
        predicted,
        data.class_names,
        f"{data.name}: mean IoU {mean:.3f} on {data.num_test} test images",
        data.ignore,
    ).savefig(output / "segmentation.png")


def compare(config, data, strategy, output):
    """Trains a classifier of digits, and segmenters in the ways of `WAYS`.

    Each training has a folder of its own. One that is finished is not repeated
    if the comparison is started again.
    """
    folder = output / run_folder.COMPARISON
    # The classifier learns images of single digits, without masks.
    (images, labels), test = keras_vit.data.canvases.single_digits()
    single = keras_vit.data.from_arrays(images, labels, test, name="single-digits")
    with flags.user_errors():
        encoder = dataclasses.replace(
            config,
            **ENCODER,
            epochs=None,  # --epochs is that of the segmenters
            mode="tf",
            protocol="whole",  # no augmentation
            no_flip=True,
            output=str(folder / "encoder"),
            overwrite=False,
        )
        encoder = flags.fill(encoder, single)
        spec = sizes.resolve_model_spec(ENCODER["model"], None)
        check_blocks(config, spec["num_layers"])
        if config.overwrite and strategy.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        strategy.gather(0)  # waits until it is removed
        config = dataclasses.replace(config, overwrite=False)
    accuracy = studies.train_classifier(
        encoder,
        single,
        strategy,
        folder / "encoder",
        lambda: build_encoder(encoder, images.shape[1:], classes=10),
        encoder.warmup,
        "a classifier",
    )["test_accuracy"]
    scores = {"encoder": {"test_accuracy": accuracy}}
    for name, (from_encoder, what) in WAYS.items():
        with flags.user_errors():
            one = dataclasses.replace(
                config,
                model=None if from_encoder else ENCODER["model"],
                weights=str(folder / "encoder") if from_encoder else None,
                train=what,
                output=str(folder / name),
            )
            one = resolve_config(one, data)
            results = studies.read_finished(one, folder / name, data)
        if results is None:
            if strategy.is_main:
                flags.logger.info(f"\n{name}")
            results = train(one, data, strategy, folder / name)
        keys = ("test_mean_iou", "seconds")
        scores[name] = {key: results[key] for key in keys}
    if strategy.is_main:
        run_folder.save_json(scores, output / "config.json")
        log_scores(scores, data.num_test, folder)


def log_scores(scores, num_test, folder):
    flags.logger.info(
        f"\ndigits    a classifier of single digits has an accuracy of "
        f"{scores['encoder']['test_accuracy']:.4f}. Segmenters of {num_test} "
        "test images:\nencoder     mean IoU  seconds"
    )
    for name in WAYS:
        iou, seconds = scores[name].values()
        flags.logger.info(f"{name:<10}  {iou:<8.4f}  {seconds:.0f}")
    for name in WAYS:
        flags.logger.info(f"  {folder / name / 'segmentation.png'}")


def check_blocks(config, count):
    """Checks that an encoder of `count` blocks has those of `--blocks`."""
    if not all(-count <= block < count for block in config.blocks):
        raise ValueError(
            f"--blocks must be from 0 to {count - 1}, or from -{count} to -1: "
            f"the encoder has {count} blocks. Received: "
            f"{', '.join(map(str, config.blocks))}"
        )


def resolve_config(given, data):
    """Returns the settings with their defaults, for a dataset."""
    config = flags.fill(given, data)
    spec = sizes.resolve_model_spec(config.model, config.weights)
    if not spec["stride"]:
        raise ValueError(
            "Segmenters read the maps of Transformer blocks: give a Vision "
            "Transformer or a hybrid. Received: "
            f"{config.model or config.weights}"
        )
    check_blocks(config, spec["num_layers"])
    return config


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
