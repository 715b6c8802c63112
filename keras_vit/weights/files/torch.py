"""Reader of PyTorch files (.pth, .pt, .bin) without PyTorch, and their writer.

A file contains a pickle, which describes each tensor and names the storage of
its values. Since PyTorch 1.6, pickle and storages are members of a zip archive;
before, the storages follow the pickle. `pickle.Unpickler` is given stand-ins
for the functions and classes that a pickle may name. They only record how they
are called: nothing that a file names is imported or run.
"""

import io
import math
import pathlib
import pickle
import pickletools
from collections.abc import Iterable
from typing import Any
from typing import TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from keras_vit._program import printable
from keras_vit._types import Array
from keras_vit.weights.files import archives

# Keys under which training code stores a model's weights, and prefixes that
# torch.compile and DistributedDataParallel add to the keys of weights.
STATE_DICT_KEYS = ("model", "state_dict", "teacher")
# Those of facebookresearch/dino's training, all of which are read.
DINO_KEYS = ("student", "teacher", "dino_loss")
WRAPPER_PREFIXES = ("_orig_mod.", "module.")
STORAGE_TYPES = {
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
# A pickle of plain weights may name these dicts, and anything in these modules
# of PyTorch.
DICTS = ("collections.OrderedDict", "collections.Counter")
MODULES = (
    "torch",
    "torch._tensor",
    "torch._utils",
    "torch.nn.parameter",
    "torch.storage",
)
# Settings of a training program, which are read and ignored.
SETTINGS = (
    "_codecs.encode",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
)
NAMESPACE = "argparse.Namespace"
# Number of batches that a batch norm has seen, an integer.
_COUNTER = ".num_batches_tracked"
REBUILD_TENSOR = "torch._utils._rebuild_tensor"
REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
NUM_ARGUMENTS = {REBUILD_TENSOR: (4,), f"{REBUILD_TENSOR}_v2": (6, 7)}
LEGACY_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # the first of four pickles

_MAX_OPCODES = 2**20  # a model of 1,000 arrays has some 50,000


class UnsafePickleError(Exception):
    """Raised if a pickle names something that plain weights do not need."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it names {name}")
        self.name = printable(name)


class _Inert:
    """Base class of stand-ins, which ignores attributes that a pickle sets."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Dict(dict):
    """Stand-in for an `OrderedDict`, on which PyTorch sets `_metadata`."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Global(_Inert):
    """Stand-in for the function or class `name`, "module.name"."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> "_Dict | _Call":
        if self.name in DICTS:
            return _Dict(*arguments)
        return _Call(self.name, arguments)


class _Call(_Inert):
    """Record of a call of a `_Global`."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments


class _Namespace(_Inert):
    """Stand-in for `argparse.Namespace`, which a pickle makes as a class."""

    __slots__ = ()

    def __new__(cls, *arguments: object) -> "_Namespace":
        return super().__new__(cls)


class _Storage(_Inert):
    """Stand-in for a storage: one-dimensional values that tensors view."""

    __slots__ = ("dtype", "key", "size", "values")

    def __init__(self, key: str, dtype: DTypeLike, size: int) -> None:
        self.key = key
        self.dtype = np.dtype(dtype)
        self.size = size
        self.values: Array | None = None  # set after the pickle has been read


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: dict[str, _Storage]) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages = storages

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name == NAMESPACE:
            return _Namespace
        if module not in MODULES and full_name not in (*DICTS, *SETTINGS):
            raise UnsafePickleError(full_name)
        return _Global(full_name)

    def persistent_load(self, pid: Any) -> _Storage:
        tag, storage_type, key, _, size, *view = pid
        if not isinstance(storage_type, _Global):
            raise ValueError("a storage without a type")
        dtype = STORAGE_TYPES.get(storage_type.name.rpartition(".")[2])
        if tag != "storage" or dtype is None or view not in ([], [None]):
            raise ValueError(f"a storage of type {storage_type.name}")
        if not isinstance(key, str) or not _is_size(size):
            raise ValueError("a storage without a name or size")
        storage = self.storages.setdefault(key, _Storage(key, dtype, size))
        if (storage.dtype, storage.size) != (np.dtype(dtype), size):
            raise ValueError(f"the storage {key} with two types or sizes")
        return storage


def read_torch(path: pathlib.Path) -> tuple[dict[str, Array], list[str]]:
    """Reads the tensors of a .pth, .pt or .bin file, and describes other
    entries.

    If weights are nested under "model", "state_dict" or "teacher", only these
    are returned; of a checkpoint of DINO's training, those under "student",
    "teacher" and "dino_loss", with these prefixes. The prefixes of
    torch.compile and DistributedDataParallel and the counters of batch norms
    are removed.
    """
    read = _read_zip if archives.is_archive(path) else _read_legacy
    try:
        with archives.parsing("a PyTorch file of plain weights", path):
            tensors = read(path)
    except UnsafePickleError as error:
        raise ValueError(
            f"{str(path)!r} is not a PyTorch file of plain weights: loading "
            f"it would call {error.name}. This package never runs code from a "
            "file. If you trust the file, load it with PyTorch where the code "
            "that it needs is installed, and save only the weights: "
            "torch.save(model.state_dict(), PATH)."
        ) from error
    tensors = _flatten_dino(tensors)
    for name in STATE_DICT_KEYS:
        nested = tensors.get(name) if isinstance(tensors, dict) else None
        if isinstance(nested, dict):
            tensors = nested
            break
    if not isinstance(tensors, dict):
        raise archives.format_error("a PyTorch file of named weights", path)
    for prefix in WRAPPER_PREFIXES:
        if all(str(key).startswith(prefix) for key in tensors):
            tensors = {k[len(prefix) :]: x for k, x in tensors.items()}
    arrays, problems = {}, []
    for key, tensor in tensors.items():
        if str(key).endswith(_COUNTER):
            continue
        try:
            if not isinstance(key, str):
                raise ValueError("a key that is not a string")
            arrays[key] = _array_of(tensor)
        except ValueError as error:
            problems.append(f"{key}: {error}")
    return arrays, problems


def _flatten_dino(tensors: Any) -> Any:
    """Returns a checkpoint of DINO's training as one dict, others unchanged."""
    if not isinstance(tensors, dict) or not all(
        isinstance(tensors.get(name), dict) for name in DINO_KEYS
    ):
        return tensors
    return {
        f"{name}.{key}": tensor
        for name in DINO_KEYS
        for key, tensor in tensors[name].items()
    }


def _nest(tensors: dict[str, Any]) -> dict[str, Any]:
    """Nests a state dict as the training programs of DINO and MoCo v3 do."""
    groups = {key.partition(".")[0] for key in tensors}
    if groups == set(DINO_KEYS):
        return {
            name: {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in tensors.items()
                if key.startswith(f"{name}.")
            }
            for name in DINO_KEYS
        }
    if groups == {"base_encoder", "momentum_encoder", "predictor"}:
        weights = {f"module.{key}": tensor for key, tensor in tensors.items()}
        return {"state_dict": weights}
    return tensors


def write_torch(items: Iterable[tuple[str, Array]], path: pathlib.Path) -> None:
    """Writes a state dict with PyTorch.

    Checkpoints of DINO's and MoCo v3's training are nested as there.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Writing {path.suffix} files needs PyTorch, which cannot be "
            f"imported ({error}). Install it with: pip install torch. Files "
            "that end in .npz or .safetensors need nothing."
        ) from error
    tensors = {}
    for key, array in items:
        # PyTorch needs writable, C-contiguous arrays.
        array = np.require(array, requirements=["C", "W"])
        if array.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            tensors[key] = bits.view(torch.bfloat16)
        else:
            tensors[key] = torch.from_numpy(array)
    torch.save(_nest(tensors), path)


def _read_zip(path: pathlib.Path) -> Any:
    with archives.open_archive(path) as archive:
        members = {
            member.filename.partition("/")[2]: member
            for member in archive.infolist()
        }
        if len(members) != len(archive.infolist()):
            raise ValueError("it has two folders")
        if "data.pkl" not in members:
            raise ValueError("it has no data.pkl")
        if "constants.pkl" in members:
            raise ValueError("it is a TorchScript program")
        order = "little"
        if "byteorder" in members:
            order = archive.read(members["byteorder"]).decode()
        storages = {}
        pickled = io.BytesIO(archive.read(members["data.pkl"]))
        tensors = _unpickle(pickled, storages)
        for key, storage in storages.items():
            if f"data/{key}" not in members:
                raise ValueError(f"it has no data/{key}")
            data = bytearray(archive.read(members[f"data/{key}"]))
            _set_values(storage, data, order)
    return tensors


def _read_legacy(path: pathlib.Path) -> Any:
    file = io.BytesIO(path.read_bytes())
    if _unpickle(file) != LEGACY_MAGIC_NUMBER:
        raise ValueError("it does not begin with PyTorch's magic number")
    _unpickle(file)  # the version of the format
    system = _unpickle(file)
    storages = {}
    tensors = _unpickle(file, storages)
    keys = _unpickle(file)
    if not isinstance(system, dict) or "little_endian" not in system:
        raise ValueError("it does not state its byte order")
    if not isinstance(keys, list):
        raise ValueError("it has no list of storages")
    order = "little" if system["little_endian"] else "big"
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None:
            raise ValueError(f"no tensor has the storage {key!r}")
        if int.from_bytes(file.read(8), order) != storage.size:
            raise ValueError(f"the storage {key} has another size")
        data = file.read(storage.size * storage.dtype.itemsize)
        _set_values(storage, bytearray(data), order)
    return tensors


def _unpickle(
    file: io.BytesIO, storages: dict[str, _Storage] | None = None
) -> Any:
    """Returns the object in a pickle, with stand-ins for all but plain values;
    the storages that it names are added to `storages`."""
    start = file.tell()
    _check_opcodes(file)
    end = file.tell()
    file.seek(start)
    pickled = io.BytesIO(file.read(end - start))
    storages = {} if storages is None else storages
    try:
        return _Unpickler(pickled, storages).load()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # Opcodes in an invalid order. Only stand-ins are ever called.
        raise ValueError(f"a broken pickle: {error}") from error


def _check_opcodes(file: io.BytesIO) -> None:
    """Reads a pickle to its end, and refuses opcodes that are unsafe.

    Before it reads a string, `pickle.Unpickler` allocates the length that the
    pickle states; it also allocates a table as long as the largest memo index.
    Extension codes would bypass `find_class`. Python never writes DUP, by which
    a short pickle makes an object of exponential size.
    """
    size = file.getbuffer().nbytes
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if number >= _MAX_OPCODES:
            raise ValueError(f"a pickle of more than {_MAX_OPCODES} opcodes")
        if opcode.name == "DUP":
            raise ValueError("a broken pickle: the opcode DUP")
        if opcode.name.endswith("PUT") and not 0 <= (argument or 0) < size:
            raise ValueError(f"a broken pickle: the memo index {argument}")
        if opcode.name.startswith("EXT"):
            raise ValueError("a pickle with extension codes")


def _is_size(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < 2**63


def _set_values(storage: _Storage, data: bytearray, byte_order: str) -> None:
    if len(data) != storage.size * storage.dtype.itemsize:
        raise ValueError(
            f"the storage {storage.key} has {len(data):,} bytes for "
            f"{storage.size:,} values"
        )
    values = np.frombuffer(data, storage.dtype)
    storage.values = values if byte_order == "little" else values.byteswap()


def _array_of(tensor: object) -> Array:
    """Returns the array of a tensor from the recorded call that makes it."""
    if not isinstance(tensor, _Call):
        raise ValueError(f"{type(tensor).__name__}, not a tensor")
    if tensor.name.startswith(REBUILD_PARAMETER) and tensor.arguments:
        return _array_of(tensor.arguments[0])
    if tensor.name not in NUM_ARGUMENTS:
        raise ValueError(f"{tensor.name}: not a plain tensor")
    if len(tensor.arguments) not in NUM_ARGUMENTS[tensor.name]:
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
    # The stride of an axis of length 1 is arbitrary and unused.
    strides = [step * (n > 1) for n, step in zip(shape, strides, strict=True)]
    count = math.prod(shape)
    if not count:
        return np.empty(shape, values.dtype)
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    # A stride of 0 could turn one value into terabytes.
    if count > values.size or offset + last >= values.size:
        raise ValueError(
            f"its shape {shape} does not fit the {values.size:,} values that "
            "are stored"
        )
    return np.lib.stride_tricks.as_strided(
        values[offset:], shape, [step * values.itemsize for step in strides]
    )
