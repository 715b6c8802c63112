"""Reader of PyTorch files (.pth, .pt, .bin) without PyTorch, and their writer.

A file contains a pickle, which describes each tensor and names the storage of
its values. Since PyTorch 1.6, pickle and storages are members of a zip archive;
before, the storages follow the pickle. In a TorchScript program, such as OpenAI's
CLIP, the pickle describes modules, and the code in the archive is not read.
`pickle.Unpickler` is given stand-ins for the functions and classes that a pickle
may name. They only record how they are called: nothing that a file names is
imported or run.
"""

import dataclasses
import io
import math
import pathlib
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from keras_vit.utils.scaling import MODES
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, Config
from keras_vit.weights.files import archives

# The training code of facebookresearch/dino saves its weights in these dicts.
DINO_KEYS = ("student", "teacher", "dino_loss")
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
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}
# A pickle of plain weights may name these dicts, and anything in these modules
# of PyTorch.
DICTS = ("collections.OrderedDict", "collections.Counter")
MODULES = (
    "torch",
    "torch._tensor",
    "torch._utils",
    "torch.jit._pickle",
    "torch.nn.parameter",
    "torch.storage",
)
# Objects of these packages, and of these types of Python's, are settings of a training
# program, which are read and ignored.
SETTINGS = (
    *("_codecs", "argparse", "collections", "datetime", "numpy", "pathlib", "types"),
    *("typing", "addict", "easydict", "lightning", "ml_collections", "omegaconf"),
    *("pytorch_lightning", "yacs"),
)
TYPES = ("complex", "dict", "float", "frozenset", "int", "list", "object", "range")
TYPES += ("set", "slice", "str", "tuple")
# Arguments of Lightning modules that are names of architectures.
_ARCHITECTURES = ("arch", "architecture", "backbone", "encoder", "model", "model_name")
# A name of an architecture in timm, and the tag of its weights.
_NAME = re.compile(r"(?:(?:hf[-_]hub:)?timm/)?((\w+)(?:\.\w+)?)")
# How timm's train.py scales the images of architectures whose names begin like this,
# unless its flags say so; the first that fits counts.
_SCALED = {
    r"vit_\w+\.sat493m": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
    r"vit_\w+(\.(dino|mae)$|_resnet\d+d_)": MODES["torch"],
    r"vit_\w+\.bamboo|vit_large_patch14_clip_(224|336)\.(?!laion2b)": MODES["clip"],
    r"deit|vit_small_patch8|vit_intern|vit_(giant|huge)_patch\d+_gap": MODES["torch"],
    r"vit_\w+_(dinov[23]|lingbot|rope_(?!reg)|sapiens2)": MODES["torch"],
    r"vit_(?!large_patch14_clip_(224|336)\b)\w+_(clip|radio)_": MODES["clip"],
    r"vit_betwixt_patch16_rope": MODES["clip"],
    r"vit_\w+_(mci|miil|tipsv2)": ((0.0,), (1.0,)),
    r"vit_|flexivit_|resnetv2_\w+_bit": MODES["tf"],
}
# The plain architectures of timm, which crop images of 224 pixels at 0.9.
_CROPPED = re.compile(
    r"(?:vit|deit3?)_(?:tiny|small|medium|base|large|huge)(?:_distilled)?"
    r"_patch\d+_(224|384)(?:\.(?!bamboo|fb_in22k)\w+)?"
)
NUM_ARGUMENTS = {
    "torch._utils._rebuild_tensor": (4,),
    "torch._utils._rebuild_tensor_v2": (6, 7),
}

_MAX_OPCODES = 2**20  # a model of 1,000 arrays has some 50,000
# A pickle may hold dicts that contain each other, and long keys in long keys.
_MAX_DEPTH, _MAX_KEY = 8, 1000


