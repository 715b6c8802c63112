"""PyTorch's files, read without PyTorch: a pickle that says where each array
lies, and the bytes; in a zip archive, or before PyTorch 1.6 one after the
other."""

import dataclasses
import io
import math
import os
import zipfile

import ml_dtypes
import numpy as np

from keras_vit.checkpoints import _archives
from keras_vit.checkpoints import _pickles
from keras_vit.checkpoints._containers import naming_damage
from keras_vit.checkpoints._containers import not_a

_NESTS = ("model", "state_dict", "teacher")
_WRAPS = ("_orig_mod.", "module.")  # torch.compile and DistributedDataParallel
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
# Old files begin with three pickles, of which this is the first.
_MAGIC = 0x1950A86A20F9469CFC6C
_TENSOR = "torch._utils._rebuild_tensor"
_TENSORS = {_TENSOR: (4,), f"{_TENSOR}_v2": (6, 7)}  # numbers of arguments
_PARAMETER = "torch._utils._rebuild_parameter"
# What PyTorch itself lets a file of plain weights name.
_ALLOWED = ("collections.OrderedDict", "collections.Counter")
_MODULES = ("torch._utils", "torch", "torch._tensor", "torch.nn.parameter")


@dataclasses.dataclass(eq=False)
class _Storage:
    key: str
    dtype: np.dtype
    numel: int
    values: np.ndarray = None


def read_torch(path):
    """Returns `(arrays, problems)` of a .pth, .pt or .bin file."""
    read = _read_zip if zipfile.is_zipfile(path) else _read_old
    try:
        with naming_damage(" PyTorch file of plain weights", path):
            tensors = read(path)
    except _pickles.WouldRunError as error:
        raise ValueError(
            f"{str(path)!r} is not a PyTorch file of plain weights: loading "
            f"it would call {error.name}. This package never runs code from a "
            "file. If you trust the file, load it with PyTorch where the code "
            "that it needs is installed, and save only the weights: "
            "torch.save(model.state_dict(), PATH)."
        ) from error
    for name in _NESTS:
        nested = tensors.get(name) if isinstance(tensors, dict) else None
        if isinstance(nested, dict):
            tensors = nested
            break
    if not isinstance(tensors, dict):
        raise not_a(" PyTorch file of named weights", path)
    for prefix in _WRAPS:
        if all(str(key).startswith(prefix) for key in tensors):
            tensors = {k[len(prefix) :]: x for k, x in tensors.items()}
    arrays, problems = {}, []
    for key, tensor in tensors.items():
        try:
            if not isinstance(key, str):
                raise ValueError("a name that is no text")
            arrays[key] = _array_of(tensor)
        except ValueError as error:
            problems.append(f"{key}: {error}")
    return arrays, problems


def _read_zip(path):
    with _archives.opened(path) as archive:
        members = {
            member.filename.partition("/")[2]: member
            for member in archive.infolist()
        }
        if len(members) != len(archive.infolist()):
            raise ValueError("two folders in it")
        if "data.pkl" not in members:
            raise ValueError("no data.pkl in it")
        if "constants.pkl" in members:
            raise ValueError("a TorchScript program")
        order = "little"
        if "byteorder" in members:
            order = archive.read(members["byteorder"]).decode()
        storages = {}
        pickle = io.BytesIO(archive.read(members["data.pkl"]))
        found = _pickles.read(pickle, _storing(storages), _is_plain)
        for key, storage in storages.items():
            member = members.get(f"data/{key}")
            if member is None:
                raise ValueError(f"no data/{key} in it")
            with archive.open(member) as file:
                _fill(storage, file, member.file_size, order)
    return found


