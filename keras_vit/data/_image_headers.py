"""What the first and the last bytes of an image file tell, in plain Python."""

import os

_STARTS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG": "PNG",
    b"BM": "BMP",
    b"GIF8": "GIF",
}
# A PNG of 200 kB can hold 20000 x 20000 pixels; here an image and a copy of it
# are 800 MB.
_MOST_PIXELS = 2**27
# Resized to a small side of 256, more would be gigabytes.
_LONGEST = 100
_BMP_MASKS = (0xFF0000, 0xFF00, 0xFF)
# Start of frame: markers that tell a JPEG's size.
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def fault_of_ends(path):
    """Looks at both ends of an image file; nothing is decoded.

    Returns:
        What is wrong with it, as text, or None; and whether its end is the end
        of an image. Where it is not, decoding alone can tell: cameras write
        more after it.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(66)
            if not start:
                return "is empty.", False
            kind = next(
                (k for s, k in _STARTS.items() if start[: len(s)] == s), None
            )
            if kind is None:
                return (
                    "is not a JPEG, PNG, BMP or GIF image, whatever its name "
                    "says."
                ), False
            if kind == "BMP" and (fault := _fault_of_bmp(start)):
                return fault, False
            size = _size(file, kind, start)
            return _fault_of_size(size), bool(size) and _has_end(file, kind)
    except OSError as error:
        return f"cannot be read: {error.strerror}.", False


def _fault_of_bmp(start):
    if _number(start, 14, 4) < 40:
        return "is a BMP of OS/2, which cannot be read."
    bits, compression = _number(start, 28, 2), _number(start, 30, 4)
    if bits not in (24, 32):
        # TensorFlow would take the numbers of colours for grey.
        return f"is a BMP of {bits} bits, and only 24 and 32 can be read."
    masks = tuple(_number(start, at, 4) for at in (54, 58, 62))
    if compression and (compression, masks) != (3, _BMP_MASKS):
        return "is a BMP whose colours are in an order that cannot be read."
    return None


def _fault_of_size(size):
    if size is None:
        return None
    height, width = size
    if height * width >= _MOST_PIXELS:
        return (
            f"is {height} x {width} pixels, and below "
            f"{_MOST_PIXELS // 10**6} million can be read."
        )
    if max(size) > _LONGEST * min(size):
        return (
            f"is {height} x {width} pixels: one side may be {_LONGEST} times "
            "the other."
        )
    return None


def _size(file, kind, start):
    """Returns `(height, width)`, or None where the file does not tell."""
    if kind == "JPEG":
        return _size_of_jpeg(file)
    width, height, length, order = {
        "PNG": (16, 20, 4, "big"),
        "GIF": (6, 8, 2, "little"),
        "BMP": (18, 22, 4, "little"),
    }[kind]
    if len(start) < height + length:
        return None
    # A BMP from top to bottom has a height below zero.
    size = [
        abs(_number(start, at, length, order, signed=kind == "BMP"))
        for at in (height, width)
    ]
    return tuple(size) if min(size) else None


def _size_of_jpeg(file):
    file.seek(2)
    while len(head := file.read(4)) == 4 and head[0] == 0xFF:
        if head[1] == 0xFF:  # padding
            file.seek(-3, os.SEEK_CUR)
        elif head[1] in _FRAMES:
            frame = file.read(5)
            size = int.from_bytes(frame[1:3]), int.from_bytes(frame[3:5])
            return size if min(size) else None
        else:
            file.seek(int.from_bytes(head[2:]) - 2, os.SEEK_CUR)
    return None


def _has_end(file, kind):
    size = file.seek(0, os.SEEK_END)
    if kind == "BMP":
        file.seek(2)
        return size >= _number(file.read(4), 0, 4)
    end = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}[kind]
    file.seek(-min(size, len(end)), os.SEEK_END)
    return file.read() == end


def _number(content, at, length, order="little", signed=False):
    return int.from_bytes(content[at : at + length], order, signed=signed)