class UnsafePickleError(Exception):
    """Raised if a pickle names something that plain weights do not need."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it names {name}")
        self.name = printable(name)


class _Inert:
    """Stand-in for an object that a pickle makes; it ignores the attributes and
    the items that the pickle sets."""

    __slots__ = ()

    def __new__(cls, *arguments: object) -> "_Inert":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        pass

    append = extend = __setstate__

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _Dict(dict):
    """Stand-in for an `OrderedDict`, on which PyTorch sets `_metadata`."""

    __slots__ = ()
    __setstate__ = _Inert.__setstate__


class _Module(dict):
    """Stand-in for a module of a TorchScript program, or for the flags of a training
    program: its attributes."""

    __slots__ = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Call(_Inert):
    """Record of a call of the function or class `name`, "module.name"."""

    name: str
    arguments: tuple[Any, ...]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Global(_Inert):
    """Stand-in for the function or class `name`."""

    name: str

    def __call__(self, *arguments: Any) -> _Dict | _Call:
        if self.name in DICTS:
            return _Dict(*arguments)
        return _Call(self.name, arguments)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Storage(_Inert):
    """Stand-in for a storage: one-dimensional values that tensors view, which
    are set after the pickle has been read."""

    key: str
    dtype: np.dtype
    size: int
    values: Array | None = None

    def set(self, data: bytes, byte_order: str) -> None:
        """Sets the values, given their bytes."""
        if len(data) != self.size * self.dtype.itemsize:
            raise ValueError(
                f"the storage {self.key} has {len(data):,} bytes for "
                f"{self.size:,} values"
            )
        values = np.frombuffer(bytearray(data), self.dtype)
        self.values = values if byte_order == "little" else values.byteswap()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        package = module.partition(".")[0]
        if package == "__torch__" or full_name == "argparse.Namespace":
            return _Module
        if full_name in DICTS or module in MODULES:
            return _Global(full_name)
        is_type = package in ("__builtin__", "builtins") and name in TYPES
        if is_type or package in SETTINGS:
            return _Inert
        raise UnsafePickleError(full_name)

    def persistent_load(self, pid: Any) -> _Storage:
        tag, storage_type, key, _, size, *view = pid
        name = storage_type.name if isinstance(storage_type, _Global) else "none"
        kind = STORAGE_TYPES.get(name.rpartition(".")[2])
        is_plain = tag == "storage" and isinstance(key, str) and _is_size(size)
        if not is_plain or kind is None or view not in ([], [None]):
            raise ValueError(f"a storage that is not plain, of type {name}")
        dtype = np.dtype(kind)
        storage = self.storages.setdefault(key, _Storage(key, dtype, size))
        if (storage.dtype, storage.size) != (dtype, size):
            raise ValueError(f"the storage {key} with two types or sizes")
        return storage


def read_torch(path: pathlib.Path) -> archives.Read:
    """Reads the tensors of a .pth, .pt or .bin file.

    Those of a dict in a dict have both keys, such as "model.norm.weight".
    """
    read = _read_zip if archives.is_archive(path) else _read_legacy
    try:
        with archives.parsing("a PyTorch file of plain weights", path):
            content = read(path)
            entries = list(_entries(content)) if isinstance(content, dict) else None
    except UnsafePickleError as error:
        if error.name.startswith("torch.distributed."):
            remedy = (
                "It is a part of a model that was trained on several devices. Give "
                "what the program writes of the whole model, such as DINOv2's "
                "eval/*/teacher_checkpoint.pth."
            )
        else:
            remedy = (
                "This package never runs code from a file. If you trust the file, "
                "load it with PyTorch where the code that it needs is installed, "
                "and save only the weights: torch.save(model.state_dict(), PATH)."
            )
        raise ValueError(
            f"{str(path)!r} is not a PyTorch file of plain weights: loading "
            f"it would call {error.name}. {remedy}"
        ) from error
    if entries is None:
        raise archives.format_error("a PyTorch file of named weights", path)
    arrays, problems, settings = {}, {}, {}
    for key, value in entries:
        if key in arrays or key in problems:
            problems[key] = "is there twice"
        elif not isinstance(value, _Call):
            settings[key] = f"{type(value).__name__}, not a tensor"
        else:
            try:
                arrays[key] = _array_of(value)
            except ValueError as error:
                problems[key] = str(error)
    # A checkpoint may also hold the settings of the program that trained it.
    return arrays, problems if arrays else settings | problems


def read_training(path: pathlib.Path) -> Config:
    """Returns what a checkpoint of timm's `train.py`, or of a Lightning module, says
    of its model, with the names of timm's config.json; {} if it says nothing."""
    if not archives.is_archive(path):
        return {}
    try:
        with archives.parsing("a PyTorch file", path), archives.open_archive(path) as x:
            names = [name for name in x.namelist() if name.endswith("/data.pkl")]
            content, _ = _unpickle(io.BytesIO(x.read(names[0])))
    except (UnsafePickleError, ValueError, IndexError):
        return {}  # the reader of its arrays says what is wrong
    if not isinstance(content, dict):
        return {}
    flags, module = (
        part if isinstance(part := content.get(key), dict) else {}
        for key in ("args", "hyper_parameters")
    )
    found = [content.get("arch"), flags.get("model")]
    if not any(found):
        found = [module.get(key) for key in _ARCHITECTURES]
    matches = [match for name in found if (match := _NAME.fullmatch(str(name or "")))]
    if len({match[2] for match in matches}) != 1:
        return {}
    name, architecture = max(matches[0][1], matches[-1][1], key=len), matches[0][2]
    options = flags.get("model_kwargs")
    options = dict(options) if isinstance(options, dict) else {}
    config: Config = {"architecture": architecture, "model_args": options}
    if flags:
        config["global_pool"] = flags.get("gp") or options.get("global_pool")
    images: Config = {}
    if content.get("arch"):
        scaled = (pair for start, pair in _SCALED.items() if re.match(start, name))
        images |= zip(("mean", "std"), next(scaled, ()), strict=False)
        if crop := _CROPPED.fullmatch(name):
            images |= {"interpolation": "bicubic", "crop_mode": "center"}
            images["crop_pct"] = 0.9 if crop[1] == "224" else 1.0
    if flags.get("mean") and flags.get("std"):
        images |= {name: flags[name] for name in ("mean", "std")}
    crops = ("interpolation", "crop_pct", "crop_mode")
    images |= {name: flags[name] for name in crops if flags.get(name)}
    return config | ({"pretrained_cfg": images} if images else {})


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
    tensors: dict[str, Any] = {}
    for key, array in items:
        # PyTorch needs writable, C-contiguous arrays.
        array = np.require(array, requirements=["C", "W"])
        if array.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            tensors[key] = bits.view(torch.bfloat16)
        else:
            tensors[key] = torch.from_numpy(array)
    groups: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name, _, rest = key.partition(".")
        groups.setdefault(name, {})[rest] = tensor
    if groups.keys() == set(DINO_KEYS):
        tensors = {name: groups[name] for name in DINO_KEYS}
    elif groups.keys() == {"base_encoder", "momentum_encoder", "predictor"}:
        weights = {f"module.{key}": tensor for key, tensor in tensors.items()}
        tensors = {"state_dict": weights}
    torch.save(tensors, path)


