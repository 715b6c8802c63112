"""Helpers for command-line programs. This module does not import Keras."""

import argparse
import ast
import contextlib
import difflib
import io
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from keras_vit_programs import logs
from keras_vit_programs.logs import logger, show

Arguments = TypeVar("Arguments")
# A mode of pixels is a name, or a mean and a standard deviation, as
# `keras_vit.preprocess_input` takes it.
Mode = str | tuple[tuple[float, ...], tuple[float, ...]]


class UserError(ValueError):
    """An error that the user can correct; programs print it as one line."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns errors of its body that users can cause into a `UserError`.

    Errors outside it are defects of the program, and keep their traceback.
    """
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError, ImportError, MemoryError) as error:
        raise UserError(str(error) or "out of memory") from error


def require(module: str) -> Any:
    """Imports a module of an optional dependency, or says how to install it."""
    from keras_vit.utils import optional

    return optional.require(module)


def printable(text: object) -> str:
    """Returns a text, in which unprintable characters, also line breaks, are
    escaped."""
    from keras_vit.utils import text as texts

    return texts.printable(text)


def printable_lines(text: object) -> str:
    """Returns a message, in which unprintable characters are escaped."""
    return "\n".join(map(printable, str(text).split("\n")))


def nearest_flag(parser: argparse.ArgumentParser, message: str) -> str:
    """Returns a hint at the flag of an unknown argument, or ""."""
    given = message.partition("unrecognized arguments: ")[2]
    text = parser.format_help()
    if given and given[0] != "-" and "positional arguments" not in text:
        return ". Each value needs its flag in front, such as --weights FILE"
    if not given.startswith("--"):
        return ""
    given = given.split()[0].partition("=")[0].replace("_", "-")
    flags = getattr(parser, "flags", re.findall(r"--[\w-]+", text))
    others = getattr(parser, "others", {})
    name = given.lstrip("-").rpartition(".")[2]  # --config.lr of big_vision
    if name in _NOWHERE:
        return f". {_NOWHERE[name]}"
    for ours in _ELSEWHERE.get(name, name).split():
        if f"--{ours}" in flags:
            return f". Did you mean --{ours}?"
        if f"--{ours}" in others:
            return f". {given} {others[f'--{ours}']}: leave it out"
    names = [] if name in _ELSEWHERE else [flag[2:] for flag in flags]
    close = difflib.get_close_matches(name, names, 1, cutoff=0.75)
    return f". Did you mean --{close[0]}?" if close else ""


