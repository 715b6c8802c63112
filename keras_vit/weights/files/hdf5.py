"""Reader and writer of the HDF5 trees of `.weights.h5` files.

A file has one group per layer, below "layers", with its arrays in "vars",
named by their number. HDF5 is read by h5py, as in Keras. It is imported inside
functions, since other files are converted without it.
"""

import mmap
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit._types import Array
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
            elif not isinstance(item, h5py.Dataset):
                raise ValueError(f"{path} is not an array")
            elif item.external or item.is_virtual:
                raise ValueError(f"{path} is stored in another file")
            else:
                claimed += item.nbytes
                arrays += 1
    archives.check_size(claimed, len(content))
    return arrays


def _check_heaps(content: bytes | mmap.mmap) -> None:
    """Raises a `ValueError` if a heap of texts is damaged: libhdf5 would read
    an entry of free space without a size again and again."""
    start = content.find(b"GCOL\1\0\0\0")
    while start >= 0:
        position, end = start + 16, len(content)
        if position <= end:
            (size,) = struct.unpack_from("<Q", content, start + 8)
            end = min(start + size, end)
        # An entry has a number (0 for free space), a size, and its bytes.
        while position + 16 <= end:
            number, size = struct.unpack_from("<H6xQ", content, position)
            if number == 0 and size < 16:
                raise ValueError("its heap of texts is damaged")
            position += size if number == 0 else 16 + (size + 7) // 8 * 8
        start = content.find(b"GCOL\1\0\0\0", start + 1)


def layer_datasets(group: Any, path: str) -> Iterator[tuple[str, Any, bool]]:
    """Yields the path of each weight in a group, its dataset, and whether its
    bytes are values in bfloat16."""
    import h5py

    for key, item in group.items():
        if key.startswith("seed_generator"):
            continue  # the state of a dropout layer, not a weight
        if isinstance(item, h5py.Dataset):
            # HDF5 has no bfloat16: Keras stores raw bytes and the type's name.
            is_bfloat16 = item.attrs.get("dtype") == "bfloat16"
            yield f"{path}/{key}", item, is_bfloat16
        else:
            inner = path if key == "vars" else f"{path}/{key}"
            yield from layer_datasets(item, inner)


def read_dataset(
    path: str, dataset: Any, is_bfloat16: bool, problems: list[str]
) -> Array | None:
    """Returns the array of a dataset; None, and one more problem, if its values
    are no numbers."""
    if dataset.dtype.kind not in "fiubcV":  # text, references
        problems.append(f"{path}: type {dataset.dtype}, expected floats")
        return None
    array = np.asarray(dataset[()])
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array


def read_layers(path: pathlib.Path) -> tuple[dict[str, Array], list[str]]:
    """Reads the arrays of all layers in a `.weights.h5` file, under the paths
    of their groups without "layers" and "vars"."""
    import h5py

    arrays, problems = {}, []
    with (
        archives.parsing("a .weights.h5 file of Keras's", path),
        h5py.File(path, "r", locking=False) as root,
        mapped(path) as content,
    ):
        try:
            check_tree(root, content)
            datasets = list(layer_datasets(root["layers"], ""))
        except (KeyError, TypeError, NotImplementedError) as error:
            raise ValueError(f"it holds damaged objects: {error}") from error
        for name, dataset, is_bfloat16 in datasets:
            array = read_dataset(name[1:], dataset, is_bfloat16, problems)
            if array is not None:
                arrays[name[1:]] = array
    return arrays, problems


def write_layers(items: archives.NamedArrays, path: pathlib.Path) -> None:
    """Writes arrays, as `read_layers` returns them, to a `.weights.h5` file."""
    import h5py

    with h5py.File(path, "w") as root:
        for key, array in items:
            layer, _, number = key.rpartition("/")
            group = root.require_group(f"layers/{layer}/vars")
            dataset = group.create_dataset(number, data=np.asarray(array))
            if array.dtype == ml_dtypes.bfloat16:
                dataset.attrs["dtype"] = "bfloat16"
