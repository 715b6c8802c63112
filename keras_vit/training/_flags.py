"""Command lines made from a recipe's dataclass, and mistakes in one line."""

import argparse
import contextlib
import dataclasses
import math
import signal
import sys
import types
import typing

from keras_vit import _logging
from keras_vit import _program
from keras_vit._logging import logger
from keras_vit.training._checkpoints import Preempted
from keras_vit.training._run_state import Diverged


class UserError(ValueError):
    """A mistake found before training: it is shown without a traceback."""


def flag(default, text, metavar="N"):
    """A field of a recipe's dataclass, with its help text."""
    metadata = {"help": text, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def flags(config_class, description, argv=None):
    """Reads the command line into a dataclass.

    Every field `like_this: type = flag(default, text)` becomes `--like-this
    VALUE`. Its type is int, float, str, one of them or None, `float | str` (a
    number, or text), `tuple[int, ...]` and the like (one value or more), or
    bool (a flag without a value, False by default).

    Args:
        config_class: A dataclass whose `__post_init__` may raise a
            `ValueError` for values that do not go together.
        description: String. Shown by `--help` above the flags.
        argv: List of strings; None takes the command line.

    Returns:
        An instance of `config_class`. A wrong command line ends the process
        with one line and status 2.
    """
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(config_class)
    # A class's own flags come before those it shares with other recipes.
    own = config_class.__annotations__
    fields = sorted(
        dataclasses.fields(config_class), key=lambda f: f.name not in own
    )
    for field in fields:
        kind = _plain(hints[field.name])
        text = field.metadata.get("help", "").replace("%", "%%")
        if field.default not in (None, False, ()):
            text += f" (default: {_shown(field.default)})"
        options = {"help": text, "dest": field.name, "default": field.default}
        if kind is bool:
            options["action"] = "store_true"
        else:
            if typing.get_origin(kind) is tuple:
                kind, options["nargs"] = typing.get_args(kind)[0], "+"
            options["type"] = kind
            options["metavar"] = field.metadata.get("metavar", "N")
        parser.add_argument("--" + field.name.replace("_", "-"), **options)
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    try:
        return config_class(**values)
    except ValueError as error:
        parser.error(str(error))


def run(main, config_class, description, argv=None):
    """Runs a recipe from the command line: `main(config)`.

    Exit status: 0 done, 1 diverged, 2 wrong usage, 130 interrupted, 143 ended
    by SIGTERM. The last two are 128 and the number of the signal, by which
    schedulers such as SLURM and Kubernetes know to start the run again.
    """
    _logging.show()
    _program.escape_unprintable_output()
    config = flags(config_class, description, argv)
    try:
        main(config)
    except UserError as error:
        logger.error("error: %s", error)
        sys.exit(2)
    except Preempted as preempted:
        logger.info("\n%s", preempted)
        sys.exit(128 + signal.SIGTERM)
    except Diverged as error:
        logger.error("\nerror: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        logger.error("\nerror: interrupted")
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def before_training():
    """Turns what goes wrong in its body into a `UserError`.

    What goes wrong later is a bug, and keeps its traceback.
    """
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError, ImportError) as error:
        raise UserError(str(error)) from error


def require(module):
    """Imports a module that only recipes need; see `_program.require`."""
    return _program.require(module, "recipes")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"error: {message} (--help lists all flags)\n")


def _shown(default):
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return default


def _plain(hint):
    """The type of a flag's value: int for `int | None`."""
    if isinstance(hint, types.UnionType):
        kinds = set(typing.get_args(hint)) - {types.NoneType}
        if kinds == {float, str}:
            return _number_or_text
        (hint,) = kinds
    return hint


def _number_or_text(text):
    try:
        return float(text)
    except ValueError:
        return text


def check_numbers(config, *names, minimum=None, above=None, below=None):
    """Raises a `ValueError` if fields of a dataclass are out of a range.

    None, which stands for a default that is found later, is always right.
    """
    limits = []
    if minimum is not None:
        limits.append((f"{minimum} or more", lambda value: value >= minimum))
    if above is not None:
        limits.append((f"above {above}", lambda value: value > above))
    if below is not None:
        limits.append((f"below {below}", lambda value: value < below))
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        # Comparisons with NaN are false, so it is in no range.
        if not all(fits(value) for _, fits in limits) or math.isinf(value):
            raise ValueError(
                f"--{name.replace('_', '-')} must be "
                f"{' and '.join(text for text, _ in limits)}. "
                f"Received: {value}"
            )


def check_names(config, **known):
    """Raises a `ValueError` if a field is none of the names known for it.

    None, which stands for a default that is found later, is always right.
    """
    for name, names in known.items():
        value, names = getattr(config, name), list(names)
        if value is not None and value not in names:
            raise ValueError(
                f"--{name.replace('_', '-')} takes {', '.join(names)}. "
                f"Received: {value}"
            )