# Our flags, by flags and settings of the programs of timm, transformers, Ultralytics,
# big_vision and vit_jax. A program may have only the first or the second.
_ELSEWHERE = {
    name: ours
    for ours, names in {
        "accumulate": "accum-steps grad-accum-steps gradient-accumulation-steps",
        "augment": "aa auto-augment",
        "average": "ema model-ema model-ema-decay",
        "batch-size": "batch per-device-train-batch-size",
        "checkpoint-every": "checkpoint-steps save-steps",
        "clip": "clip-grad grad-clip-norm grad-norm-clip max-grad-norm",
        "dataset": "data data-dir data-path",
        "decay": "lr-scheduler-type sched schedule",
        "drop-path": "drop-path-rate",
        "dropout": "drop drop-rate",
        "epochs": "num-train-epochs total-epochs",
        "erase": "reprob remode recount",
        "evaluate-every": "eval-every eval-steps evals log-steps",
        "image-size": "imgsz img-size input-size",
        "label-smoothing": "label-smoothing-factor smoothing",
        "learning-rate": "base-lr lr",
        "loss": "bce-loss",
        "mixed-precision": "amp amp-dtype bf16 fp16",
        "mode": "mean std",
        "momentum-dtype": "mu-dtype optim-dtype",
        "no-flip": "hflip",
        "optimizer": "opt optax-name optim",
        "output": "name output-dir workdir",
        "pooling": "gp pool-type",
        "position-embedding": "posemb",
        "protocol": "crop crop-pct interpolation pp pp-train",
        "remat": "grad-checkpointing gradient-checkpointing",
        "representation-size": "rep-size",
        "steps": "max-steps total-steps",
        "warmup warmup-steps": "warmup-epochs warmup-ratio",
        "weights": "checkpoint initial-checkpoint model-init pretrained pretrained-dir",
    }.items()
    for name in names.split()
}
# Why no program has such a flag.
_NOWHERE = {
    "min-lr": "The learning rate ends at 0, or as published",
    "num-classes": "The dataset determines the number of classes",
    "resume": "The same command resumes a run",
    "wd": "Give wd / lr of big_vision's config as --weight-decay",
    "warmup-lr": "The learning rate begins at 0, or as published",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and suggest flags."""

    flags: Sequence[str]  # all of a recipe, of which --help may show some
    others: Mapping[str, str] = {}  # why flags of other programs are not here

    def error(self, message: str) -> NoReturn:
        message += nearest_flag(self, message)
        every = "--help-all" if "--help-all" in self.format_help() else "--help"
        self.exit(2, f"error: {message} ({every} lists all flags)\n")


# Arguments whose flags have other names.
_OTHER_NAMES = {"format": "from_", "ignore": "ignore_value"}
# An argument that a message of the library names, with or without a value.
_ARGUMENT = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]*))?`")


def with_flags(message: object, names: Collection[str]) -> str:
    """Returns a message of the library in the flags of a program, of these
    names: `overwrite=True` becomes --overwrite, `check=False` --no-check, and
    `num_heads=3`, an argument of models, --set num_heads=3."""
    from keras_vit.config import HybridConfig, ModelArguments, field_names

    of_models = {"base", *ModelArguments.__annotations__, *field_names(HybridConfig)}

    def flag(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        other = _OTHER_NAMES.get(name, name)
        if other not in names:
            other = name
        if other in names:
            text = "--" + other.rstrip("_").replace("_", "-")
            if value == "False":
                return f"--no-{text[2:]}"
            value = "" if value in (None, "True") else value.strip("'\"")
            return f"{text} {value}".rstrip()
        if "set" in names and name in of_models:
            return f"--set {name}={'...' if value is None else value}"
        if name == "num_heads" and value is None:
            return "it by `keras-vit convert FILE model.keras --set num_heads=...`"
        return found[0]

    text = _ARGUMENT.sub(flag, str(message))
    return text.replace("`keras_vit.hub.save`", "--to hub") if "to" in names else text


def run_program(run: Callable[[Arguments], int], arguments: Arguments) -> int:
    """Calls `run(arguments)` and returns its exit status; 1 after an error, and
    130 after Ctrl-C.

    Warnings, and errors that users can cause, are printed as one line each.
    """
    show()
    escape_unprintable_output()
    names = vars(arguments)

    def warn(message: Warning | str, category: type[Warning], *where: Any) -> None:
        logger.warning("warning: %s", printable_lines(with_flags(message, names)))

    warnings.showwarning = warn
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # what reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:
        logger.error("error: %s", printable_lines(with_flags(error, names)))
        return 1
    except MemoryError as error:
        logger.error(
            "error: out of memory%s. Close other programs, or use a machine "
            "with more memory.",
            f" ({error})" if str(error) else "",
        )
        return 1
    except KeyboardInterrupt:
        logger.error("\nerror: interrupted")
        return 130


def escape_unprintable_output() -> None:
    """Makes stdout and stderr escape what they cannot encode, such as invalid
    bytes in file names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not in notebooks
            stream.reconfigure(errors="backslashreplace")


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: "1 image", "2 images"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def wrap_lines(text: str) -> str:
    """Returns lines such as "data      photos: ..." in 79 columns, in which a
    longer path stays whole, so that it can be copied."""
    wrapper = textwrap.TextWrapper(
        79,
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(wrapper.fill, text.split("\n")))


def format_warnings(names: Collection[str]) -> None:
    """Formats warnings, which are about data or flags of these names, without the
    line of code, and keeps them for `logs.log_file`."""
    logs.warned.clear()

    def text(message: Warning | str, category: type[Warning], *where: Any) -> str:
        logs.warned.append(f"warning: {printable_lines(with_flags(message, names))}")
        return f"{logs.warned[-1]}\n"

    warnings.formatwarning = text


def add_model_arguments(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Adds the arguments of a model to read: MODEL, `--from` and `--set`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a .keras file, the folder of a recipe's run or "
        "of a Hugging Face model, or the URL of one: everything that "
        f"keras-vit convert reads{more}",
    )
    add_format_arguments(parser, "MODEL")


def add_format_arguments(parser: argparse.ArgumentParser, source: str) -> None:
    """Adds `--from` and `--set`, which describe a file."""
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="FORMAT",
        help=f"format of {source}, if it cannot be inferred",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"an argument of VisionTransformer that {source} does not store, such as "
        "num_heads=6 or grid_size=(2,8); may be repeated",
    )


MODE_HELP = (
    "pixel values: tf for [-1, 1], torch for normalization by ImageNet's mean and "
    "standard deviation, clip for CLIP's, or MEAN/STD of pixels in [0, 1], such as "
    "0.43,0.41,0.3/0.21,0.16,0.14"
)


def parse_mode(value: Any, name: str = "--mode") -> Mode | None:
    """Returns the value of `--mode`, such as "torch", "0.45/0.23" or the pair of a
    run's config, as a mode of `preprocess_input`; None for None."""
    from keras_vit.utils.scaling import MODES, as_mode

    try:
        if isinstance(value, str) and value not in MODES:
            parts = [part.split(",") for part in value.split("/")]
            return as_mode([[float(x) for x in part] for part in parts])
        return None if value is None else as_mode(value)
    except ValueError:
        raise ValueError(
            f"{name} must be {', '.join(MODES)}, or the MEAN/STD of pixels in [0, 1], "
            f"with a value for each channel or one for all. Received: {value}"
        ) from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses "name=value" to the name and a Python literal, or else a
    string."""
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--set takes name=value. Received: {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a string, such as gelu
