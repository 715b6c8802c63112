"""Read a damaged checkpoint and check the outcome."""

import encodings
import os
import sys

import numpy as np

from keras_vit.weights import open_checkpoint
from keras_vit_programs import convert as _cli
from keras_vit_programs.listing import report

# Audit events that no reader has a reason for. Python raises them before it
# acts; `pickle.find_class` is that of an Unpickler which imports.
FORBIDDEN_EVENTS = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"),
    *("socket.connect", "pickle.find_class", "exec", "ctypes.dlopen"),
)
_CODECS = os.path.dirname(encodings.__file__)
_events = []


class Failure(Exception):
    """A reader violated the rules of `outcome`."""


def watch():
    """Record forbidden audit events, and files opened to write, from now on."""
    sys.addaudithook(_record)


def _record(event, arguments):
    if event == "exec" and arguments[0].co_filename.startswith(_CODECS):
        return  # Python imports a codec where it is first used
    if event in FORBIDDEN_EVENTS:
        _events.append(f"{event} {arguments}"[:200])
    elif event == "open" and set(str(arguments[1])) & set("wax+"):
        if not isinstance(arguments[0], int):  # not a path but a pipe
            _events.append(f"writes {arguments[0]}")


def outcome(reader, files, expected, folder, further=False):
    """Reads damaged files, `{name: bytes}`, in an empty folder.

    With `further`, `--inspect` and a conversion are run, too. Returns
    "refused", "same" or "different", compared with the expected weights. Raises
    a `Failure` if anything was raised but a `ValueError` or `OSError` that
    names the file, or anything was run or written.
    """
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    path, names = folder / reader.path, {*files, reader.path}
    try:
        _events.clear()
        found = _try(names, lambda: read_weights(path))
        if further:
            _try(names, lambda: report(path))
        if _events:
            raise Failure(f"did what no reader may: {_events}")
        if further:
            _try((), lambda: _convert(path))
        left = {str(p.relative_to(folder)) for p in _files_in(folder)}
        if left - files.keys():
            raise Failure(f"left files behind: {sorted(left - files.keys())}")
    finally:
        for file in _files_in(folder):
            file.unlink()
    if found is None:
        return "refused"
    same = found.keys() == expected.keys() and all(
        np.array_equal(found[key], expected[key]) for key in expected
    )
    return "same" if same else "different"


def read_weights(path):
    checkpoint = open_checkpoint(path)
    checkpoint.arguments()
    return checkpoint.weights


def _convert(path):
    target = path.with_name("target.safetensors")
    to = "timm" if path.suffix in (".keras", ".h5") else None
    _cli.convert(path, target, to=to)
    target.unlink()  # an error must leave none


def _files_in(folder):
    return [p for p in folder.rglob("*") if not p.is_dir()]


def _try(names, read):
    """Return what is read, or None after an error that names one of `names`."""
    try:
        return read()
    except (ValueError, OSError) as error:
        if names and not any(name in str(error) for name in names):
            raise Failure(f"does not name the file: {error!r:.300}") from error
        return None
    except BaseException as error:
        raise Failure(f"{type(error).__name__}: {error!s:.300}") from error
