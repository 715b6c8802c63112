"""Reader and writer of the HDF5 trees of `.weights.h5` files.

A file has one group per layer, below "layers", with its arrays in "vars",
named by their number. HDF5 is read by h5py, as in Keras. It is imported inside
functions, since other files are converted without it.
"""

import io
import mmap
import pathlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit.utils.types import Array
from keras_vit.weights.files import archives


def mapped(path: pathlib.Path) -> mmap.mmap:
    """Returns the bytes of a file, without reading it into memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def check_tree(group: Any, content: bytes | mmap.mmap) -> int:
    """Counts the arrays of a tree; raises a `ValueError` if it has links, is
    too large for the file's size, or cannot be read in finite time.

    The whole file is checked: Keras would follow links and read external
    storage. An object with two paths is refused since it could contain itself.
    """
    import h5py

    _check_heaps(content)
    seen, groups, claimed, arrays = {group}, [group], 0, 0
    while groups:
        group = groups.pop()
        for name in group:
            path = f"{group.name}/{name}".replace("//", "/")
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"it holds a link, {path}")
            item = group[name]
            if item in seen:
                raise ValueError(f"{path} is in it twice")
            seen.add(item)
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise ValueError(f"{path} is not an array, or is in another file")
            else:
                claimed += item.nbytes
                arrays += 1
    archives.check_size(claimed, len(content))
    return arrays


def _check_heaps(content: bytes | mmap.mmap) -> None:
    """Raises a `ValueError` if a heap of texts is damaged: libhdf5 would read
    an entry without a size, or beyond the end, again and again."""
    start = content.find(b"GCOL\1\0\0\0")
    while start >= 0:
        position, end = start + 16, len(content)
        if position <= end:
            (size,) = struct.unpack_from("<Q", content, start + 8)
            end = min(start + size, end)
        # An entry has a number (0 for free space), a size, and its bytes.
        while position + 16 <= end:
            number, size = struct.unpack_from("<H6xQ", content, position)
            step = size if number == 0 else 16 + (size + 7) // 8 * 8
            # libhdf5 adds in 64 bits: a step beyond the end may lead nowhere.
            if not 16 <= step <= end - position:
                raise ValueError("its heap of texts is damaged")
            position += step
        start = content.find(b"GCOL\1\0\0\0", start + 1)


def layer_datasets(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each weight in a group: its path, which begins with `path` and
    leaves out "vars", and its dataset."""
    import h5py

    for key, item in group.items():
        if key.startswith("seed_generator"):
            continue  # the state of a dropout layer, not a weight
        if isinstance(item, h5py.Dataset):
            yield path + key, item
        else:
            inner = path if key == "vars" else f"{path}{key}/"
            yield from layer_datasets(item, inner)


def read_tree(
    file: pathlib.Path | io.BytesIO,
    datasets: Callable[[Any], Iterator[tuple[str, Any]]],
    attribute: str = "",
) -> tuple[dict[str, Array], dict[str, str], Any]:
    """Reads the arrays of the datasets that a function of the root yields, by
    their paths.

    The other results are descriptions of arrays that do not hold numbers, and the value
    of an attribute of the root.
    """
    import h5py

    arrays, problems = {}, {}
    # It is not locked, since another process may have it open.
    with h5py.File(file, "r", locking=False) as root:
        try:
            is_path = isinstance(file, pathlib.Path)
            content = mapped(file) if is_path else file.getvalue()
            check_tree(root, content)
            value = root.attrs.get(attribute)
            # HDF5 has no bfloat16: Keras stores bytes and the type's name.
            found = [
                (path, dataset, dataset.attrs.get("dtype") == "bfloat16")
                for path, dataset in datasets(root)
            ]
        except (KeyError, TypeError, NotImplementedError) as error:
            # Raised by h5py for damaged objects and unsupported types.
            raise ValueError(f"it holds damaged objects: {error}") from error
        for path, dataset, is_bfloat16 in found:
            if path in arrays:
                raise ValueError(f"{path} is there twice")
            if dataset.dtype.kind in "fiubcV":
                array = np.asarray(dataset[()])
                bfloat16 = ml_dtypes.bfloat16
                arrays[path] = array.view(bfloat16) if is_bfloat16 else array
            else:  # text, references
                problems[path] = f"type {dataset.dtype}, expected floats"
    return arrays, problems, value


def read_layers(path: pathlib.Path) -> archives.Read:
    """Reads the arrays of all layers in a `.weights.h5` file, under the paths
    of their groups without "layers" and "vars"."""
    with archives.parsing("a .weights.h5 file of Keras's", path):
        return read_tree(path, lambda root: layer_datasets(root["layers"]))[:2]


def write_layers(items: archives.NamedArrays, path: pathlib.Path) -> None:
    """Writes a `.weights.h5` file, as `read_layers` reads it."""
    import h5py

    with h5py.File(path, "w") as root:
        for key, array in items:
            layer, _, number = key.rpartition("/")
            group = root.require_group(f"layers/{layer}/vars")
            dataset = group.create_dataset(number, data=np.asarray(array))
            if array.dtype == ml_dtypes.bfloat16:
                dataset.attrs["dtype"] = "bfloat16"
