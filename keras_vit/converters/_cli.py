"""Converts checkpoints between Keras, JAX and PyTorch.

  convert.py ViT-B_16.npz vit_b16.keras
      a whole Keras model from a checkpoint of Google's
  convert.py model.safetensors ViT-B_16.npz --to vit_jax
      from timm's layout, which is found by its keys, to Google's
  convert.py vit_b16.keras hub/ --to huggingface
      a folder that transformers loads
  convert.py mystery.pth --inspect
      what a file holds, without converting

SOURCE is an .npz, .safetensors, .pth, .pt, .bin or .keras file, the
.index.json of a sharded one, or a Hugging Face folder. TARGET's ending chooses
the container. Layouts: vit_jax, big_vision, timm, huggingface, torchvision,
dinov2, mae, bit; a spelling other than the usual one follows a colon, such as
vit_jax:current. Converting between files loads no backend.
"""

import argparse
import ast
import pathlib
import sys

import ml_dtypes
import numpy as np

from keras_vit.converters import _huggingface
from keras_vit.converters._checkpoint import open_checkpoint
from keras_vit.converters._convert import to_checkpoint
from keras_vit.converters._files import SUFFIXES
from keras_vit.converters._files import replacing
from keras_vit.converters._files import write
from keras_vit.converters._layouts import known
from keras_vit.converters._layouts import raise_unless_held
from keras_vit.converters._layouts import spelling_of

DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def main(argv=None):
    """Runs the command line and returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.inspect:
            print(inspect(arguments.source, arguments.layout))
            return 0
        if arguments.target is None:
            raise ValueError("TARGET is missing (or use --inspect).")
        convert(
            arguments.source,
            arguments.target,
            layout=arguments.layout,
            to=arguments.to,
            settings=dict(map(_setting, arguments.set)),
            dtype=arguments.dtype,
            overwrite=arguments.overwrite,
        )
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {arguments.target}")
    return 0


def convert(
    source, target, layout=None, to=None, settings=None, dtype=None, **options
):
    """Converts one checkpoint.

    Args:
        source: Path of what to read.
        target: Path of what to write; its ending chooses the container, and
            a name without one is a Hugging Face folder.
        layout: Name of the source's layout; None finds it.
        to: Name of the target's layout; None keeps the source's.
        settings: Dict of arguments of the model's function that win over
            what the source tells.
        dtype: "float32", "float16", "bfloat16" or None to keep the source's.
        **options: `overwrite`.

    Raises:
        ValueError: if the source cannot be read, or the target's layout
            cannot hold it. Nothing is then written.
    """
    source, target = pathlib.Path(source), pathlib.Path(target)
    known(layout)
    known(to)
    settings = settings or {}
    if target.suffix == ".keras":
        _to_keras(source, target, layout, settings, **options)
        return
    if target.suffix not in ("", *SUFFIXES):
        raise ValueError(
            f"TARGET must end in .keras, {', '.join(SUFFIXES)}, or be a "
            f"folder. Received: {str(target)!r}"
        )
    name, weights, told = _read(source, layout, settings)
    to = to or name
    if to is None:
        raise ValueError("A .keras file has no layout: say which with --to.")
    raise_unless_held(told, to)
    arrays = to_checkpoint(weights, spelling_of(to, weights), told["num_heads"])
    if dtype is not None:
        arrays = {k: array.astype(DTYPES[dtype]) for k, array in arrays.items()}
    if target.suffix == "":
        if to.partition(":")[0] != "huggingface":
            raise ValueError(
                f"A folder is for --to huggingface. Received: --to {to}"
            )
        _huggingface.write_folder(target, arrays, told, **options)
    else:
        write(arrays, target, **options)


def _read(source, layout, settings):
    """Returns `(layout, weights, arguments)` of a source."""
    if source.suffix != ".keras":
        checkpoint = open_checkpoint(source, layout, settings.get("num_heads"))
        grid = settings.get("grid_size")
        told = {**checkpoint.arguments(grid), **settings}
        return checkpoint.layout, checkpoint.weights, told
    import keras

    from keras_vit.converters._models import describe

    model = keras.models.load_model(source, safe_mode=True)
    weights, told = describe(model)
    return None, weights, {**told, **settings}


def _to_keras(source, target, layout, settings, overwrite=False):
    if source.suffix == ".keras":
        raise ValueError("Both are .keras files: copy it.")
    from keras_vit.converters._models import load

    with replacing(target, overwrite) as temporary:
        load(source, layout, **settings).save(temporary)


def inspect(source, layout=None):
    """Returns a description of a checkpoint, for reading."""
    checkpoint = open_checkpoint(source, layout)
    told = checkpoint.arguments()
    spelling = checkpoint.format.name
    weights = checkpoint.weights
    count = sum(array.size for array in weights.values())
    dtypes = sorted({str(array.dtype) for array in weights.values()})
    lines = [
        f"layout      {checkpoint.layout}"
        + (f":{spelling}" if spelling else ""),
        f"parameters  {count:,}",
        f"dtype       {', '.join(dtypes)}",
        *(f"{name:20} {value}" for name, value in sorted(told.items())),
        "",
        *(
            f"{checkpoint.format.key(path):64} {array.shape} {array.dtype}"
            for path, array in weights.items()
        ),
    ]
    return "\n".join(lines)


def _setting(text):
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--set takes name=value. Received: {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word, such as gelu


def _parser():
    parser = argparse.ArgumentParser(
        prog="convert.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET", nargs="?")
    parser.add_argument(
        "--from", dest="layout", help="layout of SOURCE, if several fit"
    )
    parser.add_argument("--to", help="layout of TARGET (default: SOURCE's)")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        nargs="+",
        default=[],
        help="arguments of VisionTransformer that SOURCE cannot tell, such as "
        "num_heads=6",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="type of the arrays")
    parser.add_argument("--inspect", action="store_true")
    parser.add_argument("--overwrite", action="store_true")
    return parser
