"""Export a model to SavedModel, ONNX, OpenVINO, LiteRT or PyTorch.

  export.py runs/digits digits.onnx
      the model of a recipe's run for ONNX Runtime
  export.py vit_b16.keras served/
      a name without a suffix: a SavedModel for TensorFlow Serving
  export.py ViT-B_16.npz vit.tflite --int8-weights --batch 1
      a checkpoint for phones, with dense weights in int8
  KERAS_BACKEND=torch export.py model.keras model.pt2 --softmax
      for PyTorch without Keras, with probabilities as outputs
  export.py vit_b16.keras big.onnx --image-size 384
      for another image size; position embeddings are resampled

The backend determines what can be written. A .keras file loads under each:

  format       TARGET    tensorflow          jax            torch
  saved_model  (folder)  any batch and size  any, any       -
  onnx         .onnx     any batch and size  any batch (a)  any batch (b)
  openvino     .xml      any batch           any batch (a)  any batch (b)
  litert       .tflite   any batch and size  -              -
  torch        .pt2      -                   -              any batch

Where "size" is missing, the image size is fixed. ONNX needs tf2onnx under
TensorFlow, (a) jax2onnx, (b) onnxscript; in a clone: pip install ".[export]".
OpenVINO's format is made from ONNX, and has a second file (.bin).

A model whose outputs are a dict, such as one of keras_vit.dense_features, keeps
their names.

The exported model takes the same images as the Keras model, (batch, height,
width, channels), preprocessed as in training: for example in [-1, 1]. It is
written to a temporary file, read back and run on random images, with batches of
1 and 3 if the batch size is dynamic. If an output differs from Keras's by more
than 1e-4 (in half precision 5e-2), relative to the largest output if that
exceeds 1 (with --int8-weights a quarter of the largest), TARGET is not written.
Finally a batch, of 1 if the batch size is dynamic, is timed with both.

--int8-weights uses Keras's quantize("int8") for SavedModel and .pt2, LiteRT's
dynamic-range quantization for .tflite, and onnxruntime's dynamic quantization
for ONNX and OpenVINO. Matrix products are computed in int8, too.

Exit status: 0 done, 1 error, 2 wrong usage.
"""

import argparse
import pathlib
from typing import Any

from keras_vit import _program
from keras_vit._logging import logger


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return _program.run_program(_run, _parser().parse_args(argv))


def _run(a: argparse.Namespace) -> int:
    """Exports the model and returns the exit status."""
    # Imported here, so that --help does not wait for Keras.
    from keras_vit.exporting import export
    from keras_vit.exporting import formats
    from keras_vit.exporting import loading

    target = a.target.expanduser()
    name = formats.format_of(a.format, target)
    formats.writer_of(name)
    spec = formats.FORMATS[name]
    for path in spec.files(target):
        export.check_target(path, not spec.suffix, a.overwrite)
    logger.info(f"reading  {a.model}")
    settings = dict(map(_program.parse_setting, a.set))
    model, shape = loading.load(a.model, a.layout, settings, a.image_size)
    shape = (a.batch, *shape)
    if a.softmax:
        model = export.with_softmax(model)
    logger.info(f"model    {model.name}: {model.count_params():,} parameters")
    export.export(
        model,
        target,
        name,
        shape,
        loading.image_size(model),
        a.int8_weights,
        a.check,
        log=logger.info,
    )
    return 0


def _count(text: str) -> int:
    """Parses a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0. Received: {text!r}"
        )
    return int(text)


def _batch(text: str) -> int | None:
    """Parses a batch size."""
    return None if text == "dynamic" else _count(text)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = _program.Parser(
        prog="export.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a .keras file, the folder of a recipe's run or "
        "of a Hugging Face model, or the URL of one: everything that "
        "tools/convert.py reads, and any .keras file of one input and one "
        "output, or outputs with names",
    )
    parser.add_argument("target", metavar="TARGET", type=pathlib.Path)
    parser.add_argument(
        "--format",
        choices=("saved_model", "onnx", "openvino", "litert", "torch"),
        help="default: by the suffix of TARGET",
    )
    parser.add_argument(
        "--image-size",
        metavar=("H", "W"),
        nargs="+",
        type=_count,
        action=_Size,
        help="height and width in pixels, or one number for both (default: "
        "the model's; dynamic if the model and the format support it)",
    )
    parser.add_argument(
        "--batch",
        metavar="N|dynamic",
        type=_batch,
        default=None,
        help="batch size (default: dynamic, any number)",
    )
    parser.add_argument(
        "--int8-weights",
        action="store_true",
        help="quantize dense weights to int8, and report the difference",
    )
    parser.add_argument(
        "--softmax",
        action="store_true",
        help="output probabilities, for a model that outputs logits",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the exported model with Keras's",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing TARGET"
    )
    parser.add_argument(
        "--from",
        dest="layout",
        metavar="LAYOUT",
        help="format of MODEL, if it cannot be inferred",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of VisionTransformer that cannot be inferred from "
        "MODEL, such as num_heads=6 or grid_size=(2,8); may be repeated",
    )
    return parser


class _Size(argparse.Action):
    """Stores one number or two as `(height, width)`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if len(values) > 2:
            parser.error(f"{option_string} takes one number or two.")
        setattr(namespace, self.dest, (values[0], values[-1]))
