"""Reading files of class names: every function returns a list of pairs
`(id, name)`, where the place in the list is the index of the class and `id`
is None if the file has none."""

import json
import pathlib


def read(path):
    """Reads a file of labels, by its ending: `.json`, or else text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a file of labels.
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix.lower() == ".json":
        return read_json(path)
    return read_text(path)


def read_json(path):
    """Reads `{"0": ["n01440764", "tench"], ...}`, Keras's class index."""
    try:
        index = json.loads(_read(path))
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as JSON: {error}. It may have been "
            "cut off while downloading, or be of another kind."
        ) from error
    if not isinstance(index, dict) or not index:
        raise ValueError(
            f"{str(path)!r} must hold a JSON object of classes, "
            '{"0": ["n01440764", "tench"], ...}. '
            f"Received: {type(index).__name__} of {str(index)[:60]!r}"
        )
    labels = []
    for key in map(str, range(len(index))):
        entry = index.get(key)
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or not all(isinstance(part, str) and part for part in entry)
        ):
            raise ValueError(
                f"{str(path)!r} holds {len(index)} classes, and each of "
                f'"0" to "{len(index) - 1}" must be an id and a name, '
                f'["n01440764", "tench"]. Received: {entry!r} for "{key}"'
            )
        labels.append(tuple(entry))
    return labels


def read_text(path):
    """Reads one label a line: `name`, or `id<TAB>name`."""
    labels = []
    for number, line in enumerate(read_lines(path), start=1):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) > 2 or not all(parts):
            raise ValueError(
                f"Line {number} of {str(path)!r} must be a name, or an id, "
                f"one tab and a name. Received: {line!r}"
            )
        labels.append((None, *parts) if len(parts) == 1 else tuple(parts))
    return labels


def read_lines(path):
    """Returns the lines of a text file, none of them empty."""
    # Not `splitlines`, which also splits at characters that names may hold.
    lines = _read(path).rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(
                f"Line {number} of {str(path)!r} is empty: line i + 1 is the "
                "label of class i, so that none may be left out."
            )
    return lines


def _read(path):
    if not path.exists():
        raise FileNotFoundError(
            f"There is no file {str(path)!r}. Give the path of a .json file "
            '({"0": ["n01440764", "tench"], ...}) or of a text file with one '
            "label a line."
        )
    if not path.is_file():
        raise ValueError(
            f"{str(path)!r} is not a file. Give the path of a .json or text "
            "file of labels."
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not text in UTF-8: {error}. Save it again in "
            "this encoding."
        ) from error
