"""Small checkpoints in every container, with any arrays."""

import io
import json
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.weights.files import read
from tests import attacks

# container: (a norm's key in it, a key that it has no place for)
FLAX = ("Transformer/encoder_norm/scale", "surprise/kernel")
H5 = ("layers/layer_normalization/vars/0", "layers/surprise/vars/0")
KEYS = {
    "a.npz": FLAX,
    "a.safetensors": FLAX,
    "a.pth": FLAX,
    "a.safetensors.index.json": FLAX,
    "folder": ("vit.layernorm.weight", "vit.surprise.weight"),
    "a.weights.h5": H5,
    "a.keras": H5,
}


def put(name, arrays, whole, folder):
    """Writes any arrays in a container and returns its path."""
    path = folder / name
    if name == "a.npz":
        np.savez(path, **arrays)
    elif name == "a.safetensors":
        safetensors.numpy.save_file(arrays, path)
    elif name == "a.pth":
        torch = pytest.importorskip("torch")
        torch.save({k: torch.tensor(a) for k, a in arrays.items()}, path)
    elif name.endswith(".json"):
        safetensors.numpy.save_file(arrays, folder / "shard.safetensors")
        index = dict.fromkeys(arrays, "shard.safetensors")
        path.write_text(json.dumps({"weight_map": index}))
    elif name == "folder":
        path.mkdir()
        config = (whole / name / "config.json").read_text()
        (path / "config.json").write_text(config)
        safetensors.numpy.save_file(arrays, path / "model.safetensors")
    elif name == "a.weights.h5":
        path.write_bytes((whole / name).read_bytes())
        with h5py.File(path, "r+") as file:
            replace(file, arrays)
    else:
        attacks.rewrite(whole / name, path, tree=lambda file: replace(file, arrays))
    return path


def replace(file, arrays):
    """Replaces the arrays of an HDF5 file of Keras's."""
    for key in datasets(file):
        del file[key]
    for key, array in arrays.items():
        file[key] = array
        layer = key.split("/")[1]
        file[f"layers/{layer}/vars"].attrs.setdefault("name", layer)


def datasets(file):
    keys = []
    file.visit(keys.append)
    found = {key: file[key] for key in keys}
    return {
        key: np.asarray(item)
        for key, item in found.items()
        if isinstance(item, h5py.Dataset)
    }


def to_arrays(name, whole):
    if name.endswith(".json"):
        name = "a.npz"
    if name == "a.weights.h5":
        with h5py.File(whole / name) as file:
            return datasets(file)
    if name == "a.keras":
        with zipfile.ZipFile(whole / name) as archive:
            data = io.BytesIO(archive.read("model.weights.h5"))
        with h5py.File(data) as file:
            return datasets(file)
    return read(whole / name)
