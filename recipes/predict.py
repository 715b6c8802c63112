"""Predicts the most likely classes of image files, or finds objects in them.

  python recipes/predict.py --weights runs/photos --images new/ one.jpg
      uses the model of a training recipe's run, with its class names
  python recipes/predict.py --model ViTB16 --weights imagenet --images cat.jpg
      uses released weights and ImageNet's class names; both are downloaded
  python recipes/predict.py --weights mine.npz --labels names.txt --images a.png
      uses other weights, with class names from a file
  python recipes/predict.py --weights clip/ --images a.png --names "cat,dog"
      uses CLIP or SigLIP with both towers, without training (docs/text.md)

Folders are searched for image files and NumPy arrays. Files that cannot be read
are left out with a warning. The output folder contains predictions.csv, a table
for spreadsheets, predictions.json and predictions.png, which shows the images
with bar charts of their top classes. For a detector, they contain the boxes
with a score of at least --least-score, in pixels. Probabilities are those of a
softmax, or after training with `--loss sigmoid` those of a sigmoid for each
class. The image size, the preprocessing and the class names are read from the
config.json of the run, if there is one. The environment variable KERAS_BACKEND
selects jax, tensorflow or torch.

`--protocol vit_jax` resizes images as in "An Image is Worth 16x16 Words",
Section 4.1 (https://arxiv.org/abs/2010.11929). Nothing else here is from the
paper.
"""

import dataclasses
import os
import pathlib
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import keras_vit
from keras_vit_programs import charts, classifiers, console, defaults, flags, run_folder
from keras_vit_programs import images as image_files

EXPLAIN = """Shows which patches of images the most likely class depends on.

  keras-vit explain runs/photos new/
      the model of a run, and a folder of images
  keras-vit explain --model ViTB16 --weights imagenet --images cat.jpg
      released weights, which are downloaded

The output folder contains predictions.csv and predictions.json, as those of
`keras-vit predict`, and explanations.png. It shows the images, or with a
protocol that crops them what the model receives, and how much the score of the
predicted class depends on each patch, by gradient rollout
(`keras_vit.inspection.relevance`). The model receives them resized to its
image size, also with `--max-tokens`.
"""
FILES = ("predictions.csv", "predictions.json")
PICTURE, EXPLANATIONS = "predictions.png", "explanations.png"
DRAWN = 24  # maximum number of images in a figure


DEFAULTS = (
    flags.Rule("protocol", "as in training if that is known, else vit_jax"),
    defaults.constant("batch_size", 32),
    flags.Rule(
        "output", "runs/predict or runs/explain, with -2, -3, ... appended if it exists"
    ),
)


@dataclasses.dataclass(frozen=True)
class Config(flags.Trained):
    images: tuple[str, ...] = flags.flag(
        "image files and folders of image files", (), "PATH"
    )
    labels: str | None = flags.flag(
        "file of class names, one per line; default: those of the run, or "
        "ImageNet's for 1000 or 21843 classes",
        metavar="FILE",
    )
    names: str | None = flags.flag(
        "class names for CLIP or SigLIP, whose text tower converts them to a "
        "classifier",
        metavar="NAME,NAME",
    )
    templates: str = flags.flag(
        "texts for each of --names: photo ('a photo of a {}.'), imagenet-7, "
        "imagenet-80, or a text with {}",
        "photo",
        metavar="NAME|TEXT",
    )
    top: int | None = flags.flag(
        "number of classes per image; default: 5, or, for a model with several "
        "classes per image, all with a probability above 0.5",
        minimum=1,
    )
    least_score: float = flags.flag(
        "minimum score of a detector's boxes", 0.4, minimum=0
    )
    explain: bool = flags.flag(
        f"what `keras-vit explain` gives: write {EXPLANATIONS} instead of {PICTURE}: "
        f"for the first {DRAWN} images, which patches the score of the most likely "
        "class depends on (relevance), and the image darkened where it is low "
        "(attended)",
        False,
    )

    defaults = DEFAULTS

    def __post_init__(self):
        super().__post_init__()
        if not self.images:
            raise ValueError("Give --images.")


