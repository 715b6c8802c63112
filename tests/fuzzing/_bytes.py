"""Mutations of bytes and of JSON: each takes a `random.Random` and what to
change, and returns it changed."""

import copy
import json
import struct

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS += (2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
VALUES = (
    *NUMBERS,
    *(
        None,
        True,
        False,
        1.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        10**4000,
    ),
    *("", "x", "../x", "/etc/passwd", "\x00", "\ud800", "\x1b[2J", "gelu"),
    *([], {}, [[]], [1, -1], {"a": 1}, ["x"], [2, 2], "F8_E4M3", "I64"),
)
DEEP = "[" * 100_000


def flip(random, data):
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        place = random.randrange(len(data))
        data[place] = random.choice(
            (0, 1, 127, 128, 255, data[place] ^ 1 << random.randrange(8))
        )
    return bytes(data)


def number(random, data):
    form = random.choice(("<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    value = random.choice(NUMBERS) % 2 ** (8 * size)
    place = random.randrange(max(1, len(data) - size))
    if random.random() < 0.5:
        place -= place % 4
    return data[:place] + struct.pack(form, value) + data[place + size :]


def cut(random, data):
    return data[: random.randrange(len(data))]


def span(random, data):
    """Leaves a piece out, or has it twice, or somewhere else."""
    first, last = sorted(random.randrange(len(data) + 1) for _ in range(2))
    last = min(last, first + random.choice((1, 8, 64, 4096)))
    piece = data[first:last]
    rest = data[:first] + data[last:]
    kind = random.randrange(3)
    if kind == 0:
        return rest
    if kind == 1:
        return data[:last] + piece + data[last:]
    place = random.randrange(len(rest) + 1)
    return rest[:place] + piece + rest[place:]


def noise(random, data):
    place = random.randrange(len(data))
    more = random.randbytes(random.choice((1, 4, 32)))
    return data[:place] + more + data[place + len(more) :]


def swapped(random, data):
    """Two pieces of the same length change places."""
    size = random.choice((1, 2, 4, 8, 16, 40))
    if len(data) < 2 * size:
        return data[::-1]
    one, two = sorted(random.randrange(len(data) - size) for _ in range(2))
    two = min(max(two, one + size), len(data) - size)
    return (
        data[:one]
        + data[two : two + size]
        + data[one + size : two]
        + data[one : one + size]
        + data[two + size :]
    )


BYTES = (flip, flip, number, cut, span, noise, swapped)


def any_bytes(random, data):
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(BYTES)(random, data or b"\x00")
    return data


def any_json(random, text):
    """Changes JSON where it has values; now and then its text."""
    kind = random.randrange(12)
    if kind == 0:
        return any_bytes(random, text)
    if kind == 1:
        return random.choice((DEEP.encode(), b'{"a":' * 50_000, b"", b"[]"))
    content = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        _change(random, content)
    found = json.dumps(content, separators=(",", ":")).encode()
    if kind == 2 and found.startswith(b"{") and len(found) > 2:
        found = found[:-1] + b"," + found[1:]  # every key twice
    return found


def _change(random, content):
    """Changes one value, or one name, somewhere in a tree."""
    while True:
        if not isinstance(content, (dict, list)) or not content:
            return
        keys = list(
            content if isinstance(content, dict) else range(len(content))
        )
        key = random.choice(keys)
        inner = content[key]
        if isinstance(inner, (dict, list)) and inner and random.random() < 0.8:
            content = inner
            continue
        kind = random.randrange(5)
        if kind == 0:
            del content[key]
        elif kind == 1 and isinstance(content, dict):
            name = random.choice(
                (key[1:], key + "x", "\x1b", "ü", str(key) * 99)
            )
            content[name] = content.pop(key)
        elif kind == 2:
            content[key] = copy.deepcopy(content[random.choice(keys)])
        elif kind == 3 and type(inner) is int:
            content[key] = inner + random.choice((-1, 1, 8, 2**32))
        else:
            content[key] = copy.deepcopy(random.choice(VALUES))
        return
