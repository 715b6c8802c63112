"""Convert checkpoints between Keras, JAX and PyTorch.

  keras-vit convert ViT-B_16.npz vit_b16.keras
      a Keras model from one of Google's checkpoints
  keras-vit convert model.safetensors ViT-B_16.npz --to vit_jax
      from timm's format, which is inferred from the keys, to Google's
  keras-vit convert vit_b16.keras hub/ --to huggingface
      a folder that transformers loads
  keras-vit convert runs/digits hub/digits --to hub --push OWNER/digits
      a folder that timm, transformers, Keras and keras_vit open, uploaded to
      the Hugging Face hub
  keras-vit convert unknown.pth --inspect
      print what a file contains and what is ambiguous, without converting it
  keras-vit convert ViT-B_16.npz model.pth --to timm --verify
      convert, then run both files, here and in timm, on the same images

SOURCE is an .npz, .safetensors, .pth, .pt, .bin, .keras or .weights.h5 file,
the .index.json of a sharded checkpoint, a Hugging Face folder or a keras-hub
preset, or the URL of one of these: https://..., hf://owner/name,
hf://owner/name/FILE. TARGET's suffix chooses the file type; without one it is
a folder. A format is the way in which a code base names its arrays: vit_jax,
big_vision, timm, huggingface, torchvision, dinov2, dinov3, mae, dino, mocov3,
bit, keras_hub, open_clip, eomt or yolos; a variant of a format follows a colon,
such as vit_jax:current.
--to huggingface and --to keras_hub choose the model class that fits: ViT,
DeiT, DINOv2, DINOv3, or the image tower of SigLIP or CLIP. Converting between
files does not import Keras, except for detectors and segmenters; writing
.keras or .weights.h5 and --verify do.

If an error asks for an argument, give `format` by --from, and any other
argument by --set, such as --set num_heads=6.

Exit status: 0 success; 1 error, or --verify found a difference; 2 wrong usage;
3 success, but --verify could not run an original library that is not installed
or does not work. Code bases without a library on PyPI are reported as "not
verified", with status 0.
"""

import argparse
import importlib.util
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit_programs import console

if TYPE_CHECKING:
    from keras_vit.utils.types import Config, StrPath
    from keras_vit.weights import Checkpoint

DTYPES = ("float32", "float16", "bfloat16")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return console.run_program(_run, _parser().parse_args(argv))


def skip_package_init() -> None:
    """Makes keras_vit importable without running its `__init__.py`, which imports
    Keras and its backend and takes 3 seconds (JAX) to 8 (PyTorch). Converting between
    files needs neither, and is often done in less."""
    if "keras_vit" in sys.modules:
        return
    spec = importlib.util.find_spec("keras_vit")
    package = types.ModuleType("keras_vit")
    package.__path__ = list(spec.submodule_search_locations or []) if spec else []
    sys.modules["keras_vit"] = package


