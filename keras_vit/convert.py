"""Converts checkpoints between Keras, JAX and PyTorch.

  convert.py ViT-B_16.npz vit_b16.keras
      a whole Keras model from a checkpoint of Google's
  convert.py model.safetensors ViT-B_16.npz --to vit_jax
      from timm's layout, which is found by its keys, to Google's
  convert.py vit_b16.keras hub/ --to huggingface
      a folder that transformers loads
  convert.py mystery.pth --inspect
      what a file holds, and what it does not tell, without converting
  convert.py ViT-B_16.npz model.pth --to timm --verify
      and run both files, here and in timm, on the same images

SOURCE is an .npz, .safetensors, .pth, .pt, .bin, .keras or .weights.h5 file,
the .index.json of a sharded one, a Hugging Face folder, or the address of one:
https://..., hf://owner/name, hf://owner/name/FILE. TARGET's ending chooses the
container; without one it is a folder. Layouts: vit_jax, big_vision, timm,
huggingface, torchvision, dinov2, mae, bit; a spelling other than the usual one
follows a colon, such as vit_jax:current. --to huggingface finds the model of
transformers that fits: ViT, DeiT or DINOv2. Converting between files loads no
backend; writing .keras or .weights.h5, and --verify, do.

Exit status: 0 done; 1 refused, or --verify found a difference; 2 wrong usage;
3 done, but --verify could not run an original library that is not installed or
does not work. What has no library on PyPI is "not verified" with status 0.
"""

import argparse
import pathlib
import sys

import numpy as np

from keras_vit import _program
from keras_vit import downloads
from keras_vit._warnings import warn
from keras_vit.checkpoints import open_checkpoint
from keras_vit.checkpoints._inspect import inspect
from keras_vit.checkpoints._keras_files import is_keras
from keras_vit.checkpoints._writing import DTYPES
from keras_vit.checkpoints._writing import raise_unless_writable
from keras_vit.checkpoints._writing import write_checkpoint
from keras_vit.checkpoints.checkpoint import check_hyperparameters
from keras_vit.checkpoints.formats import RESNET_CONSTANTS
from keras_vit.checkpoints.formats import check_layout
from keras_vit.checkpoints.formats import first_patch_is_possible
from keras_vit.checkpoints.formats import get_weight_map
from keras_vit.checkpoints.formats import implied_arguments
from keras_vit.checkpoints.infer import infer_pretraining


def main(argv=None):
    """Runs the command line and returns its exit status."""
    return _program.status(_run, _parser().parse_args(argv))


def _run(arguments):
    settings = dict(map(_program.setting, arguments.set))
    source = downloads.fetch_if_remote(arguments.source)
    if arguments.inspect:
        print(inspect(source, arguments.layout, settings))
        return 0
    if arguments.target is None:
        raise ValueError("TARGET is missing (or use --inspect).")
    options = {
        "layout": arguments.layout,
        "to": arguments.to,
        "settings": settings,
        "dtype": arguments.dtype,
    }
    notes = convert(
        source,
        arguments.target,
        overwrite=arguments.overwrite,
        encoder=arguments.encoder,
        **options,
    )
    print(f"wrote {arguments.target}", *notes, sep="\n")
    if not arguments.verify:
        return 0
    from keras_vit._verify import verify

    text, same, complete = verify(source, arguments.target, **options)
    print(text)
    if not same:
        return 1
    return 0 if complete else 3