def main(config):
    with flags.user_errors():
        flags.require("matplotlib")
        config = flags.fill(config)
        trained = classifiers.load_trained(config, config.names is not None)
        if config.names:
            trained = classifier_of_words(config, trained)
        data, files = keras_vit.data.load_files(
            config.images, skip_bad_images=True, decode_all=config.skip_bad_images
        )
        data = trained.adapt(data)
        if config.explain:
            # A detector or a model without attention raises an error here.
            keras_vit.evaluation.num_classes_of(trained)
            keras_vit.inspection.find_blocks(trained.model)
        is_detector = isinstance(trained.model.output, dict)
        if is_detector:
            for name in ("labels", "top", "protocol"):
                if getattr(config, name) is not None:
                    raise ValueError(
                        f"--{name} is not for detectors: leave it out. Received: "
                        f"{getattr(config, name)}"
                    )
        else:
            names = class_names(config, trained)
        options = trained.reading(data, min(config.batch_size, data.num_test))
        protocol = None if is_detector else options["protocol"]
        folder = "runs/explain" if config.explain else "runs/predict"
        output = run_folder.results_folder(config.output, folder, config.overwrite)
        print(
            f"images    {len(files)}\n"
            f"{classifiers.describe_classifier(trained, protocol)}\n"
            f"output    {output}\n",
            flush=True,
        )
        if is_detector:
            save_boxes(config, trained, files, output)
            return
        explainer = Explainer(trained.model)
        # Images that keep their aspect ratio are explained at another size.
        at_once = config.explain and len(files) <= DRAWN and not trained.budget
        if at_once:
            options["batch_size"] = len(files)
        logits, _ = keras_vit.evaluation.predict_dataset(
            explainer if at_once else trained.predictor,
            data.test(**options),
            len(files),
        )
        chances = trained.probabilities(logits)
        found = decoded(chances, config.top, names, trained.multi_label)
        explained = {
            **options,
            "image_size": trained.image_size,
            "batch_size": min(len(files), DRAWN),
        }
        if config.explain and not at_once:
            images = next(iter(data.test(**explained)))[0]
            explainer.explain(np.asarray(images), chances[:DRAWN].argmax(1))
        run_folder.prepare_output(output, (*FILES, PICTURE, EXPLANATIONS))
    width = min(max(len(str(path)) for path in files), 40)
    rows, predictions = [], []
    for path, classes in zip(files, found, strict=True):
        shown = "  ".join(f"{name} {p:.1%}" for _, name, p in classes) or "none"
        print(f"{console.printable(path)[-width:]:{width}}  {shown}")
        rows.append({"file": path})
        for i, (_, name, p) in enumerate(classes, start=1):
            rows[-1] |= {f"class_{i}": name, f"probability_{i}": f"{p:.6g}"}
        keys = ("id", "name", "probability")
        listed = [dict(zip(keys, one, strict=True)) for one in classes]
        predictions.append({"file": str(path), "classes": listed})
    run_folder.save_csv(rows, output / FILES[0])
    summary = {
        "predictions": predictions,
        "skipped": data.num_skipped,
        "reading": options,
        **run_folder.program_info(dataclasses.asdict(config)),
    }
    run_folder.save_json(summary, output / FILES[1])
    pictures = [keras_vit.data.folders.load_thumbnail(path) for path in files[:DRAWN]]
    if config.explain:
        picture = EXPLANATIONS
        likely = decoded(chances[:DRAWN], 1, names, False)
        titles = [
            f"{console.printable(path.name)[-24:]}\n{p:.0%} {name}"
            for path, ((_, name, p),) in zip(files, likely, strict=False)
        ]
        whole = options.get("protocol", "simple") in keras_vit.data.protocols.PLAIN
        shown = pictures if whole else received(data, explained)
        figure = plot_explanations(shown, explainer.maps, titles)
    else:
        picture = PICTURE
        figure = charts.plot_top_predictions(
            pictures,
            [[(name, p) for _, name, p in row] for row in found[:DRAWN]],
            [path.name for path in files[:DRAWN]],
            f"{min(len(files), DRAWN)} of {console.counted(len(files), 'image')}",
        )
    save_figure(figure, output / picture)
    print()
    for name in (*FILES, picture):
        print(f"  {pathlib.Path(output) / name}")


def classifier_of_words(config, trained):
    """Returns a classifier of --names, with the image tower of a dual encoder."""
    whole = None if config.model else keras_vit.load(config.weights)
    if not isinstance(whole, keras_vit.DualEncoder):
        raise ValueError(
            f"{config.weights!r} has no text tower, which --names requires. Leave it "
            "out, or give the files of CLIP or SigLIP."
        )
    names = [name.strip() for name in config.names.split(",") if name.strip()]
    templates = [config.templates] if "{}" in config.templates else config.templates
    whole.encoder = trained.model  # for images of the program's size
    model = keras_vit.zero_shot(whole, names, templates)
    return dataclasses.replace(trained, model=model, class_names=tuple(names))


