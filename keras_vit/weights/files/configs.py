"""JSON files next to weights."""

import pathlib

from keras_vit.utils.text import printable
from keras_vit.utils.types import Config, StrPath
from keras_vit.weights.files import archives

MAX_JSON_BYTES = 2**26  # parsed JSON takes several times as much memory
# The models that a recipe's run writes, which its config.json is about.
_OF_RUNS = (
    *("model.keras", "model.npz", "model.weights.h5"),
    *("encoder.keras", "encoder.npz"),
)


def read_config(path: StrPath, name: str = "config.json") -> Config:
    """Returns the contents of config.json in a folder, or next to a file; {} if
    there is none, or if it is that of a recipe's run, which did not write the
    file."""
    path = pathlib.Path(path).expanduser()
    try:
        config = read_json((path if path.is_dir() else path.parent) / name)
    except FileNotFoundError:
        return {}
    is_of_run = all(isinstance(config.get(key), dict) for key in ("config", "data"))
    if is_of_run and not path.is_dir() and path.name not in _OF_RUNS:
        return {}
    return config


def class_names_of(config: Config, classes: int | None) -> list[str] | None:
    """Returns the class names in a config.json of a training run, of
    transformers or of timm, or None if there are none or another number of
    them.

    The names that transformers gives to classes without one, such as "LABEL_0",
    are returned, too.
    """
    data, timm = (
        found if isinstance(found := config.get(key), dict) else {}
        for key in ("data", "pretrained_cfg")
    )
    places = (data.get("class_names"), config.get("id2label"))
    # timm had them in other places before.
    places += (config.get("label_names"), timm.get("label_names"), config.get("labels"))
    names = next(filter(None, places), None)
    if isinstance(names, dict):
        keys = [str(index) for index in range(classes or 0)]
        names = [names[x] for x in keys] if names.keys() == {*keys} else None
    if not isinstance(names, list) or not names or len(names) != classes:
        return None
    return list(map(printable, names))


def read_json(path: pathlib.Path) -> Config:
    """Returns the dict in a JSON file; {} if it contains another type."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{str(path)!r} is not a file.")
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
        content = archives.parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}
