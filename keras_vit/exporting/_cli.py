"""Exports a model for those who run it without Keras, and checks it.

  export.py runs/digits digits.onnx
      the model of a recipe's run for ONNX Runtime
  export.py vit_b16.keras served/
      a folder without an ending: a SavedModel for TensorFlow Serving
  export.py ViT-B_16.npz vit.tflite --int8-weights --batch 1
      a checkpoint for phones, with dense weights of 8 bits
  KERAS_BACKEND=torch export.py model.keras model.pt2 --softmax
      for PyTorch without Keras; outputs are probabilities
  export.py vit_b16.keras big.onnx --image-size 384
      at another size of images; positions are resampled

The backend writes what it can, and a .keras file is the same under each:

  format       TARGET    tensorflow          jax            torch
  saved_model  (folder)  any batch and size  any, any       -
  onnx         .onnx     any batch and size  any batch (a)  any batch (b)
  litert       .tflite   any batch and size  -              -
  torch        .pt2      -                   -              any batch

With one size of images where it says no more. (a) needs jax2onnx, TensorFlow
tf2onnx, (b) onnxscript; in a clone: pip install ".[export]".

The exported model takes images as Keras's does, (batch, height, width,
channels) in [-1, 1] or whatever the model was trained with: pixels are scaled
outside. It is written beside TARGET, opened again and run on random images, at
batches of 1 and 3 if the batch is open; if an output differs from Keras's by
more than 1e-4 (of the largest output, where that exceeds 1; int8: a quarter of
the largest), nothing is left. Then a call of batch 1 is timed on both.

--int8-weights: SavedModel and .pt2 by Keras's quantize("int8"), LiteRT by its
dynamic range, ONNX by onnxruntime's; products run in int8, too.

Exit status: 0 done, 1 refused, 2 wrong usage.
"""

import argparse
import pathlib

from keras_vit import _program
from keras_vit._logging import logger


def main(argv=None):
    """Runs the command line and returns its exit status."""
    return _program.run_program(_run, _parser().parse_args(argv))


def _run(a):
    from keras_vit.exporting import _export
    from keras_vit.exporting import _formats
    from keras_vit.exporting import _loading
    from keras_vit.exporting import _targets

    target = a.target.expanduser()
    name = _formats.format_of(a.format, target)
    _formats.writer_of(name)
    _targets.check_target(
        target, not _formats.FORMATS[name].suffix, a.overwrite
    )
    logger.info(f"reading  {a.model}")
    settings = dict(map(_program.parse_setting, a.set))
    model, shape = _loading.load(a.model, a.layout, settings, a.image_size)
    shape = (a.batch, *shape)
    if a.softmax:
        model = _export.with_softmax(model)
    logger.info(f"model    {model.name}: {model.count_params():,} parameters")
    _export.export(
        model,
        target,
        name,
        shape,
        _loading.image_size(model),
        a.int8_weights,
        a.check,
        say=logger.info,
    )
    return 0


def _count(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0. Received: {text!r}"
        )
    return int(text)


def _batch(text):
    return None if text == "dynamic" else _count(text)


def _parser():
    parser = argparse.ArgumentParser(
        prog="export.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a .keras file, the folder of a recipe's run or "
        "of Hugging Face's, or the address of one: all that tools/convert.py "
        "reads, and any .keras file of one input and one output",
    )
    parser.add_argument("target", metavar="TARGET", type=pathlib.Path)
    parser.add_argument(
        "--format",
        choices=("saved_model", "onnx", "litert", "torch"),
        help="default: what TARGET's ending tells",
    )
    parser.add_argument(
        "--image-size",
        metavar=("H", "W"),
        nargs="+",
        type=_count,
        action=_Size,
        help="height and width in pixels, or one number for both (default: "
        "the model's; any, if it takes any and the format can)",
    )
    parser.add_argument(
        "--batch",
        metavar="N|dynamic",
        type=_batch,
        default=None,
        help="images in a batch (default: dynamic, which is any number)",
    )
    parser.add_argument(
        "--int8-weights",
        action="store_true",
        help="make dense weights int8; tells how far outputs move",
    )
    parser.add_argument(
        "--softmax",
        action="store_true",
        help="end in probabilities, for a model that ends in logits",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run what was written, and refuse it if it differs",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing TARGET"
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


class _Size(argparse.Action):
    def __call__(self, parser, namespace, values, option=None):
        if len(values) > 2:
            parser.error(f"{option} takes one number or two.")
        setattr(namespace, self.dest, (values[0], values[-1]))