def _read_zip(path: pathlib.Path) -> Any:
    with archives.open_archive(path) as archive:
        members = {
            member.filename.partition("/")[2]: member for member in archive.infolist()
        }
        if len(members) != len(archive.infolist()):
            raise ValueError("it has two folders")

        def content(name: str) -> bytes:
            if name not in members:
                raise ValueError(f"it has no {name}")
            return archive.read(members[name])

        order = "little"
        if "byteorder" in members:
            order = content("byteorder").decode()
        tensors, storages = _unpickle(io.BytesIO(content("data.pkl")))
        for key, storage in storages.items():
            storage.set(content(f"data/{key}"), order)
    return tensors


def _read_legacy(path: pathlib.Path) -> Any:
    file = io.BytesIO(path.read_bytes())
    if _unpickle(file)[0] != 0x1950A86A20F9469CFC6C:
        raise ValueError("it does not begin with PyTorch's magic number")
    _unpickle(file)  # the version of the format
    system, _ = _unpickle(file)
    tensors, storages = _unpickle(file)
    keys, _ = _unpickle(file)
    if not isinstance(system, dict) or "little_endian" not in system:
        raise ValueError("it does not state its byte order")
    order = "little" if system["little_endian"] else "big"
    for key in keys if isinstance(keys, list) else [keys]:
        storage = storages.get(key) if isinstance(key, str) else None
        size = int.from_bytes(file.read(8), order)
        if storage is None or size != storage.size:
            raise ValueError(
                f"no tensor has the storage {key!r:.50} of {size:,} values"
            )
        storage.set(file.read(storage.size * storage.dtype.itemsize), order)
    return tensors


