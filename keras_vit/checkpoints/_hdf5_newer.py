"""HDF5 of versions that `_hdf5.py` does not read, made one that it does."""

import io
import subprocess
import sys

_SECONDS, _BYTES_A_SECOND = 10, 2**25  # that a slow disk and machine manage
_REWRITE = """
import io, sys, h5py
data, out = sys.stdin.buffer.read(), io.BytesIO()
try:
    import resource
    limit = 4 * len(data) + 2**30  # what it imports reserves half of that
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
except ImportError:
    pass
def copy(old, new):
    for name, value in old.attrs.items():
        if isinstance(value, str):
            new.attrs[name] = value
    for name in old if isinstance(old, h5py.Group) else ():
        if not isinstance(old.get(name, getlink=True), h5py.HardLink):
            sys.exit(f"it holds a link, {old.name}/{name}, not followed")
        item = old[name]
        if isinstance(item, h5py.Group):
            copy(item, new.create_group(name))
        elif item.external or item.is_virtual:
            sys.exit(f"it keeps {item.name} in another file, not read")
        elif item.id.get_storage_size() != item.nbytes:
            sys.exit(f"{item.name} claims the shape {item.shape}")
        else:
            copy(item, new.create_dataset(name, data=item[()]))
with h5py.File(out, "w", libver=("earliest", "v110")) as new:
    copy(h5py.File(io.BytesIO(data), "r"), new)
sys.stdout.buffer.write(out.getvalue())
"""
COMMAND = [sys.executable, "-I", "-c", _REWRITE]


def rewritten(file):
    """A file of a newer version in the older one, written by HDF5's library
    in a process of its own, which may crash."""
    file.seek(0)
    data = file.read()
    seconds = _SECONDS + len(data) / _BYTES_A_SECOND
    try:
        done = subprocess.run(
            COMMAND, input=data, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"reading it took over {seconds:.0f} s") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise ValueError(why or "HDF5's library crashes on it")
    return io.BytesIO(done.stdout)
