"""HDF5 of versions that `_hdf5.py` does not read, made one that it does."""

import io
import subprocess
import sys

_SECONDS = 60
_REWRITE = """
import io, sys, h5py
data, out = sys.stdin.buffer.read(), io.BytesIO()
try:
    import resource
    limit = 8 * len(data) + 2**31
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


def rewritten(file):
    """A file of a newer version in the older one, written by HDF5's library
    in a process of its own, which may crash."""
    file.seek(0)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _REWRITE],
            input=file.read(),
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading it took over {_SECONDS} s") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise ValueError(why or "HDF5's library crashes on it")
    return io.BytesIO(done.stdout)