def _unpickle(file: io.BytesIO) -> tuple[Any, dict[str, _Storage]]:
    """Returns the object in a pickle, with stand-ins for all but plain values,
    and the storages that it names.

    Opcodes that are unsafe are refused. Before it reads a string,
    `pickle.Unpickler` allocates the length that the pickle states; it also
    allocates a table as long as the largest memo index. Extension codes would
    bypass `find_class`. Python never writes DUP, by which a short pickle makes
    an object of exponential size.
    """
    start, size = file.tell(), file.getbuffer().nbytes
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        name = opcode.name
        index = (argument or 0) if name.endswith("PUT") else 0
        is_unsafe = name == "DUP" or name.startswith("EXT") or not 0 <= index < size
        if is_unsafe or number >= _MAX_OPCODES:
            raise ValueError(
                f"a broken pickle: its opcode {number:,} is {name}, with the memo "
                f"index {index}"
            )
    end = file.tell()
    file.seek(start)
    unpickler = _Unpickler(io.BytesIO(file.read(end - start)))
    try:
        return unpickler.load(), unpickler.storages
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # Opcodes in an invalid order. Only stand-ins are ever called.
        raise ValueError(f"a broken pickle: {error}") from error


def _entries(content: dict) -> Iterator[tuple[str, Any]]:
    """Yields the entries of a dict and of the dicts in it, except those whose keys are
    numbers, such as an optimizer's."""
    groups, seen = [("", content)], set()
    for _ in range(_MAX_DEPTH):
        inner = []
        for start, group in groups:
            for key, value in group.items():
                if not isinstance(key, str):
                    yield f"{start}<{type(key).__name__}>", key
                elif len(start) + len(key) > _MAX_KEY:
                    raise ValueError(f"a key of more than {_MAX_KEY:,} characters")
                elif not isinstance(value, dict):
                    yield start + key, value
                elif id(value) not in seen:
                    seen.add(id(value))
                    inner.append((f"{start}{key}.", value))
        groups = inner


def _is_size(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < 2**63


def _array_of(tensor: object) -> Array:
    """Returns the array of a tensor from the recorded call that makes it."""
    if not isinstance(tensor, _Call):
        raise ValueError(f"{type(tensor).__name__}, not a tensor")
    name, arguments = tensor.name, tensor.arguments
    if name.startswith("torch._utils._rebuild_parameter") and arguments:
        return _array_of(arguments[0])
    if len(arguments) not in NUM_ARGUMENTS.get(name, ()):
        raise ValueError(f"{name}: {len(arguments)} arguments, not a plain tensor")
    storage, offset, shape, strides, *_ = arguments
    values = storage.values if isinstance(storage, _Storage) else None
    if (
        values is None
        or not all(type(part) is tuple for part in (shape, strides))
        or not all(map(_is_size, (offset, *shape, *strides)))
        or len(shape) != len(strides)
    ):
        raise ValueError("a tensor without a shape or without values")
    # The stride of an axis of length 1 is arbitrary and unused.
    strides = [step * (n > 1) for n, step in zip(shape, strides, strict=True)]
    count = math.prod(shape)
    if not count:
        return np.empty(shape, values.dtype)
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    # A stride of 0 could turn one value into terabytes.
    if count > values.size or offset + last >= values.size:
        raise ValueError(
            f"its shape {shape} does not fit the {values.size:,} values that are stored"
        )
    return np.lib.stride_tricks.as_strided(
        values[offset:], shape, [step * values.itemsize for step in strides]
    )
