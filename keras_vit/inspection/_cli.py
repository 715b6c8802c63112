"""Looks inside a model and writes a report, with its pictures.

  inspect.py runs/digits photos/
      what a model of a recipe looks at
  inspect.py model.safetensors cat.jpg dog.png --out report/
      a checkpoint of timm's, or of whoever tools/convert.py reads
  inspect.py hf://facebook/dinov2-small cat.jpg --keep-aspect
      downloaded; the image keeps its aspect, and positions follow
  inspect.py ViT-B_16.npz
      the weights alone: filters and positions

The report is one page, report.html, that holds its pictures and fetches
nothing; beside it are the pictures as PNGs: attention over images (Figure 6 of
the paper), every head, Figure 7's three panels, the length of tokens. Eight
images are drawn; distances are means over all, 128 in the paper.

Exit status: 0 done, 1 refused, 2 wrong usage.
"""

import argparse
import pathlib
import time

from keras_vit import _program
from keras_vit._logging import logger

SIZE = 224  # pixels, where nothing tells


def main(argv=None):
    """Runs the command line and returns its exit status."""
    # Options may stand between images.
    return _program.run_program(_run, _parser().parse_intermixed_args(argv))


def _run(a):
    from keras_vit import converters
    from keras_vit import training
    from keras_vit.inspection import _facts
    from keras_vit.inspection import _images
    from keras_vit.inspection import _parts
    from keras_vit.inspection import _report

    started = time.perf_counter()
    training.require("matplotlib")
    output = training.check_output(a.out, a.overwrite, "--out")
    paths = _images.image_paths(a.images)
    settings = dict(map(_program.parse_setting, a.set))
    logger.info(f"reading  {a.model}")
    checkpoint = converters.open_checkpoint(
        a.model, a.layout, settings.get("num_heads")
    )
    channels = _channels(checkpoint)
    images = _images.read_images(paths, channels)
    if a.keep_aspect:
        settings.setdefault("input_shape", (None, None, channels))
    model = converters.load(checkpoint, a.layout, **settings)
    classes = model.outputs[0].shape[-1]
    logger.info(
        f"model    {_facts.layout_name(checkpoint)}: "
        f"{model.count_params():,} parameters, {len(images)} images"
    )
    report = _report.Report(
        model,
        checkpoint,
        settings,
        images,
        [_program.printable(path.name) for path in paths],
        size=_parts.image_size(model) or (SIZE, SIZE),
        mode=a.mode or _facts.mode_of(checkpoint, channels),
        keep_aspect=a.keep_aspect,
        labels=a.labels or _facts.class_names(checkpoint, classes),
        say=logger.info,
    )
    files = report.build()
    training.open_output(output, (*_report.PICTURES, _report.PAGE))
    for name, content in files.items():
        with training.replacing(output / name) as temporary:
            temporary.write_bytes(content)
    seconds = time.perf_counter() - started
    page = output / _report.PAGE
    logger.info(
        f"wrote    {page} ({len(files[page.name]) / 1000:.0f} kB) "
        f"and {len(files) - 1} pictures in {seconds:.0f} s"
    )
    return 0


def _channels(checkpoint):
    first = ("root_conv/kernel", "patch_embedding/kernel")
    weights = checkpoint.weights
    return next(weights[name] for name in first if name in weights).shape[2]


def _parser():
    parser = argparse.ArgumentParser(
        prog="inspect.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a .keras file, the folder of a recipe's run or "
        "of Hugging Face's, or the address of one: all that tools/convert.py "
        "reads",
    )
    parser.add_argument(
        "images",
        metavar="IMAGES",
        nargs="*",
        help="image files, or folders of them; they are resized to what the "
        "model takes, and drawn as they are",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=pathlib.Path,
        default=pathlib.Path("report"),
        help="folder for the report (default: report)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an earlier report in --out",
    )
    parser.add_argument(
        "--keep-aspect",
        action="store_true",
        help="give the model each image in its own aspect, at about the same "
        "number of pixels; positions are resampled",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="names of the classes, one a line, or Keras's JSON (default: "
        "what lies beside MODEL, or ImageNet's)",
    )
    parser.add_argument(
        "--mode",
        choices=("tf", "torch"),
        help="pixels: tf for [-1, 1], torch for ImageNet's mean and deviation "
        "(default: what lies beside MODEL or its layout tells, else tf)",
    )
    parser.add_argument(
        "--from",
        dest="layout",
        metavar="LAYOUT",
        help="layout of MODEL, if it cannot be told",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of VisionTransformer that MODEL cannot tell, such "
        "as num_heads=6 or grid_size=(2,8); may be repeated",
    )
    return parser
