"""Write a report about a model: what it attends to, and its weights.

  keras-vit report runs/digits photos/
      the model of a recipe's run, on images
  keras-vit report model.safetensors cat.jpg dog.png --output report/
      a checkpoint by timm, or any other that `keras-vit convert` reads
  keras-vit report hf://facebook/dinov2-small cat.jpg --keep-aspect
      download a model; keep the image's aspect ratio, and resample positions
  keras-vit report ViT-B_16.npz
      the weights only: filters and positions

The report is one self-contained page, report.html, with its figures as PNG
files next to it: attention over images (Figure 6 of the paper), the attention
maps of every head, the principal components of patches' features, the three
panels of Figure 7, and the L2 norms of tokens. For a detector, it shows the
objects that it finds, filters and positions. The figures show at most eight
images; attention distances are averaged over all images (the paper uses 128).

Exit status: 0 done, 1 error, 2 wrong usage.
"""

import argparse
import time
from typing import TYPE_CHECKING

from keras_vit_programs import console

if TYPE_CHECKING:
    import keras
    from matplotlib.figure import Figure

    from keras_vit.utils.scaling import Mode
    from keras_vit.utils.types import Array

DEFAULT_SIZE = 224  # pixels, if it cannot be inferred


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    # Intermixed parsing allows options between the images.
    return console.run_program(_run, _parser().parse_intermixed_args(argv))


def _run(a: argparse.Namespace) -> int:
    """Writes the report and returns the exit status."""
    # Imported here, so that --help does not wait for Keras.
    from keras_vit import converters, models
    from keras_vit.evaluation.classifiers import class_names
    from keras_vit.evaluation.runs import warn_of_scaling
    from keras_vit.inspection import tokens
    from keras_vit.utils.logging import logger
    from keras_vit.utils.optional import require
    from keras_vit.utils.text import printable
    from keras_vit_programs import images as image_files
    from keras_vit_programs import report_page, run_folder

    started = time.perf_counter()
    require("matplotlib", "recipes")
    output = run_folder.results_folder(a.output, "runs/report", a.overwrite)
    given_mode = console.parse_mode(a.mode)
    paths = image_files.image_paths(a.images)
    settings = dict(map(console.parse_setting, a.set))
    logger.info(f"reading  {a.model}")
    checkpoint = converters.open_checkpoint(a.model, a.from_, settings.get("num_heads"))
    channels = checkpoint.channels
    images = image_files.read_images(paths, channels)
    if a.keep_aspect:
        settings.setdefault("input_shape", (None, None, channels))
    size = mode = objects = None
    if checkpoint.is_detector:
        if a.labels or a.set or a.keep_aspect:
            raise ValueError(
                "--labels, --set and --keep-aspect are not for detectors: "
                f"leave them out. Received: {a.labels}, {a.set}, "
                f"{a.keep_aspect}"
            )
        model, size, mode, objects = draw_boxes(a.model, images, given_mode)
        size = (size, size) if isinstance(size, int) else size
    else:
        # The report scales the images itself.
        model = models.without_preprocessing(
            converters.load_for_images(checkpoint, **settings)
        )
        mode = given_mode or checkpoint.preprocess_mode
        if mode is None and images and not checkpoint.saved:
            warn_of_scaling(a.model)
    classes = model.outputs[0].shape[-1]
    logger.info(
        f"model    {report_page.format_name(checkpoint)}: "
        f"{model.count_params():,} parameters, "
        f"{console.counted(len(images), 'image')}"
    )
    builder = report_page.Report(
        model,
        checkpoint,
        images,
        [printable(path.name) for path in paths],
        size=size or tokens.image_size(model) or (DEFAULT_SIZE, DEFAULT_SIZE),
        mode=mode or "tf",
        keep_aspect=a.keep_aspect,
        labels=a.labels or class_names(checkpoint, classes),
        objects=objects,
    )
    files = builder.build()
    output.mkdir(parents=True, exist_ok=True)
    for name in (*report_page.FIGURES, report_page.PAGE):
        (output / name).unlink(missing_ok=True)  # of an earlier report
    for name, content in files.items():
        (output / name).write_bytes(content)
    seconds = time.perf_counter() - started
    page = output / report_page.PAGE
    logger.info(
        f"wrote    {page} ({len(files[page.name]) / 1000:.0f} kB) "
        f"and {len(files) - 1} figures in {seconds:.0f} s"
    )
    return 0


def draw_boxes(
    weights: str, images: "list[Array]", mode: "Mode | None" = None
) -> "tuple[keras.Model, int | tuple[int, int], Mode, Figure | None]":
    """Returns a detector, the size of its images and their `mode`, and a figure
    of the objects that it finds in images."""
    from keras_vit.evaluation import find_boxes, load_classifier, plot_boxes

    trained = load_classifier(weights, mode=mode)
    model, size = trained.model, trained.image_size
    images = images[:8]
    found = find_boxes(model, images, size, trained.mode, least_score=0.4)
    names = trained.class_names or getattr(model, "class_names", None)
    count = model.output["classes"].shape[-1]
    names = names or [f"class {i}" for i in range(count)]
    pictures = [image / 255 for image in images]
    figure = plot_boxes(pictures, None, found, names) if images else None
    return model, size, trained.mode, figure


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = console.Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    console.add_model_arguments(parser)
    parser.add_argument(
        "images",
        metavar="IMAGES",
        nargs="*",
        help="image files, or folders of them; resized for the model and "
        "shown unchanged",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder for the report; default: runs/report, with -2, -3, ... appended "
        "if it exists",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an earlier report in --output",
    )
    parser.add_argument(
        "--keep-aspect",
        action="store_true",
        help="keep the aspect ratio of each image, at about the same number of "
        "pixels; position embeddings are resampled",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="names of the classes, one per line, or Keras's JSON (default: "
        "those in the config next to MODEL, or ImageNet's)",
    )
    parser.add_argument(
        "--mode",
        help=f"{console.MODE_HELP} (default: inferred from the config next to MODEL "
        "or its format, else tf)",
    )
    return parser
