"""HDF5 as h5py writes it for Keras, read in plain Python.

HDF5's own library crashes or hangs on about one of 400 files with a few wrong
bytes. This reads what such files consist of (HDF5 File Format Specification,
version 3.0: superblocks 0 and 1, groups of symbol tables, contiguous data) and
nothing else. Each address is held to the file's size, and no object is read
twice. Files of newer versions are first rewritten in this one, elsewhere.
"""

import dataclasses
import math
import struct

import numpy as np

from keras_vit.checkpoints import _archives
from keras_vit.checkpoints._hdf5_newer import rewritten

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_NOWHERE = 2**64 - 1
_SPACE, _TYPE, _EXTERNAL, _LAYOUT = 0x01, 0x03, 0x07, 0x08
_FILTERS, _ATTRIBUTE, _CONTINUED, _SYMBOLS = 0x0B, 0x0C, 0x10, 0x11
_LINKS = (0x02, 0x06)
_SOFT_LINK = 2
_SCALAR, _NULL = 0, 2
_KINDS = {0: ("u", "i"), 1: ("f", "f"), 4: ("u", "u"), 5: ("V", "V")}
_ENUM, _TEXT, _VARIABLE = 8, 3, 9


@dataclasses.dataclass
class Group:
    attributes: dict
    items: dict  # name: Group or Data


@dataclasses.dataclass
class Data:
    attributes: dict
    shape: tuple
    dtype: np.dtype
    place: int
    file: object

    def read(self):
        if self.place == _NOWHERE or not math.prod(self.shape):
            return np.empty(self.shape, self.dtype)  # of no bytes
        self.file.seek(self.place)
        size = math.prod(self.shape) * self.dtype.itemsize
        return (
            _archives.fill(self.file, size).view(self.dtype).reshape(self.shape)
        )


def read(file):
    """Returns the `Group` at the root of an open file.

    Raises:
        ValueError: if it is broken, or has more in it than Keras's files.
    """
    file.seek(0)
    start = file.read(9)
    if start[:8] == SIGNATURE and start[8:] > b"\x01":
        file = rewritten(file)
    try:
        return _Reader(file).root()
    except IndexError as error:  # of bytes that are too few
        raise ValueError("a part of it is too short") from error


