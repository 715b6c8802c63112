"""Every container with every defect: one clear error, no code is executed."""

import errno
import json
import os
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.converters import load, save
from keras_vit.weights.files import read
from keras_vit.weights.files import torch as torch_files
from keras_vit_programs import convert as _cli
from tests import attacks
from tests.containers import FLAX, KEYS, put, to_arrays
from tests.small import vit

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One small model in every container."""
    folder = tmp_path_factory.mktemp("whole")
    for name in KEYS:
        if not name.endswith(".json"):
            save(vit(), folder / name)
    return folder


def shown(key):
    """The name of a key in errors: for Keras files, the path of the
    variable."""
    key = key.replace("layers/layer_normalization/vars", "encoder_norm")
    return key.replace("layers/surprise/vars/0", "surprise/kernel")


def number(key):
    return shown(key).replace("encoder_norm/0", "encoder_norm/gamma")


DEFECTS = {
    "missing": (None, "missing[^:]*:\n  KEY"),
    "shape": (np.ones(5, "float32"), r"KEY: \(5,\) in the file, \(16,\)"),
    "integers": (np.ones(16, "int32"), "KEY: type (int|I)32, expected floats"),
    "nan": (np.full(16, np.nan, "float32"), "KEY: not all values are finite"),
    "inf": (np.full(16, -np.inf, "float32"), "KEY: not all values are finite"),
    "unexpected": (np.ones((2, 2), "float32"), "no place for:\n  KEY"),
}


@pytest.mark.parametrize("name", KEYS)
def test_error_names_the_wrong_array(name, whole, tmp_path):
    arrays = to_arrays(name, whole)
    for defect, (array, message) in DEFECTS.items():
        (folder := tmp_path / defect).mkdir()
        key = KEYS[name][defect == "unexpected"]
        changed = {**arrays, key: array}
        if array is None:
            del changed[key]
        path = put(name, changed, whole, folder)
        if defect in ("missing", "shape"):
            key = number(key)
            if name == "a.keras":  # Keras itself finds these
                message = "a.keras' cannot be loaded.* name=encoder_norm"
        with pytest.raises(ValueError, match=message.replace("KEY", shown(key))):
            load(path)
    path = put(name, arrays, whole, tmp_path)
    assert load(path).name.startswith("vision_transformer")


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
        _cli.convert(path, target, to="vit_jax", format=None)
    assert __file__ in {warning.filename for warning in caught}
    found = read(target, finite=False)[FLAX[0]]
    np.testing.assert_array_equal(found.view("uint32"), bits)


@pytest.mark.parametrize("name", KEYS)
def test_damaged_files_and_web_pages_are_refused(name, whole, tmp_path, capsys):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    inside = {"folder": "folder/model.safetensors"}
    if name.endswith(".json"):
        inside[name] = "shard.safetensors"
    file = tmp_path / inside.get(name, name)
    data = file.read_bytes()
    page = b"\n<!DOCTYPE html><p>404"
    cases = [
        *((part, "cut off") for part in (data[: len(data) // 2], b"", page[:1])),
        (page, "It is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d", "git lfs pull"),
    ]
    if name not in ("a.npz", "a.keras", "a.pth"):
        # A zip archive may follow other bytes in its file.
        cases.append((b"<html>" + data, "It is a web page"))
    for content, message in cases:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"is not a.*{message}"):
            load(path)
    assert _cli.main([str(path), "--inspect"]) == 1
    assert "error: " in capsys.readouterr().err


ONE, TWO = {"a": "one.npz", "b": "two.npz"}, {"a": "two.npz"}
INDICES = {
    **dict.fromkeys(("<html>", '{"weight_map": ', "\xff"), "not valid JSON"),
    **dict.fromkeys(("[]", "{}", '{"weight_map": []}', "3"), "names no shards"),
    **{
        json.dumps({"weight_map": {"cls": shard}}): "outside of its folder"
        for shard in ("../b.npz", "/tmp/b.npz", "x/b.npz", "..\\b.npz")
    },
    json.dumps({"weight_map": ONE}): "b: in one.npz and in two.npz",
    json.dumps({"weight_map": TWO}): "a: in one.npz, not in two.npz|in no shard",
    **{
        json.dumps({"weight_map": {"a": shard}}): "names the shard"
        for shard in ("x" * 300, "a\0b")
    },
}


@pytest.mark.parametrize("text", INDICES)
def test_wrong_index_raises(text, tmp_path):
    np.savez(tmp_path / "one.npz", a=np.ones(4), b=np.ones(4))
    np.savez(tmp_path / "two.npz", b=np.ones(4))
    path = tmp_path / "a.safetensors.index.json"
    path.write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=INDICES[text]):
        load(path)


def test_one_shard_is_read_with_the_others(whole, tmp_path):
    """By their index; without it, the error says what is missing."""
    arrays = to_arrays("a.npz", whole)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    keys = sorted(arrays)
    parts = [dict.fromkeys(keys[i::2], name) for i, name in enumerate(names)]
    for part, name in zip(parts, names, strict=True):
        found = {key: arrays[key] for key in part}
        safetensors.numpy.save_file(found, tmp_path / name)
    with pytest.raises(ValueError, match="one of the 2 files .*'model.safetensors.ind"):
        load(tmp_path / names[0])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts[0] | parts[1]}))
    for name in names:
        assert read(tmp_path / name).keys() == arrays.keys()


def test_files_of_kinds_that_are_not_read_are_named(whole, tmp_path):
    for name in ("a.keras", "a.weights.h5"):
        (tmp_path / "MODEL").write_bytes((whole / name).read_bytes())
        with pytest.raises(ValueError, match=f"Rename it to '.*{name[1:]}'"):
            load(tmp_path / "MODEL")
    (tmp_path / "MODEL").write_text("text")
    with pytest.raises(ValueError, match="is not a file of weights .*by its content"):
        load(tmp_path / "MODEL")


@pytest.mark.parametrize("config", ["{}", "[]", '{"config": 3}', "no JSON"])
def test_keras_file_of_another_kind_is_refused(config, whole, tmp_path):
    message = "keras' (is not a|was not made by)"
    with zipfile.ZipFile(whole / "a.keras") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["config.json"] = config
    (tmp_path / "a.keras").write_bytes(attacks.archive(*content.items()))
    with pytest.raises(ValueError, match=message):
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


@pytest.mark.parametrize("name", KEYS)
def test_errors_of_the_machine_are_not_reported_as_damage(
    name, whole, tmp_path, failing_reads
):
    path = put(name, to_arrays(name, whole), whole, tmp_path)
    for error in (
        MemoryError("Unable to allocate 1.2 GiB"),
        OSError(errno.EIO, "Input/output error"),
        KeyError("a mistake in this package"),
    ):
        failing_reads(error)
        with pytest.raises(type(error)) as found:
            load(path)
        assert found.value is error


def test_command_reports_out_of_memory(whole, tmp_path, failing_reads, capsys):
    failing_reads(MemoryError("Unable to allocate 1.2 GiB"))
    target = str(tmp_path / "a.npz")
    assert _cli.main([str(whole / "a.npz"), target]) == 1
    found = capsys.readouterr().err
    assert found.startswith("error: out of memory (Unable to allocate 1.2 GiB)")


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
    with pytest.raises(FileNotFoundError, match="has not ended. Repeat"):
        read(tmp_path / "runs/half")
    with pytest.raises(FileNotFoundError, match=r"or model\.keras\.$"):
        read(tmp_path / "runs")
    for name in "ab":
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "model.keras").touch()
    with pytest.raises(
        FileNotFoundError, match="of these: .*a/mod.*, .*b/model.keras.$"
    ):
        read(tmp_path / "runs")
    # A Trainer of transformers, and PyTorch on several devices
    (tmp_path / "out/checkpoint-5").mkdir(parents=True)
    (tmp_path / "out/checkpoint-5/model.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="these: .*checkpoint-5/model.safe"):
        read(tmp_path / "out")
    shard = tmp_path / "out/checkpoint-5/model.safetensors"
    shard.rename(shard.with_name("model-00001-of-00002.safetensors"))
    with pytest.raises(ValueError, match="names them, is not in its folder"):
        read(shard.parent)
    (tmp_path / "runs/half/__0_0.distcp").touch()
    (tmp_path / "runs/half/checkpoints").rmdir()
    for path in (tmp_path / "runs/half", tmp_path / "runs/half/__0_0.distcp"):
        with pytest.raises((FileNotFoundError, ValueError), match="dcp_to_torch_save"):
            read(path)
    (tmp_path / "model.onnx").write_bytes(b"bytes")
    with pytest.raises(ValueError, match="Give the model from which it was"):
        load(tmp_path / "model.onnx")