def convert(
    source,
    target,
    layout=None,
    to=None,
    settings=None,
    dtype=None,
    overwrite=False,
    encoder=False,
):
    """Converts one checkpoint.

    Between files the bits of every array are kept, also those of NaNs.

    Args:
        source: Path of what to read.
        target: Path of what to write; its ending chooses the container, and
            a name without one is a Hugging Face folder.
        layout: Name of the source's layout; None finds it.
        to: Name of the target's layout; None keeps the source's.
        settings: Dict of arguments of the model's function that win over
            what the source tells.
        dtype: "float32", "float16", "bfloat16" or None to keep the source's.
        overwrite: Boolean. Whether what exists may be replaced.
        encoder: Boolean. Whether to leave out what pre-training had beyond
            the encoder: MAE's decoder, for layouts without one.

    Returns:
        List of strings: what those who read the target by its layout alone
        would compute otherwise.

    Raises:
        ValueError: if the source cannot be read, or the target's layout
            cannot hold it. Nothing is then written.
    """
    source = pathlib.Path(source).expanduser()
    target = pathlib.Path(target).expanduser()
    check_layout(layout)
    check_layout(to)
    settings = settings or {}
    if is_keras(target):
        _raise_unless_plain(source, target, to, settings, dtype)
        _to_keras(source, target, layout, settings, overwrite, encoder)
        return []
    checkpoint = open_checkpoint(
        source,
        layout,
        settings.get("num_heads"),
        finite=False,
        decoder=not encoder,
        decoder_num_heads=settings.get("decoder_num_heads"),
    )
    to = to or checkpoint.layout
    if to == "keras":
        raise ValueError(
            f"{str(source)!r} is Keras's own and has no layout: say which "
            "with --to."
        )
    raise_unless_writable(target, to)
    check_hyperparameters(checkpoint, settings)
    grid = settings.get("grid_size")
    told = {**checkpoint.arguments(grid), **settings}
    _warn_if_not_finite(checkpoint)
    notes = []
    if "pooling" not in {**checkpoint.stored, **settings} and (
        first_patch_is_possible(checkpoint.layout, told)
    ):
        notes.append(
            "note: the head is taken for one of the mean of the patches; "
            "arrays are the same if it takes the first patch (big_vision's "
            'pool_type="0"): then give --set pooling=first_patch.'
        )
    paths = set(checkpoint.weights)
    write_checkpoint(
        checkpoint.weights, told, target, to, dtype, overwrite, checkpoint
    )
    if not target.suffix:
        return notes  # a folder's config.json says it all
    name = to.partition(":")[0]
    usual = implied_arguments(name, get_weight_map(to, paths), paths)
    return notes + [
        f"note: {name} has {argument}={usual[argument]!r} unless told; these "
        f"weights are for {told[argument]!r}."
        for argument in ("activation", "norm_epsilon", *RESNET_CONSTANTS["bit"])
        if argument in usual and usual[argument] != told[argument]
    ]


def _raise_unless_plain(source, target, to, settings, dtype):
    if to is not None or dtype is not None:
        raise ValueError(
            f"{target.name!r} has no layout and holds weights in float32: "
            "leave out --to and --dtype. A model's precision is chosen where "
            "it is built, with keras.config.set_dtype_policy."
        )
    if source.suffix == target.suffix and not settings:
        raise ValueError(
            f"Both are {source.suffix} files: copy it, or say with --set what "
            "is to be another."
        )


def _to_keras(source, target, layout, settings, overwrite, encoder):
    from keras_vit import _requirements  # noqa: F401  (Keras says less)
    from keras_vit import pretraining
    from keras_vit.converters import load
    from keras_vit.converters import save_keras

    checkpoint = open_checkpoint(
        source,
        layout,
        settings.get("num_heads"),
        decoder=not encoder,
        decoder_num_heads=settings.get("decoder_num_heads"),
    )
    shapes = {path: array.shape for path, array in checkpoint.weights.items()}
    if infer_pretraining(shapes):
        load = pretraining.load
    save_keras(load(checkpoint, layout, **settings), target, overwrite)


def _warn_if_not_finite(checkpoint):
    names = [
        checkpoint.weight_map.key(path)
        for path, array in checkpoint.weights.items()
        if not np.isfinite(array).all()
    ]
    if names:
        warn(
            f"{checkpoint.path!r} holds values that are not finite, which are "
            f"kept; no model will load them: {', '.join(sorted(names))}"
        )


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
        "--from",
        dest="layout",
        help="layout of SOURCE, if it cannot be told",
    )
    parser.add_argument("--to", help="layout of TARGET (default: SOURCE's)")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        nargs="+",
        default=[],
        help="arguments of VisionTransformer that SOURCE cannot tell, such as "
        "num_heads=6 or grid_size=(2,8)",
    )
    parser.add_argument(
        "--encoder",
        action="store_true",
        help="leave out what pre-training had beyond the encoder, such as "
        "MAE's decoder",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="type of the arrays")
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="print layout, architecture, size and keys of SOURCE",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="then run SOURCE and TARGET on the same images, also in the "
        "library of their layout (timm, transformers, torchvision) if it is "
        "installed, and print the largest differences",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing TARGET"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
