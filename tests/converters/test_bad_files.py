"""Every container with every defect: one clear error, no code is executed."""

import errno
import io
import json
import os
import pathlib
import pickle
import re
import zipfile

import h5py
import numpy as np
import pytest
import safetensors

import keras_vit
from keras_vit import convert as _cli
from keras_vit.converters import load
from keras_vit.converters import save
from keras_vit.weights.files import read
from keras_vit.weights.files import torch as torch_files
from tests.containers import FLAX
from tests.containers import KEYS
from tests.containers import put
from tests.containers import rewrite
from tests.containers import to_arrays

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One small model in every container."""
    folder = tmp_path_factory.mktemp("whole")
    model = keras_vit.VisionTransformer(
        patch_size=8,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        input_shape=(16, 16, 3),
        classes=3,
    )
    for name in KEYS:
        if not name.endswith(".json"):
            save(model, folder / name)
    return folder


def shown(key):
    """The name of a key in errors: for Keras files, the path of the
    variable."""
    key = key.replace("layers/layer_normalization/vars", "encoder_norm")
    return key.replace("layers/surprise/vars/0", "surprise/kernel")


def number(key):
    return shown(key).replace("encoder_norm/0", "encoder_norm/gamma")


@pytest.mark.parametrize("name", KEYS)
def test_valid_file_is_read(name, whole, tmp_path):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    assert load(path).name.startswith("vision_transformer")


DEFECTS = {
    "missing": (None, "missing[^:]*:\n  KEY"),
    "shape": (np.ones(5, "float32"), r"KEY: \(5,\) in the file, \(16,\)"),
    "integers": (np.ones(16, "int32"), "KEY: type (int|I)32, expected floats"),
    "nan": (np.full(16, np.nan, "float32"), "KEY: not all values are finite"),
    "inf": (np.full(16, -np.inf, "float32"), "KEY: not all values are finite"),
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("name", KEYS)
def test_error_names_the_wrong_array(name, defect, whole, tmp_path):
    array, message = DEFECTS[defect]
    arrays, key = to_arrays(name, whole), KEYS[name][0]
    arrays[key] = array
    if array is None:
        del arrays[key]
    path = put(name, arrays, whole, tmp_path)
    if defect in ("missing", "shape"):
        key = number(key)
        if name == "a.keras":  # Keras itself finds these
            message = "a.keras' cannot be loaded.* name=encoder_norm"
    with pytest.raises(ValueError, match=message.replace("KEY", shown(key))):
        load(path)


@pytest.mark.parametrize("name", KEYS)
def test_error_names_the_unexpected_array(name, whole, tmp_path):
    extra = KEYS[name][1]
    arrays = to_arrays(name, whole)
    arrays[extra] = np.ones((2, 2), "float32")
    path = put(name, arrays, whole, tmp_path)
    with pytest.raises(ValueError, match=f"no place for:\n  {shown(extra)}"):
        load(path)


@pytest.mark.parametrize("name", KEYS)
def test_nan_is_converted_bit_for_bit_with_a_warning(name, whole, tmp_path):
    """The conversion copies the bits of NaN values; loading a model refuses
    them."""
    arrays, key = to_arrays(name, whole), KEYS[name][0]
    bits = np.arange(16, dtype="uint32") + 0x7FC00000  # NaNs with a payload
    arrays[key] = bits.view("float32")
    path = put(name, arrays, whole, tmp_path)
    target = tmp_path / "target.npz"
    with pytest.warns(UserWarning, match="not finite, which are") as caught:
        _cli.convert(path, target, to="vit_jax", layout=None)
    assert __file__ in {warning.filename for warning in caught}
    found = read(target, finite=False)[FLAX[0]]
    np.testing.assert_array_equal(found.view("uint32"), bits)


def file_of(name, folder):
    """The file with the arrays, which the test damages."""
    inside = {"folder": "folder/model.safetensors"}
    if name.endswith(".json"):
        return folder / "shard.safetensors"
    return folder / inside.get(name, name)


@pytest.mark.parametrize(
    "damage,message",
    [
        (
            lambda data: data[: len(data) // 2],
            "is not a.*may have been cut off",
        ),
        (lambda data: data[:10], "is not a.*may have been cut off"),
        (lambda data: b"", "is not a.*may have been cut off"),
        (lambda data: b"\n<!DOCTYPE html><p>404", "is not a.*It is a web page"),
    ],
)
@pytest.mark.parametrize("name", KEYS)
def test_truncated_files_and_web_pages_are_refused(
    name, damage, message, whole, tmp_path, capsys
):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    file = file_of(name, tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load(path)
    assert _cli.main([str(path), "--inspect"]) == 1
    assert "error: " in capsys.readouterr().err


# A zip archive may follow other bytes in its file; these are no zip archives.
@pytest.mark.parametrize(
    "name", [x for x in KEYS if x not in ("a.npz", "a.keras", "a.pth")]
)
def test_data_after_a_web_page_is_refused(name, whole, tmp_path):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    file = file_of(name, tmp_path)
    file.write_bytes(b"<html>" + file.read_bytes())
    with pytest.raises(ValueError, match="is not a.*It is a web page"):
        load(path)


@pytest.mark.parametrize("text", ["<html>", '{"weight_map": ', "\xff"])
def test_invalid_json_in_index_or_config_raises(text, whole, tmp_path):
    path = tmp_path / "a.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="index.json' is not valid JSON"):
        load(path)
    arrays = to_arrays("folder", whole)
    path = put("folder", arrays, whole, tmp_path)
    (path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="config.json' is not valid JSON"):
        load(path)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', "3"])
def test_index_without_shards_raises(index, tmp_path):
    path = tmp_path / "a.safetensors.index.json"
    path.write_text(index)
    with pytest.raises(ValueError, match="names no shards"):
        load(path)


@pytest.mark.parametrize(
    "shard", ["../b.npz", "/tmp/b.npz", "x/b.npz", "..\\b.npz"]
)
def test_shard_outside_the_folder_is_refused(shard, whole, tmp_path):
    path = tmp_path / "a.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"cls": shard}}))
    with pytest.raises(ValueError, match="names a shard outside of its folder"):
        load(path)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["npz", "pickle", "torch", "nested"])
def test_pickled_code_is_refused_and_not_executed(kind, tmp_path):
    trap = tmp_path / "trap"
    path = tmp_path / ("a.npz" if kind == "npz" else "a.pth")
    message = "PyTorch file of plain weights"
    if kind == "npz":
        np.savez(path, cls=np.array([Evil(trap)], dtype=object))
        message = "cls: Object arrays cannot be loaded"
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"cls": Evil(trap)}))
    else:
        torch = pytest.importorskip("torch")
        evil = {"cls": Evil(trap)}
        torch.save({"model": evil} if kind == "nested" else evil, path)
    with pytest.raises(ValueError, match=message):
        load(path)
    assert not trap.exists()


def test_error_names_arrays_of_text(tmp_path):
    np.savez(tmp_path / "a.npz", cls=np.array(["a", "b"]))
    with pytest.raises(ValueError, match="cls: type <U1, expected floats"):
        load(tmp_path / "a.npz")
    torch = pytest.importorskip("torch")
    torch.save({"cls": "a", 3: torch.ones(2)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="cls: str, not a tensor\n  3: a key"):
        load(tmp_path / "a.pth")


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras"])
@pytest.mark.parametrize("kind", ["link", "soft", "external", "text"])
def test_hdf5_links_are_refused(name, kind, whole, tmp_path):
    """HDF5 can refer to data in any file that the process may read."""
    (tmp_path / "secret").write_bytes(np.ones(16, "float32").tobytes())
    key = KEYS[name][0]

    def change(data):
        buffer = io.BytesIO(data)
        with h5py.File(buffer, "r+") as file:
            del file[key]
            if kind == "link":
                file[key] = h5py.ExternalLink("other.h5", "/x")
            elif kind == "soft":
                file[key] = h5py.SoftLink("/layers")
            elif kind == "text":
                file[key] = "text"
            else:
                secret = [(str(tmp_path / "secret"), 0, 64)]
                file.create_dataset(key, (16,), "float32", external=secret)
        return buffer.getvalue()

    path = tmp_path / name
    if name == "a.keras":
        rewrite(whole / name, path, change)
    else:
        path.write_bytes(change((whole / name).read_bytes()))
    messages = {
        "external": "in another file",
        "text": "encoder_norm/0: type object",
    }
    with pytest.raises(ValueError, match=messages.get(kind, "holds a link")):
        load(path)


def test_archive_member_outside_the_folder_is_refused(whole, tmp_path):
    path = tmp_path / "inner" / "a.keras"
    path.parent.mkdir()
    rewrite(whole / "a.keras", path, lambda data: data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../evil", "x")
    for settings in ({}, {"classes": 5}):
        with pytest.raises(ValueError, match="'../evil', a path outside"):
            load(path, **settings)
    assert not (tmp_path / "evil").exists()
    assert os.listdir(path.parent) == ["a.keras"]


@pytest.mark.parametrize("config", ["{}", "[]", '{"config": 3}', "no JSON"])
def test_keras_file_of_another_kind_is_refused(config, whole, tmp_path):
    with zipfile.ZipFile(whole / "a.keras") as archive:
        weights = archive.read("model.weights.h5")
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", weights)
    with pytest.raises(ValueError, match="keras' (is not a|was not made by)"):
        load(path)


def test_keras_file_with_inconsistent_prefix_tokens_raises(whole, tmp_path):
    with zipfile.ZipFile(whole / "a.keras") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    before = content["config.json"]
    content["config.json"] = re.sub(
        rb'("num_prefix_tokens": )\d+', rb"\g<1>9", before
    )
    assert content["config.json"] != before
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match="not what keras_vit writes"):
        load(tmp_path / "a.keras")


@pytest.fixture
def failing_reads(monkeypatch):
    """Makes reading arrays fail with an error of the machine or of this
    package."""

    def fail_with(error):
        def fail(*arguments, **keywords):
            raise error

        monkeypatch.setattr(np.lib.format, "read_array", fail)
        monkeypatch.setattr(safetensors, "safe_open", fail)
        monkeypatch.setattr(torch_files._Storage, "set", fail)
        monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)

    return fail_with


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.2 GiB"),
        OSError(errno.EIO, "Input/output error"),
        KeyError("a mistake in this package"),
        TypeError("a mistake in this package"),
    ],
)
def test_errors_of_the_machine_are_not_reported_as_damage(
    name, error, whole, tmp_path, failing_reads
):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    failing_reads(error)
    with pytest.raises(type(error)) as found:
        load(path)
    assert found.value is error


@pytest.mark.backends("torch")
def test_command_reports_out_of_memory(whole, tmp_path, failing_reads, capsys):
    failing_reads(MemoryError("Unable to allocate 1.2 GiB"))
    target = str(tmp_path / "a.npz")
    assert _cli.main([str(whole / "a.npz"), target]) == 1
    found = capsys.readouterr().err
    assert found.startswith("error: out of memory (Unable to allocate 1.2 GiB)")


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", KEYS)
def test_parser_error_is_the_cause(name, whole, tmp_path):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    file = file_of(name, tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError) as found:
        load(path)
    without = (".npz", ".keras", ".pth", ".pt", ".bin")
    if not name.endswith(without):  # a zip archive without its end is none
        assert found.value.__cause__ is not None


@pytest.mark.backends("torch")
def test_length_beyond_the_file_is_not_allocated(tmp_path):
    """An old PyTorch file starts with a pickle, whose length is 2**62 bytes
    here."""
    path = tmp_path / "a.pth"
    path.write_bytes(b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.")
    with pytest.raises(ValueError, match="PyTorch file of plain weights"):
        load(path)


@pytest.mark.backends("torch")
def test_deeply_nested_header_raises_value_error(tmp_path):
    """Python's parser raises a MemoryError for such a header."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"-" * 9000
    text += b"1}"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("cls.npy", header + bytes(4))
    with pytest.raises(ValueError, match="cls: a broken .npy header"):
        load(tmp_path / "a.npz")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name", ["a.npz", "a.safetensors", "a.pth", "a.keras", "a.weights.h5"]
)
def test_umask_is_respected_and_unchanged(name, whole, tmp_path, monkeypatch):
    model, before = load(whole / "a.npz"), os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("a race"))
            save(model, tmp_path / name)
    finally:
        os.umask(before)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == [name]


def test_folders_without_a_model_say_what_to_do(tmp_path):
    (tmp_path / "runs/half/checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="has not ended: repeat"):
        read(tmp_path / "runs/half")
    with pytest.raises(FileNotFoundError, match=r"or model\.keras\.$"):
        read(tmp_path / "runs")
    for name in "ab":
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "model.keras").touch()
    with pytest.raises(FileNotFoundError, match="has one: .*a, .*b.$"):
        read(tmp_path / "runs")


def test_an_exported_model_is_refused_with_what_to_give(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"bytes")
    with pytest.raises(ValueError, match="give the model from which it was"):
        load(tmp_path / "model.onnx")
