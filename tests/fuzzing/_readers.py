"""The readers: what each is given, how that is broken, and who else reads
it."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np

from tests.fuzzing import _bytes
from tests.fuzzing import _files


@dataclasses.dataclass(frozen=True)
class Reader:
    path: str  # of what is opened
    changes: dict  # file: mutations that know it
    files: tuple = ()  # more files that are there
    reference: object = None  # function of a path to `{key: array}`


def _reference_npz(path):
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def _reference_safetensors(path):
    from safetensors.numpy import load_file

    return load_file(path)


def _reference_torch(path):
    import torch

    found = torch.load(path, weights_only=True, map_location="cpu")
    found = next(
        (found[n] for n in ("model", "state_dict", "teacher") if n in found),
        found,
    )
    return {key: tensor.numpy() for key, tensor in found.items()}


_FOLDER = ("folder/config.json", "folder/model.safetensors")
READERS = {
    "npz": Reader("a.npz", {"a.npz": _files.npz}, (), _reference_npz),
    "safetensors": Reader(
        "a.safetensors",
        {"a.safetensors": _files.safetensors},
        (),
        _reference_safetensors,
    ),
    "sharded": Reader(
        "sharded/model.safetensors.index.json",
        {
            "sharded/model.safetensors.index.json": _bytes.any_json,
            "sharded/b.safetensors": _files.safetensors,
        },
        ("sharded/a.safetensors",),
    ),
    "torch": Reader("a.pth", {"a.pth": _files.torch_zip}, (), _reference_torch),
    "torch-old": Reader(
        "old.pth", {"old.pth": _files.opcodes}, (), _reference_torch
    ),
    "config": Reader("folder", {_FOLDER[0]: _bytes.any_json}, _FOLDER[1:]),
    "keras": Reader("a.keras", {"a.keras": _files.keras}),
    "h5": Reader("a.weights.h5", {"a.weights.h5": _bytes.any_bytes}),
}


def make_seeds(folder):
    """Writes one small model in every container; in a process of its own,
    which may load Keras and PyTorch."""
    code = f"from tests.fuzzing import _readers as r; r.save_all({folder!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


def tiny():
    """The model that the seeds are written from."""
    import keras_vit

    return keras_vit.VisionTransformer(
        patch_size=2,
        hidden_size=4,
        num_layers=1,
        num_heads=1,
        mlp_dim=4,
        input_shape=(4, 4, 3),
        classes=2,
    )


def save_all(folder):
    import torch

    from keras_vit.checkpoints.files import read
    from keras_vit.checkpoints.files import write
    from keras_vit.converters import save

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny()
    names = {name for r in READERS.values() for name in (r.path, *r.files)}
    for name in sorted(names):
        if not name.startswith(("old", "sharded")) and "/" not in name:
            save(model, folder / name, overwrite=True)
    arrays = read(folder / "a.npz")
    tensors = {key: torch.tensor(array) for key, array in arrays.items()}
    torch.save(
        {"state_dict": tensors},
        folder / "old.pth",
        _use_new_zipfile_serialization=False,
    )
    inner = folder / "sharded"
    inner.mkdir(exist_ok=True)
    keys = sorted(arrays)
    index = {}
    for name, part in (("a", keys[::2]), ("b", keys[1::2])):
        file = f"{name}.safetensors"
        write({k: arrays[k] for k in part}, inner / file, overwrite=True)
        index |= dict.fromkeys(part, file)
    (inner / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    )


def seed_files(reader, folder):
    """Returns `{name: bytes}` of what a reader is given."""
    names = {*reader.changes, *reader.files}
    return {name: (pathlib.Path(folder) / name).read_bytes() for name in names}


def mutated(reader, files, random):
    """Returns the files with one of them changed."""
    name = random.choice(sorted(reader.changes))
    known = random.random() < 0.6
    change = reader.changes[name] if known else _bytes.any_bytes
    return {**files, name: change(random, files[name])}
