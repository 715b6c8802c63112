"""What one broken checkpoint did, and whether it may."""

import encodings
import os
import pathlib
import sys

import numpy as np

from keras_vit import convert as _cli
from keras_vit.checkpoints import _checkpoint

from keras_vit.checkpoints import report as _inspect
from keras_vit.checkpoints import _layouts
from keras_vit.checkpoints.files import read
from keras_vit.converters import open_checkpoint

_told = {}


def _detect(arrays, layout=None):
    """As `_layouts.detect`, which looks at names and axes alone: what it said
    once of the same ones. It takes longer than all the rest."""
    key = (layout, *((name, array.shape) for name, array in arrays.items()))
    if key not in _told:
        try:
            _told[key] = _layouts.detect(arrays, layout)
        except ValueError as error:
            _told[key] = error
    if isinstance(_told[key], ValueError):
        raise ValueError(*_told[key].args)
    return _told[key]


def remember():
    """Has the readers ask for a layout's name once only."""
    _checkpoint.detect = _inspect.detect = _detect


# What no reader has a reason for: Python says so before it happens.
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
    "exec",
    "ctypes.dlopen",
)
_CODECS = os.path.dirname(encodings.__file__)
_happened = []


def watch():
    """Notes from now on what is forbidden, and files opened to write."""
    sys.addaudithook(_note)


def _note(event, arguments):
    if event == "subprocess.Popen" and arguments[1] == _hdf5_newer.COMMAND:
        return  # HDF5's library, in a process that may crash
    if event == "exec" and arguments[0].co_filename.startswith(_CODECS):
        return  # Python imports one when it is asked for
    if event in _FORBIDDEN:
        _happened.append(f"{event} {arguments}"[:200])
    elif event == "open" and set(str(arguments[1])) & set("wax+"):
        if not isinstance(arguments[0], int):  # a pipe, there already
            _happened.append(f"writes {arguments[0]}")


class Failure(Exception):
    """A reader did what it may not."""


def outcome(reader, files, expected, folder, further=False):
    """Returns "same", "values", "other" or "refused".

    Args:
        reader: A `Reader`.
        files: Dict of names to the bytes that it is given.
        expected: Dict of our paths to what is in them unbroken.
        folder: A folder without files, as it is again afterwards.
        further: Boolean. Whether to inspect and convert it, too.

    Raises:
        Failure: if it is none of these.
    """
    folder = pathlib.Path(folder)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    path = folder / reader.path
    try:
        _happened.clear()
        found = _tried({*files, reader.path}, lambda: opened(path))
        if further:
            _tried({*files, reader.path}, lambda: _inspect.inspect(path))
        _raise_if(_happened, "did what no reader may")
        if further:
            _converted(path, folder)
        there = {str(p.relative_to(folder)) for p in _walked(folder)}
        _raise_if(there - files.keys(), "left files behind")
        if found is None:
            return "refused"
        return _difference(reader, path, found, expected)
    finally:
        for left in _walked(folder):
            left.unlink()


def _walked(folder):
    return [p for p in folder.rglob("*") if not p.is_dir()]


def opened(path):
    checkpoint = open_checkpoint(path)
    checkpoint.arguments()
    return checkpoint.weights


def _tried(names, read):
    """Returns what is read; None if it is refused in a clear error, which
    has one of the names in it."""
    try:
        return read()
    except (ValueError, OSError) as error:
        text = str(error)
        if not any(name in text for name in names):
            raise Failure(f"does not name the file: {error!r:.300}") from error
    except BaseException as error:
        raise Failure(f"{type(error).__name__}: {error!s:.300}") from error


def _converted(path, folder):
    target = folder / "target.safetensors"
    to = "timm" if path.suffix in (".keras", ".h5") else None
    try:
        _cli.convert(path, target, to=to)
    except (ValueError, OSError) as error:
        _raise_if(target.exists() and [error], "left a target behind")
    except BaseException as error:
        raise Failure(f"convert: {type(error).__name__}: {error}") from error
    else:
        target.unlink()


def _raise_if(found, what):
    if found:
        raise Failure(f"{what}: {sorted(map(str, found))}")


def _difference(reader, path, found, expected):
    """How what was loaded differs from what was written."""
    if found.keys() == expected.keys():
        pairs = [(found[key], expected[key]) for key in expected]
        if all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs):
            same = all(np.array_equal(a, b) for a, b in pairs)
            return "same" if same else "values"
    if reader.reference is not None:
        ours = read(path)
        try:
            theirs = reader.reference(path)
        except Exception as error:
            raise Failure(f"others refuse it: {error!r:.300}") from error
        if ours.keys() != theirs.keys():
            raise Failure(f"keys differ: {ours.keys() ^ theirs.keys()}")
        for key, array in ours.items():
            if not np.array_equal(array, theirs[key].astype(array.dtype)):
                raise Failure(f"{key} differs from what others read")
    return "other"
