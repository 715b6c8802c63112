"""Mutations of files: functions of a `random.Random` and bytes to bytes."""

import copy
import functools
import io
import json
import pickletools
import struct
import warnings
import zipfile

NUMBERS = (0, 1, -1, 2, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS += (2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
JSON_VALUES = (None, True, False, 1.5, 1e308, float("nan"), 10**4000)
JSON_VALUES += ("", "../x", "/etc/passwd", "\x00", "\ud800", "\x1b[2J", "gelu")
JSON_VALUES += ([], {}, [[]], [1, -1], {"a": 1}, ["x"], "F8_E4M3", "I64")
JSON_VALUES += NUMBERS
DEEP_JSON = (b"[" * 100_000, b'{"a":' * 50_000)
NPY_LITERALS = (b"-1", b"0", b"(2**9)", b"1e9", b"9" * 18, b"9" * 5000)
NPY_LITERALS += (b"None", b"'<f8'", b"'|O'", b"'<i4'", b"'|V2'", b"((((")
EVIL_PICKLES = (
    b"cposix\nsystem\n(S'touch RUN'\ntR",
    b'cbuiltins\neval\n(S\'open("RUN", "w")\'\ntR',
    b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR",
    b"ctorch.storage\nUntypedStorage\n(J\xff\xff\xff\x7ftR",
    b"c__builtin__\nexec\n(S'import os'\ntR",
)


def flip(random, data):
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        i = random.randrange(len(data))
        flipped = data[i] ^ 1 << random.randrange(8)
        data[i] = random.choice((0, 1, 127, 128, 255, flipped))
    return bytes(data)


def number(random, data):
    """Overwrite an integer."""
    form = random.choice(("<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    value = random.choice(NUMBERS) % 2 ** (8 * size)
    i = random.randrange(max(1, len(data) - size))
    return data[:i] + struct.pack(form, value) + data[i + size :]


def cut(random, data):
    return data[: random.randrange(len(data))]


def span(random, data):
    """Drop, repeat or move a few bytes."""
    first = random.randrange(len(data) + 1)
    last = min(len(data), first + random.choice((1, 8, 64, 4096)))
    piece, rest = data[first:last], data[:first] + data[last:]
    i = random.choice((first, random.randrange(len(rest) + 1)))
    return rest[:i] + piece * random.choice((0, 1, 2)) + rest[i:]


def noise(random, data):
    i = random.randrange(len(data))
    more = random.randbytes(random.choice((1, 4, 32)))
    return data[:i] + more + data[i + len(more) :]


def any_bytes(random, data):
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        mutation = random.choice((flip, flip, number, cut, span, noise))
        data = mutation(random, data or b"\x00")
    return data


def any_json(random, text):
    kind = random.randrange(12)
    if kind == 0:
        return any_bytes(random, text)
    if kind == 1:
        return random.choice((*DEEP_JSON, b"", b"[]"))
    content = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        _change_json(random, content)
    found = json.dumps(content, separators=(",", ":")).encode()
    if kind == 2 and found.startswith(b"{") and len(found) > 2:
        found = found[:-1] + b"," + found[1:]  # every key twice
    return found


def _change_json(random, content):
    """Change one value or key somewhere in a tree of dicts and lists."""
    while isinstance(content, (dict, list)) and content:
        is_dict = isinstance(content, dict)
        keys = list(content if is_dict else range(len(content)))
        key = random.choice(keys)
        inner = content[key]
        if isinstance(inner, (dict, list)) and inner and random.random() < 0.8:
            content = inner
            continue
        kind = random.randrange(5)
        if kind == 0:
            del content[key]
        elif kind == 1 and is_dict:
            name = random.choice((key[1:], key + "x", "\x1b", "ü", key * 99))
            content[name] = content.pop(key)
        elif kind == 2:
            content[key] = copy.deepcopy(content[random.choice(keys)])
        elif kind == 3 and type(inner) is int:
            content[key] = inner + random.choice((-1, 1, 8, 2**32))
        else:
            content[key] = copy.deepcopy(random.choice(JSON_VALUES))
        return


def npy(random, data):
    """Change a token of the header, a Python literal."""
    end = data.index(b"\n") + 1
    if random.random() < 0.3:
        return any_bytes(random, data)
    header = bytearray(data[10:end])
    tokens = [i for i, c in enumerate(header) if c in b"0123456789'(,:}FT"]
    i = random.choice(tokens)
    header[i : i + 1] = random.choice(NPY_LITERALS)
    length = len(header).to_bytes(2, "little")
    return data[:8] + length + bytes(header) + data[end:]


def safetensors(random, data):
    length = int.from_bytes(data[:8], "little")
    header = any_json(random, data[8 : 8 + length])
    size = len(header)
    if random.random() < 0.1:
        size = random.choice(NUMBERS) % 2**64
    return size.to_bytes(8, "little") + header + data[8 + length :]


def pickled(random, data):
    """Drop, repeat, swap or replace opcodes of a pickle."""
    try:
        starts = [start for _, _, start in pickletools.genops(data)]
    except ValueError:
        return any_bytes(random, data)
    ends = [*starts[1:], starts[-1] + 1]
    pieces = [data[a:b] for a, b in zip(starts, ends, strict=True)]
    for _ in range(random.choice((1, 1, 2, 3))):
        i, j = (random.randrange(len(pieces)) for _ in range(2))
        opcode = random.choice((b"]", b"}", b")", b"0", b"2", b"a", b"u", b"b"))
        pieces[i] = random.choice(
            (
                b"",
                pieces[i] + pieces[j],
                pieces[j],
                random.choice(EVIL_PICKLES),
                opcode * random.choice((1, 2, 100_000)),
                b"\x8a\x08" + random.randbytes(8),  # a long integer
                any_bytes(random, pieces[i] or b"."),
            )
        )
    return b"".join(pieces) + data[ends[-1] :]


def npz(random, data):
    return archive(random, data, {".npy": npy})


def torch(random, data):
    return archive(random, data, {"data.pkl": pickled, "byteorder": any_bytes})


def keras(random, data):
    return archive(random, data, {".json": any_json, ".h5": cut})


def archive(random, data, mutations):
    """Write a zip archive again with one of its members changed.

    Args:
        random: A `random.Random`.
        data: Bytes of the archive.
        mutations: Dict of suffixes of members to mutations.
    """
    members, kind = list(_members(data)), random.randrange(10)
    suffixes = tuple(mutations)
    known = [i for i, (n, _) in enumerate(members) if n.endswith(suffixes)]
    i = random.choice(known)
    name, content = members[i]
    if kind == 0:
        members.append((name, random.choice(members)[1]))
    elif kind == 1:
        other = random.choice(("../RUN", "/RUN", "x", "\x1b", "é", "a/b"))
        members[i] = (other, content)
    elif kind == 2:
        del members[i]
    elif kind == 3:
        members[i] = (name, content + bytes(random.choice((1, 10**5))))
    else:
        mutation = next(f for s, f in mutations.items() if name.endswith(s))
        members[i] = (name, mutation(random, content))
    method = zipfile.ZIP_STORED
    if kind in (3, 4):
        method = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # of duplicate names
        with zipfile.ZipFile(buffer, "w", method) as new:
            for name, content in members:
                new.writestr(name, content)
    return buffer.getvalue()


@functools.lru_cache(8)
def _members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        return [(info.filename, old.read(info)) for info in old.infolist()]
