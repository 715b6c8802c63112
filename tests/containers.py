"""Small checkpoints in every container, with any arrays."""

import io
import json
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.weights.files import read

# container: (a norm's key in it, a key that it has no place for)
FLAX = ("Transformer/encoder_norm/scale", "surprise/kernel")
H5 = ("layers/layer_normalization/vars/0", "layers/surprise/vars/0")
KEYS = {
    "a.npz": FLAX,
    "a.safetensors": FLAX,
    "a.pth": FLAX,
    "a.safetensors.index.json": FLAX,
    "folder": ("vit.layernorm.weight", "surprise.weight"),
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
        path.write_bytes(tree((whole / name).read_bytes(), arrays))
    else:
        rewrite(whole / name, path, lambda data: tree(data, arrays))
    return path


def tree(data, arrays):
    """An HDF5 file of Keras's with other arrays."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        for key in datasets(file):
            del file[key]
        for key, array in arrays.items():
            file[key] = array
            layer = key.split("/")[1]
            file[f"layers/{layer}/vars"].attrs.setdefault("name", layer)
    return buffer.getvalue()


def datasets(file):
    keys = {}
    file.visititems(
        lambda key, item: (
            keys.update({key: np.asarray(item)})
            if isinstance(item, h5py.Dataset)
            else None
        )
    )
    return keys


def rewrite(source, target, change):
    """A .keras file with another tree."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("h5") else data)


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
