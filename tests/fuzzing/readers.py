"""The file types: the opened file and its mutations."""

import dataclasses
import json
import pathlib

from tests.fuzzing import mutations


@dataclasses.dataclass(frozen=True)
class Reader:
    path: str  # what is opened
    mutations: dict  # {file: mutations of it, one of which is taken}
    files: tuple = ()  # files that are there too, undamaged


def _with_bytes(mutation):
    return (mutation, mutations.any_bytes)


_JSON = _with_bytes(mutations.any_json)
_SAFETENSORS = _with_bytes(mutations.safetensors)
_INDEX = "sharded/model.safetensors.index.json"
READERS = {
    "npz": Reader("a.npz", {"a.npz": _with_bytes(mutations.npz)}),
    "safetensors": Reader("a.safetensors", {"a.safetensors": _SAFETENSORS}),
    "sharded": Reader(
        _INDEX,
        {_INDEX: _JSON, "sharded/b.safetensors": _SAFETENSORS},
        ("sharded/a.safetensors",),
    ),
    "torch": Reader("a.pth", {"a.pth": _with_bytes(mutations.torch)}),
    "torch-legacy": Reader(
        "legacy.pth", {"legacy.pth": _with_bytes(mutations.pickled)}
    ),
    "config": Reader(
        "folder", {"folder/config.json": _JSON}, ("folder/model.safetensors",)
    ),
    "keras": Reader("a.keras", {"a.keras": (mutations.keras,)}),
    "h5": Reader("a.weights.h5", {"a.weights.h5": (mutations.cut,)}),
}


def tiny_model(**options):
    """Return the model whose files are damaged."""
    from tests.small import vit

    sizes = {"hidden_size": 4, "num_heads": 1, "mlp_dim": 4, "patch_size": 2}
    return vit(input_shape=(4, 4, 3), classes=2, **sizes, **options)


def save_seeds(folder):
    """Write a tiny model in every file type; needs Keras and PyTorch."""
    import torch

    from keras_vit.converters import save
    from keras_vit.weights.files import read, write

    folder = pathlib.Path(folder)
    model = tiny_model()
    for name in ("npz", "safetensors", "torch", "config", "keras", "h5"):
        save(model, folder / READERS[name].path)
    arrays = read(folder / "a.npz")
    torch.save(
        {"state_dict": {k: torch.tensor(a) for k, a in arrays.items()}},
        folder / "legacy.pth",
        _use_new_zipfile_serialization=False,
    )
    (folder / "sharded").mkdir()
    keys, index = sorted(arrays), {}
    for file, part in (
        ("a.safetensors", keys[::2]),
        ("b.safetensors", keys[1::2]),
    ):
        write({key: arrays[key] for key in part}, folder / "sharded" / file)
        index |= dict.fromkeys(part, file)
    (folder / _INDEX).write_text(json.dumps({"weight_map": index}))


def seed_files(reader, folder):
    """Return `{name: bytes}` of the undamaged files of a reader."""
    names = {*reader.mutations, *reader.files}
    return {name: (pathlib.Path(folder) / name).read_bytes() for name in names}


def mutated(reader, files, random):
    """Return the files with one of them damaged."""
    name = random.choice(sorted(reader.mutations))
    mutation = random.choice(reader.mutations[name])
    return {**files, name: mutation(random, files[name])}