class _Reader:
    def __init__(self, file):
        self.file, self.size = file, file.seek(0, 2)
        self.seen, self.values = set(), 0

    def take(self, place, size):
        if place < 0 or size < 0 or place + size > self.size:
            raise ValueError(f"{size:,} bytes at {place:,} are not in it")
        self.file.seek(place)
        return self.file.read(size)

    def numbers(self, form, place):
        form = "<" + form
        return struct.unpack(form, self.take(place, struct.calcsize(form)))

    def once(self, place):
        if place in self.seen:
            raise ValueError(f"what is at {place:,} is in it twice")
        self.seen.add(place)

    def root(self):
        if self.take(0, 8) != SIGNATURE:
            raise ValueError("it does not begin as HDF5 does")
        version, *_, offsets, lengths = self.numbers("BBBBBBB", 8)
        if version > 1 or (offsets, lengths) != (8, 8):
            raise ValueError("a version of HDF5 that Keras's files are not of")
        place = 24 + 4 * version
        base, _, end, _, _, root = self.numbers("6Q", place)
        if base or end != self.size:
            raise ValueError(
                f"it has {self.size:,} bytes, and tells of {end:,}"
            )
        found = self.item(root, "/")
        if not isinstance(found, Group):
            raise ValueError("its root is no group")
        return found

    def item(self, place, path):
        """The group or dataset whose header is at a place."""
        self.once(place)
        messages, attributes = {}, {}
        for kind, data in self.messages(place):
            if kind == _ATTRIBUTE:
                name, value = self.attribute(data)
                attributes[name] = value
            elif kind in _LINKS:
                raise ValueError(
                    f"it holds a link in {path}, which is not followed"
                )
            elif kind in messages:
                raise ValueError(f"{path} is described twice")
            else:
                messages[kind] = data
        if _SYMBOLS in messages:
            return Group(attributes, self.members(messages[_SYMBOLS], path))
        return self.data(messages, attributes, path)

    def messages(self, place):
        """Yields `(kind, bytes)` of an object's header."""
        version, _, count, _, size = self.numbers("BBHII", place)
        if version != 1:
            raise ValueError(f"an object of version {version} at {place:,}")
        parts, left = [(place + 16, size)], count
        while parts and left > 0:
            start, size = parts.pop(0)
            block = self.take(start, size)
            at = 0
            while at + 8 <= len(block) and left > 0:
                kind, length, flags = struct.unpack_from("<HHB", block, at)
                data = block[at + 8 : at + 8 + length]
                if len(data) != length or (flags & 2 and kind):
                    raise ValueError(f"a broken message at {start + at:,}")
                at, left = at + 8 + length, left - 1
                if kind == _CONTINUED:
                    following = struct.unpack("<QQ", data[:16])
                    self.once(following[0])
                    parts.append(following)
                elif kind:
                    yield kind, data

    def members(self, data, path):
        """The items of a group: a tree of names that lie in a heap."""
        tree, heap = struct.unpack("<QQ", data[:16])
        names = self.heap(heap)
        found = {}
        for node in self.leaves(tree):
            signature, _, _, count = self.numbers("4sBBH", node)
            if signature != b"SNOD":
                raise ValueError(f"no names at {node:,}")
            for i in range(count):
                entry = node + 8 + 40 * i
                offset, place, cached = self.numbers("QQI", entry)
                stop = names.find(b"\x00", offset)
                if offset >= len(names) or stop < 0:
                    raise ValueError(f"{path} has an item without a name")
                name = names[offset:stop].decode()
                if name in found or "/" in name or not name.isprintable():
                    raise ValueError(f"{path} has two {name!r}")
                inner = f"{path.rstrip('/')}/{name}"
                if cached == _SOFT_LINK or place == _NOWHERE:
                    raise ValueError(
                        f"it holds a link, {inner}, which is not followed"
                    )
                found[name] = self.item(place, inner)
        return found

    def heap(self, place):
        signature, _, _, _, _, size, _, data = self.numbers("4s4B3Q", place)
        if signature != b"HEAP":
            raise ValueError(f"no names at {place:,}")
        return self.take(data, size)

    def leaves(self, place):
        """Yields the places of the nodes that a tree ends in."""
        self.once(place)
        signature, kind, level, count = self.numbers("4sBBH", place)
        if signature != b"TREE" or kind:
            raise ValueError(f"no tree of names at {place:,}")
        for i in range(count):
            (child,) = self.numbers("Q", place + 24 + 8 + 16 * i)
            if level:
                yield from self.leaves(child)
            else:
                self.once(child)
                yield child

    def data(self, messages, attributes, path):
        missing = {_SPACE, _TYPE, _LAYOUT} - messages.keys()
        if missing:
            raise ValueError(f"{path} is neither a group nor an array")
        if _EXTERNAL in messages:
            raise ValueError(f"it keeps {path} in another file, not read")
        shape, dtype = _shape(messages[_SPACE]), _dtype(messages[_TYPE])
        if dtype.hasobject:  # text, which the caller names
            return Data(attributes, (), dtype, _NOWHERE, self.file)
        layout = messages[_LAYOUT]
        if _FILTERS in messages or layout[:2] != b"\x03\x01":
            raise ValueError(f"{path} is stored in pieces, or compressed")
        place, stored = struct.unpack("<QQ", layout[2:18])
        wanted = math.prod(shape) * dtype.itemsize
        # Of no more than is stored, and all together no more than the file.
        self.values += wanted
        stored *= place != _NOWHERE
        if stored != wanted or self.values > self.size:
            raise ValueError(
                f"{path} claims the shape {shape}, and {stored:,} bytes of it "
                "are there"
            )
        if wanted and place + wanted > self.size:
            raise ValueError(f"{path} goes on behind the file's end")
        return Data(attributes, shape, dtype, place, self.file)

    def attribute(self, data):
        """Returns `(name, value)`; a value of another kind is None."""
        version, _, *sizes = struct.unpack_from("<BBHHH", data)
        at = 8 + (version == 3)
        parts = []
        for size in sizes:
            parts.append(data[at : at + size])
            at += -(-size // 8) * 8 if version == 1 else size
        name, kind, space = parts
        name = name.rstrip(b"\x00").decode()
        value = None
        if math.prod(_shape(space)) == 1 and len(kind) >= 8:
            size = struct.unpack_from("<I", kind, 4)[0]
            if kind[0] & 15 == _TEXT:
                value = data[at : at + size].rstrip(b"\x00").decode()
            elif kind[0] & 15 == _VARIABLE and kind[1] & 15 == 1:
                value = self.text(*struct.unpack_from("<IQI", data, at))
        return name, value

    def text(self, size, place, index):
        """Text of any length, which lies in a heap of such."""
        signature, _, _, _, _, end = self.numbers("4s4BQ", place)
        if signature != b"GCOL":
            raise ValueError(f"no text at {place:,}")
        at = place + 16
        while at + 16 <= place + end:
            number, _, _, length = self.numbers("HHIQ", at)
            if number == index and number:
                return self.take(at + 16, min(size, length)).decode()
            if not number:
                break
            at += 16 + -(-length // 8) * 8
        raise ValueError(f"no text {index} at {place:,}")


def _shape(data):
    version, rank, _ = struct.unpack_from("<BBB", data)
    start = 8
    if version == 2:
        start = 4
        if data[3] == _NULL:
            return (0,)
    elif version != 1:
        raise ValueError(f"a shape of version {version}")
    return struct.unpack_from(f"<{rank}Q", data, start)


def _dtype(data):
    kind, size = data[0] & 15, struct.unpack_from("<I", data, 4)[0]
    if kind == _ENUM and size == 1:  # NumPy's booleans
        return np.dtype(np.bool_)
    if kind == _VARIABLE:
        return np.dtype(object)
    order = ">" if data[1] & 1 else "<"
    signed = data[1] >> 3 & 1
    name = {_ENUM: "V"}.get(kind, "S")
    if kind in _KINDS:
        name = order + _KINDS[kind][signed]
    try:
        return np.dtype(f"{name}{size}")
    except TypeError as error:
        raise ValueError(f"a type {name}{size} of numbers") from error