def _run(arguments: argparse.Namespace) -> int:
    # Imported here, so that --help does not wait for Keras.
    from keras_vit.utils import downloads
    from keras_vit_programs.listing import report

    settings = dict(map(console.parse_setting, arguments.set))
    source = downloads.fetch_if_remote(arguments.source)
    if arguments.inspect:
        text, is_known = report(source, arguments.from_, settings)
        print(text)
        return 0 if is_known else 1
    if arguments.target is None:
        raise ValueError("TARGET is missing (or use --inspect).")
    if arguments.verify or arguments.to == "hub":
        import keras_vit.utils.requirements  # noqa: F401  (clearer than Keras's errors)
    if arguments.to == "hub":
        return _to_hub(source, arguments, settings)
    for flag in ("push", "license", "private"):
        if getattr(arguments, flag):
            raise ValueError(f"--{flag} needs --to hub.")
    options = {
        "format": arguments.from_,
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
    from keras_vit_programs.verification import verify

    text, same, complete = verify(source, arguments.target, **options)
    print(text)
    if not same:
        return 1
    return 0 if complete else 3


def _to_hub(
    source: "StrPath", arguments: argparse.Namespace, settings: "Config"
) -> int:
    """Writes a folder for the hub and returns the exit status."""
    from keras_vit import hub
    from keras_vit.utils import downloads
    from keras_vit_programs.verification import verify_folder

    for flag in ("dtype", "encoder"):
        if getattr(arguments, flag):
            raise ValueError(f"--{flag} has no effect with --to hub: leave it out.")
    if arguments.private and not arguments.push:
        raise ValueError("--private needs --push.")
    if arguments.push:
        downloads.check_repository(arguments.push)
    missing = hub.save(
        source,
        arguments.target,
        arguments.from_,
        license=arguments.license,
        overwrite=arguments.overwrite,
        **settings,
    )
    able = [library for library, reason in missing.items() if not reason]
    print(f"wrote {arguments.target}, which {', '.join(able)} and keras_vit can load")
    for library, reason in missing.items():
        print(f"{library:13}  {reason or 'included'}")
    status = 0
    if arguments.verify:
        text, same, complete = verify_folder(arguments.target)
        print(text)
        status = 1 if not same else 0 if complete else 3
    if arguments.push and status != 1:
        url = downloads.upload_folder(
            arguments.target, arguments.push, arguments.private
        )
        print(f"uploaded to {url}")
    return status


def convert(
    source: "StrPath",
    target: "StrPath",
    format: str | None = None,
    to: str | None = None,
    settings: "Config | None" = None,
    dtype: str | None = None,
    overwrite: bool = False,
    encoder: bool = False,
) -> list[str]:
    """Converts one checkpoint, and returns notes on what readers that know only
    the target's format would compute differently.

    The target's suffix chooses the file type; a path without one is a Hugging
    Face folder. Unless it is a Keras file or `dtype` is given, the bits of
    every array are kept, including those of NaNs. With `encoder`, only the
    encoder of a pre-training model is written. `settings` are arguments of the
    model's function that take precedence over the source. Nothing is written if
    the source cannot be read or the target's format cannot store it.
    """
    from keras_vit.utils.warnings import warn
    from keras_vit.weights import open_checkpoint
    from keras_vit.weights.files.keras import is_keras
    from keras_vit.weights.formats import split
    from keras_vit.weights.writing import check_writable, write_checkpoint

    source = pathlib.Path(source).expanduser()
    target = pathlib.Path(target).expanduser()
    for name, value in (("format", format), ("to", to)):
        if value is not None:
            split(value, name)
    settings = dict(settings or {})
    base = settings.pop("base", None)
    if is_keras(target):
        if to is not None or dtype is not None:
            raise ValueError(
                f"{target.name!r} has no format and holds weights in float32: "
                "leave out --to and --dtype. Choose a model's precision where "
                "it is built, with keras.config.set_dtype_policy."
            )
        if source.suffix == target.suffix and not settings:
            raise ValueError(
                f"Both are {source.suffix} files: copy it, or give the "
                "arguments to change with --set."
            )
    checkpoint = open_checkpoint(
        source,
        format,
        settings.get("num_heads"),
        finite=is_keras(target),
        decoder=not encoder,
        decoder_num_heads=settings.get("decoder_num_heads"),
        base=base,
    )
    if checkpoint.is_dense and (dtype or encoder):
        raise ValueError(
            f"{str(source)!r} holds a detector or a segmenter, which is written whole "
            "and in float32: leave out --dtype and --encoder."
        )
    if is_keras(target) or checkpoint.is_dense:
        _write_model(checkpoint, target, to, settings, overwrite)
        return []
    to = to or checkpoint.format
    if to == "keras":
        raise ValueError(
            f"{str(source)!r} is a file of Keras's, which has no format. "
            "Choose one for the target with --to."
        )
    check_writable(target, to)
    checkpoint.raise_if_fixed()
    checkpoint.raise_if_missing(settings)
    arguments = {**checkpoint.arguments(settings), **settings}
    _check_settings(checkpoint, settings)
    activation = checkpoint.build_arguments.get("classifier_activation")
    if activation:
        arguments["classifier_activation"] = activation
    infinite = sorted(
        checkpoint.key(path)
        for path, array in checkpoint.weights.items()
        if not np.isfinite(array).all()
    )
    if infinite:
        warn(
            f"{checkpoint.path!r} holds values that are not finite, which are "
            f"kept; no model can load them: {', '.join(infinite)}"
        )
    notes = []
    if checkpoint.build_arguments.get("preprocessing"):
        notes.append(
            "note: the preprocessing inside the model is left out. Images must "
            "be resized and scaled by keras_vit.preprocess_input(images, "
            f"mode={checkpoint.preprocess_mode!r})."
        )
    if "pooling" not in settings and (checkpoint.may_read_first_patch(arguments)):
        notes.append(
            "note: the head is assumed to read the mean of the patches. The "
            "arrays would be the same if it read the first patch "
            '(big_vision\'s pool_type="0"): then give --set '
            "pooling=first_patch."
        )
    write_checkpoint(
        checkpoint.weights, arguments, target, to, dtype, overwrite, checkpoint
    )
    if target.suffix and checkpoint.class_names(checkpoint.classes):
        notes.append(
            "note: the class names are not stored in this file. A .keras file and the "
            "folder of --to huggingface or --to hub have them."
        )
    if target.suffix and "resnet_layers" in arguments and to.startswith("timm"):
        notes.append(
            "note: timm loads the file only into a hybrid or BiT of the same "
            "sizes that is built in Python; keras_vit loads it by its path."
        )
    return notes


def _write_model(
    checkpoint: "Checkpoint",
    target: pathlib.Path,
    to: str | None,
    settings: "Config",
    overwrite: bool,
) -> None:
    """Builds the model of a checkpoint, and writes it."""
    import keras_vit.utils.requirements  # noqa: F401  (clearer than Keras's errors)
    from keras_vit.families import build
    from keras_vit.load_save import save

    try:
        model = build(checkpoint, **settings)
    except TypeError as error:  # the name of a setting is wrong
        raise ValueError(f"--set: {error}") from error
    save(model, target, to, overwrite)


def _check_settings(checkpoint: "Checkpoint", settings: "Config") -> None:
    """Raises a `ValueError` if a setting changes arrays of a file that is
    converted without a model."""
    base = settings.get("rope_base")
    if base is not None and base != checkpoint.stored.get("rope_base", 100):
        raise ValueError(
            f"{checkpoint.path!r} has rotary positions of another `rope_base`. "
            "To change it, write a .keras file with --set rope_base, and "
            f"convert that. Received: rope_base={base!r}"
        )
    given = settings.get("patch_size")
    given = (given, given) if isinstance(given, int) else given
    if given is not None and tuple(given) != tuple(checkpoint.patch_size or ()):
        raise ValueError(
            f"{checkpoint.path!r} has patches of {checkpoint.patch_size}. To "
            "resize them, write a .keras file with --set patch_size, and "
            f"convert that. Received: patch_size={settings['patch_size']!r}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = console.Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET", nargs="?")
    console.add_format_arguments(parser, "SOURCE")
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        help="format of TARGET (default: SOURCE's); hub: a folder that timm, "
        "transformers, Keras and keras_vit open",
    )
    parser.add_argument(
        "--license",
        metavar="ID",
        help="with --to hub: license of the weights on the model card, such as "
        "apache-2.0",
    )
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="with --to hub: upload the folder afterwards to this repository of the "
        "Hugging Face hub, with the token of `hf auth login` or HF_TOKEN",
    )
    parser.add_argument(
        "--private",
        action="store_true",
        help="with --push: create the repository as a private one",
    )
    parser.add_argument(
        "--encoder",
        action="store_true",
        help="leave out all parts of a pre-training model except its encoder, such as "
        "MAE's decoder",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="type of the arrays")
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="print format, architecture, size and keys of SOURCE",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="after the conversion, run SOURCE and TARGET on the same images, also in "
        "the library of their format (timm, transformers, torchvision) if it is "
        "installed, and print the largest differences",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing TARGET"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
