"""Export a model to SavedModel, ONNX, OpenVINO, LiteRT or PyTorch.

  keras-vit export runs/digits digits.onnx
      the model of a recipe's run for ONNX Runtime
  keras-vit export vit_b16.keras served/
      a name without a suffix: a SavedModel for TensorFlow Serving
  keras-vit export ViT-B_16.npz vit.tflite --int8-weights --batch-size 1
      a checkpoint for phones, with dense weights in int8
  KERAS_BACKEND=torch keras-vit export model.keras model.pt2 --softmax
      for PyTorch without Keras, with probabilities as outputs
  keras-vit export vit_b16.keras big.onnx --image-size 384
      for another image size; position embeddings are resampled
  KERAS_BACKEND=torch keras-vit export runs/digits page --to web
      a page that runs in the browser, offline, from any static server

The backend determines what can be written. A .keras file can be loaded with
each:

  format       TARGET    tensorflow          jax            torch
  saved_model  (folder)  any batch and size  any, any       -
  onnx         .onnx     any batch and size  any batch (a)  any batch (b)
  openvino     .xml      any batch           any batch (a)  any batch (b)
  litert       .tflite   any batch and size  -              -
  torch        .pt2      -                   -              any batch
  web          (folder)  -                   -              one image

Where "size" is missing, the image size is fixed. ONNX needs tf2onnx under
TensorFlow, (a) jax2onnx, (b) onnxscript; in a clone: pip install ".[export]".

The exported model takes the same preprocessed images as the Keras model. It is
written to a temporary file, read back and run on random images. If an output
differs from Keras's by more than 1e-4, relative to the largest output if that
exceeds 1 (with --int8-weights a quarter of the largest), TARGET is not written.
A model in half precision, such as mixed_bfloat16, is exported in float32.

In Python, this is `keras_vit.export`.

Exit status: 0 done, 1 error, 2 wrong usage.
"""

import argparse
import shlex
from pathlib import Path

from keras_vit_programs import console

FORMATS = ("saved_model", "onnx", "openvino", "litert", "torch", "web")


def _run(a: argparse.Namespace) -> int:
    """Exports the model and returns the exit status."""
    # Imported here, so that --help does not wait for Keras.
    from keras_vit.exporting import check_target, export, read_model
    from keras_vit.utils.logging import logger

    size = a.image_size and (a.image_size[0], a.image_size[-1])
    settings = dict(map(console.parse_setting, a.set))
    # Before the model, which may be large, is loaded.
    target = Path(a.target).expanduser()
    form = check_target(target, a.to, a.overwrite, a.check, a.int8_weights)
    logger.info(f"reading  {a.model}")
    export(
        read_model(a.model, a.from_, settings, size, form),
        a.target,
        a.to,
        image_size=size,
        batch_size=a.batch_size,
        int8_weights=a.int8_weights,
        softmax=a.softmax,
        check=a.check,
        overwrite=a.overwrite,
    )
    if a.to == "web":
        logger.info(f"To look at it:\n  keras-vit serve-page {shlex.quote(a.target)}")
    return 0


def _count(text: str) -> int | None:
    """Parses a whole number above 0, or "dynamic"."""
    if text == "dynamic":
        return None
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0. Received: {text!r}"
        )
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = console.Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    console.add_model_arguments(
        parser,
        ", and any .keras file of one input and one output, or outputs with names",
    )
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}; default: by the suffix of TARGET",
    )
    parser.add_argument(
        "--image-size",
        metavar=("H", "W"),
        nargs="+",
        type=_count,
        help="height and width in pixels, or one number for both (default: "
        "the model's; dynamic if the model and the format support it)",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N|dynamic",
        type=_count,
        help="batch size (default: dynamic, any number)",
    )
    parser.add_argument(
        "--int8-weights",
        action="store_true",
        help="quantize dense weights to int8",
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
    arguments = parser.parse_args(argv)
    if len(arguments.image_size or ()) > 2:
        parser.error("--image-size takes one number or two.")
    return console.run_program(_run, arguments)
