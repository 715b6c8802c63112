"""Mutations that know what is inside of a kind of file."""

import functools
import io
import pickletools
import warnings
import zipfile

from tests.fuzzing._bytes import NUMBERS
from tests.fuzzing._bytes import any_bytes
from tests.fuzzing._bytes import any_json

_EVIL = (
    b"cposix\nsystem\n(S'touch RUN'\ntR",
    b'cbuiltins\neval\n(S\'open("RUN", "w")\'\ntR',
    b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR",
    b"ctorch.storage\nUntypedStorage\n(J\xff\xff\xff\x7ftR",
    b"c__builtin__\nexec\n(S'import os'\ntR",
)
_LITERALS = (b"-1", b"0", b"(2**9)", b"1e9", b"999999999999999999", b"None")
_LITERALS += (
    b"True",
    b"'<f8'",
    b"'|O'",
    b"'<i4'",
    b"'|V2'",
    b"((((",
    b"9" * 5000,
)


def npz(random, data):
    return archive(random, data, {".npy": npy})


def npy(random, data):
    """A header of NumPy's is a dict in Python's own writing."""
    end = data.index(b"\n") + 1
    if random.random() < 0.3:
        return any_bytes(random, data)
    header = bytearray(data[10:end])
    tokens = [i for i, c in enumerate(header) if c in b"0123456789'(,:}FT"]
    place = random.choice(tokens)
    header[place : place + 1] = random.choice(_LITERALS)
    length = len(header).to_bytes(2, "little")
    return data[:8] + length + bytes(header) + data[end:]


def safetensors(random, data):
    length = int.from_bytes(data[:8], "little")
    header = any_json(random, data[8 : 8 + length])
    size = len(header)
    if random.random() < 0.1:
        size = random.choice(NUMBERS) % 2**64
    return size.to_bytes(8, "little") + header + data[8 + length :]


def torch_zip(random, data):
    return archive(random, data, {"data.pkl": opcodes, "byteorder": any_bytes})


def opcodes(random, data):
    """Leaves opcodes of a pickle out, has them twice, or others."""
    try:
        places = [place for _, _, place in _operations(data)]
    except ValueError:
        return any_bytes(random, data)
    ends = [*places[1:], places[-1] + 1]
    pieces = [data[a:b] for a, b in zip(places, ends, strict=True)]
    for _ in range(random.choice((1, 1, 2, 3))):
        i, j = (random.randrange(len(pieces)) for _ in range(2))
        kind = random.randrange(7)
        if kind == 0:
            pieces[i] = b""
        elif kind == 1:
            pieces[i] += pieces[j]
        elif kind == 2:
            pieces[i], pieces[j] = pieces[j], pieces[i]
        elif kind == 3:
            pieces[i] = random.choice(_EVIL)
        elif kind == 4:
            pieces[i] = random.choice(
                (b"]", b"}", b")", b"0", b"2", b"a", b"u")
            )
            pieces[i] *= random.choice((1, 2, 100_000))
        elif kind == 5:
            pieces[i] = b"\x8a\x08" + random.randbytes(8)  # a long number
        else:
            pieces[i] = any_bytes(random, pieces[i] or b".")
    return b"".join(pieces) + data[ends[-1] :]


@functools.lru_cache(8)
def _operations(data):
    return list(pickletools.genops(data))


def keras(random, data):
    inner = {".json": any_json, ".h5": any_bytes}
    return archive(random, data, inner)


@functools.lru_cache(8)
def _members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        return [(info.filename, old.read(info)) for info in old.infolist()]


def archive(random, data, inner):
    """Writes a zip archive anew with one of its members changed."""
    members, evil = list(_members(data)), random.randrange(10)
    known = [i for i, (n, _) in enumerate(members) if n.endswith((*inner,))]
    i = random.choice(known)
    name, content = members[i]
    if evil == 0:
        members.append((name, random.choice(members)[1]))
    elif evil == 1:
        other = random.choice(("../RUN", "/RUN", "x", "\x1b", "é", "a/b"))
        members[i] = (other, content)
    elif evil == 2:
        del members[i]
    elif evil == 3:
        members[i] = (name, content + bytes(random.choice((1, 10**5))))
    else:
        change = next(f for end, f in inner.items() if name.endswith(end))
        members[i] = (name, change(random, content))
    method = zipfile.ZIP_STORED
    if evil in (3, 4):
        method = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        with zipfile.ZipFile(buffer, "w", method) as new:
            for name, content in members:
                new.writestr(name, content)
    return buffer.getvalue()