def _read_old(path):
    with open(path, "rb") as opened:
        file = _Bounded(opened)
        if _pickles.read(file, None, _is_plain) != _MAGIC:
            raise ValueError("another beginning")
        _pickles.read(file, None, _is_plain)  # a version
        system = _pickles.read(file, None, _is_plain)
        storages = {}
        found = _pickles.read(file, _storing(storages), _is_plain)
        keys = _pickles.read(file, None, _is_plain)
        if not isinstance(system, dict) or "little_endian" not in system:
            raise ValueError("no order of bytes in it")
        order = "little" if system["little_endian"] else "big"
        if not isinstance(keys, list):
            raise ValueError("no list of storages in it")
        end = path.stat().st_size
        for key in keys:
            storage = storages.get(key) if isinstance(key, str) else None
            if storage is None:
                raise ValueError(f"a storage {key!r} of no tensor")
            if int.from_bytes(file.read(8), order) != storage.numel:
                raise ValueError(f"{key}: another number of values")
            size = storage.numel * storage.dtype.itemsize
            _fill(storage, file, min(size, end - file.tell()), order)
    return found


class _Bounded:
    """A file that refuses to read more than it has: a damaged length would
    allocate terabytes first."""

    def __init__(self, file):
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.readline, self.tell = file.readline, file.tell

    def read(self, count):
        if count > self.size - self.file.tell():
            raise ValueError(f"{count:,} bytes more than it has")
        return self.file.read(count)


def _storing(storages):
    """Returns what makes a `_Storage` of a persistent id, and keeps it."""

    def persistent(found):
        kind, name, key, _, numel, *view = found
        dtype = _STORAGES.get(name.name.rpartition(".")[2])
        if kind != "storage" or dtype is None or view not in ([], [None]):
            raise ValueError("a storage of another kind")
        if not isinstance(key, str) or not _is_size(numel):
            raise ValueError("a storage without a name or size")
        storage = _Storage(key, np.dtype(dtype), numel)
        known = storages.setdefault(key, storage)
        if (known.dtype, known.numel) != (storage.dtype, numel):
            raise ValueError(f"{key}: two sizes")
        return known

    return persistent


def _is_plain(name):
    return name in _ALLOWED or name.rpartition(".")[0] in (
        *_MODULES,
        "torch.storage",
    )


def _is_size(number):
    return type(number) is int and 0 <= number < 2**63


def _fill(storage, file, size, order):
    if size != storage.numel * storage.dtype.itemsize:
        raise ValueError(
            f"{storage.key}: {size:,} bytes for {storage.numel:,} values"
        )
    values = _archives.fill(file, size).view(storage.dtype)
    if order != "little":
        values = values.byteswap()
    storage.values = values


def _array_of(tensor):
    """Returns the array that a call of PyTorch's would have made."""
    if not isinstance(tensor, _pickles.Call):
        raise ValueError(f"{type(tensor).__name__}, not a tensor")
    if tensor.name.startswith(_PARAMETER) and tensor.arguments:
        return _array_of(tensor.arguments[0])
    if tensor.name not in _TENSORS:
        raise ValueError(f"{tensor.name}: not a plain tensor")
    if len(tensor.arguments) not in _TENSORS[tensor.name]:
        raise ValueError(f"{tensor.name}: {len(tensor.arguments)} arguments")
    storage, offset, shape, strides, *_ = tensor.arguments
    if not isinstance(storage, _Storage) or storage.values is None:
        raise ValueError("a tensor without values")
    values = storage.values
    if not (
        _is_size(offset)
        and all(type(part) is tuple for part in (shape, strides))
        and all(map(_is_size, (*shape, *strides)))
        and len(shape) == len(strides)
    ):
        raise ValueError("a tensor without a shape")
    count = math.prod(shape)
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    # No more values than are there: a stride of 0 would make terabytes.
    if count > values.size or (count and offset + last >= values.size):
        raise ValueError(
            f"its shape {shape} does not fit the {values.size:,} values that "
            "are there"
        )
    # Of one value, the step is never taken, however long it is.
    steps = [
        step * (n > 1) * values.itemsize
        for n, step in zip(shape, strides, strict=True)
    ]
    if not count:
        return np.empty(shape, values.dtype)
    return np.lib.stride_tricks.as_strided(values[offset:], shape, steps)