def class_names(config, trained):
    """Returns the names of the classes, or None for ImageNet's; wrong ones
    raise an error, before the model runs."""
    classes = keras_vit.evaluation.num_classes_of(trained)
    names = config.labels or trained.class_names
    if names is None and classes not in (1000, 21843):
        config_of_model = getattr(trained.model, "config", None)
        if getattr(config_of_model, "pre_norm", False):
            raise ValueError(
                "The outputs of CLIP's image tower are no classes: give --names, or "
                "--labels, a file with one name per line."
            )
        warnings.warn(
            f"The names of the {classes} classes are unknown, and they are numbered. "
            "--labels, a file with one name per line, gives their names.",
            stacklevel=2,
        )
        return [f"class {index}" for index in range(classes)]
    try:
        decoded(np.zeros((1, classes)), config.top, names, trained.multi_label)
    except OSError as error:
        if names is not None:
            raise
        warnings.warn(
            f"Classes are numbered; --labels FILE gives their names. {error}",
            stacklevel=2,
        )
        names = [f"class {index}" for index in range(classes)]
    return names


class Explainer:
    """A model that also computes the relevance of the patches of its images, whose
    forward passes give its outputs."""

    def __init__(self, model):
        self.model, self.maps = model, []

    def explain(self, images, classes=None):
        """Returns the outputs for images; None explains the most likely classes."""
        maps, outputs = keras_vit.inspection.relevance(
            self.model, images, classes, return_outputs=True
        )
        self.maps += list(maps)
        return outputs

    predict_on_batch = explain


def received(data, options):
    """Returns the images of a batch as the model receives them, with values in
    [0, 1]."""
    # Pixels of other modes are not in the range of pictures.
    images = next(iter(data.test(**{**options, "mode": "tf"})))[0]
    return list((np.asarray(images) + 1) / 2)


def plot_explanations(pictures, maps, titles):
    """Plots pictures, with values in [0, 1] and any aspect ratios, with the relevance
    of their patches."""
    gray = (x if x.ndim == 3 else x[..., None] for x in pictures)
    shown = [x * 2 - 1 for x in gray]
    return keras_vit.inspection.plot_attention_heatmap(
        shown, {"relevance": maps}, titles
    )


def save_boxes(config, trained, files, output):
    """Finds the objects in images, and writes and draws their boxes."""
    names = trained.class_names or trained.model.class_names
    count = trained.model.output["classes"].shape[-1]
    names = names or [f"class {i}" for i in range(count)]
    columns = ("file", "class", "score", "x_min", "y_min", "x_max", "y_max")
    rows, pictures, marked = [], [], []
    for path in files:
        images = image_files.read_images([path], trained.channels)
        (found,) = keras_vit.evaluation.find_boxes(
            trained.model,
            images,
            trained.image_size,
            trained.mode,
            config.least_score,
        )
        texts = []
        for box, number, score in zip(*found.values(), strict=True):
            sides = (f"{x:.1f}" for x in box)
            row = (str(path), names[number], f"{score:.6g}", *sides)
            rows.append(dict(zip(columns, row, strict=True)))
            texts.append(f"{console.printable(names[number])} {score:.1%}")
        print(f"{console.printable(path)[-40:]}  {'  '.join(texts) or 'none'}")
        if len(marked) < DRAWN // 3:  # in one row
            pictures.append(images[0] / 255)
            marked.append(found)
    run_folder.prepare_output(output, (*FILES, PICTURE))
    run_folder.save_csv(rows, output / FILES[0], columns)
    summary = {"boxes": rows, **run_folder.program_info(dataclasses.asdict(config))}
    run_folder.save_json(summary, output / FILES[1])
    figure = keras_vit.evaluation.plot_boxes(pictures, None, marked, names)
    save_figure(figure, output / PICTURE)


def save_figure(figure, path):
    with run_folder.atomic_write(path) as temporary:
        figure.savefig(temporary)


def decoded(probabilities, top, names, multi_label):
    """Returns a list of `(id, name, probability)` for each image, the most
    likely first: `top` classes, by default 5, or if `multi_label` all that are
    more probable than 0.5."""
    if isinstance(names, tuple):
        names = list(names)
    classes = probabilities.shape[1]
    likely = multi_label and top is None
    count = classes if likely else min(top or 5, classes)
    found = keras_vit.decode_predictions(probabilities, count, names)
    if likely:
        found = [[one for one in row if one[2] > 0.5] for row in found]
    return [
        [(known_id, console.printable(name), p) for known_id, name, p in row]
        for row in found
    ]


if __name__ == "__main__":
    flags.run(main, Config, EXPLAIN if "--explain" in sys.argv else __doc__)
