"""Files made to harm: each is one clear error, for the reader and for the
command, and nothing is run, unpacked or written."""

import functools
import io
import json
import os
import pathlib
import pickle
import stat
import struct
import zipfile

import h5py
import numpy as np
import pytest

from keras_vit import convert as _cli
from keras_vit.converters import load
from keras_vit.converters import open_checkpoint
from keras_vit.converters import save
from keras_vit.weights.files import archives
from keras_vit.weights.files import read
from tests import attacks
from tests.fuzzing import readers

pytestmark = pytest.mark.backends("torch")

tiny = functools.cache(readers.tiny_model)

ONES = np.ones(4, "float32")


def npy(array=ONES, header=None):
    buffer = io.BytesIO()
    np.save(buffer, array)
    data = buffer.getvalue()
    if header is None:
        return data
    start = data.index(b"\n") + 1
    text = header.encode().ljust(117) + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[start:]


def archive(*members, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def shaped(shape, kind="<f4"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
    return archive(("cls.npy", npy(header=text)))


def linked(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@functools.cache
def bomb(*names):
    """An archive of 100 MB of zeros per name, compressed to 0.1% of that."""
    zeros = bytes(10**8)
    return archive(
        *((name, zeros) for name in names), method=zipfile.ZIP_DEFLATED
    )


def tensors(header, data=bytes(16)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape=(4,), place=(0, 16), kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": place}


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(number):
    return b"\x8a\x09" + number.to_bytes(9, "little", signed=True)


def pth(value, key=None, data=bytes(16)):
    """A PyTorch file with one key and value, given as pickle opcodes."""
    pickle = b"\x80\x02}" + (key or text("cls")) + value + b"s."
    return archive(("a/data.pkl", pickle), ("a/data/0", data))


def rebuilt(numel=4, shape=4, stride=1):
    return b"".join(
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            text("storage") + b"ctorch\nFloatStorage\n",
            text("0") + text("cpu") + whole(numel) + b"tQK\x00",
            whole(shape) + b"\x85" + whole(stride) + b"\x85",
            b"\x89}tR",
        ]
    )


def tree(write):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        write(file.create_group("layers/dense/vars"))
    return buffer.getvalue()


def twice(group):
    group["0"] = ONES
    group["1"] = group["0"]


class Evil:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("trap"),)


def header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(4)


DEEP = b"[" * 100_000
RUN = "it would call "
BROKEN = {  # .safetensors
    "twice": tensors(b'{"cls":' + json.dumps(tensor()).encode() + b',"cls":1}'),
    "terabytes": struct.pack("<Q", 2**42) + b"{}",
    "shape": tensors({"cls": tensor([2**40])}),
    "overflow": tensors({"cls": tensor([2**62, 4])}),
    "negative": tensors({"cls": tensor([-4])}),
    "behind": tensors({"cls": tensor([8], [0, 32])}),
    "overlap": tensors({"a": tensor(), "b": tensor([2], [8, 16])}),
    "hole": tensors({"cls": tensor([2], [8, 16])}),
    "huge offsets": tensors({"cls": tensor([1], [2**63 - 4, 2**63])}),
    "deep": tensors(DEEP),
    "names": tensors(b'{"\xff": 1}'),
}
FILES = {  # name, ending: bytes and what the error says
    ("bomb", ".npz"): (bomb("cls.npy"), "claims to hold 100,000,000"),
    ("bomb", ".pth"): (bomb("a/data.pkl", "a/data/0"), "claims to hold 200"),
    ("bomb", ".keras"): (bomb("config.json"), "claims to hold 100,000,000"),
    ("outside", ".npz"): (
        archive(("../x.npy", npy())),
        "'../x.npy', a path o",
    ),
    ("root", ".npz"): (archive(("/x.npy", npy())), "'/x.npy', a path outside"),
    ("link", ".npz"): (archive((linked("x.npy"), "/etc")), "'x.npy', a link"),
    ("outside", ".keras"): (archive(("..\\x", "")), r"x', a path outside"),
    ("link", ".keras"): (archive((linked("x"), "/etc")), "'x', a link"),
    ("same names", ".npz"): (
        archive(("cls", npy()), ("cls.npy", npy())),
        "cls: is there twice",
    ),
    ("bzip2", ".npz"): (
        archive(("cls.npy", npy()), method=zipfile.ZIP_BZIP2),
        "'cls.npy', compressed by a method",
    ),
    ("negative", ".npz"): (shaped("(-4,)"), "cls: its shape .-4,. does not"),
    ("terabytes", ".npz"): (shaped("(2199023255552,)"), "cls: its shape .219"),
    ("overflow", ".npz"): (
        shaped("(4611686018427387904, 4)"),
        "cls: its shape .461.* does not fit the 16 bytes",
    ),
    ("deep", ".npz"): (shaped("(" * 60), "cls: "),
    ("bool", ".npz"): (archive(("cls.npy", npy(ONES > 0))), "cls: type bool"),
    ("complex", ".npz"): (
        archive(("cls.npy", npy(ONES * 1j))),
        "cls: type complex64, expected floats",
    ),
    ("wide", ".npz"): (
        archive(("cls.npy", npy(ONES.astype("longdouble")))),
        "cls: type float128, expected floats",
    ),
    ("struct", ".npz"): (
        archive(("cls.npy", npy(np.zeros(1, "i4,f4")))),
        "cls: type .*expected floats",
    ),
    ("no values", ".npz"): (
        archive(("cls.npy", npy(np.zeros((9, 0), "f4")))),
        r"cls: no values, its shape is \(9, 0\)",
    ),
    ("code", ".npz"): (
        archive(("cls.npy", npy(np.array([Evil()], object)))),
        "cls: Object arrays cannot be loaded",
    ),
    ("text", ".npz"): (
        archive(("cls.npy", npy(np.array(["a", "b"])))),
        "cls: type <U1, expected floats",
    ),
    ("deep header", ".npz"): (  # for which Python raises a MemoryError
        archive(
            (
                "cls.npy",
                header(
                    b"{'descr': '<f4', 'fortran_order': False, 'shape': "
                    + b"-" * 9000
                    + b"1}"
                ),
            )
        ),
        "cls: a broken .npy header",
    ),
    ("terminal", ".npz"): (
        archive(("\x1b[2J.npy", npy())),
        r"'\\x1b\[2J': a key with unprintable characters",
    ),
    ("terminal and more", ".npz"): (
        archive(("\x1b[2J.npy", b"")),
        r"\\x1b\[2J: EOF",
    ),
    ("float8", ".safetensors"): (
        tensors({"cls": tensor([16], kind="F8_E4M3")}),
        "cls: type F8_E4M3, expected floats",
    ),
    ("integers", ".safetensors"): (
        tensors({"cls": tensor([2], kind="I64")}),
        "cls: type I64, expected floats",
    ),
    ("many entries", ".safetensors"): (
        tensors({f"x{i}": tensor([0], [0, 0]) for i in range(10**4)}, b""),
        "no values",
    ),
    ("terminal", ".safetensors"): (
        tensors({"\x1b[2J": tensor()}),
        r"'\\x1b\[2J': a key with unprintable characters",
    ),
    ("memo", ".pth"): (  # a table of 16 GB
        pth(b"r\xff\xff\xff\x7f" + b"K\x01"),
        "the memo index 2147483647",
    ),
    ("extension", ".pth"): (
        pth(b"\x82\x01"),
        "a broken pickle: the opcode EXT1",
    ),
    ("terabytes", ".pth"): (
        pth(rebuilt(shape=2**40, stride=0)),
        "cls: its shape .1099511627776,. does not fit the 4 values",
    ),
    ("beyond", ".pth"): (
        pth(rebuilt(numel=2**40)),
        "storage 0 has 16 bytes for 1,099,511,627,776 values",
    ),
    ("overflow", ".pth"): (pth(rebuilt(shape=2**63 - 1)), "its shape .922"),
    ("overflow", ".pt"): (pth(rebuilt(shape=2**63)), "cls: a tensor without a"),
    ("arguments", ".pth"): (
        pth(rebuilt().replace(b"}tR", b"}NNNtR")),
        "cls: torch._utils._rebuild_tensor_v2: 9 arguments",
    ),
    ("negative", ".pth"): (pth(rebuilt(stride=-1)), "cls: a tensor without a"),
    ("memory", ".pth"): (
        pth(b"cbuiltins\nbytearray\n" + whole(2**40) + b"\x85R"),
        RUN + "builtins.bytearray",
    ),
    ("command", ".pth"): (
        pth(b"cos\nsystem\n" + text("touch trap") + b"\x85R"),
        RUN + "os.system",
    ),
    ("terminal", ".pth"): (
        pth(b"c\x1b[2J\nsystem\n)R"),
        RUN + r"\\x1b\[2J",
    ),
    ("old command", ".bin"): (
        b"cos\nsystem\n" + text("touch trap") + b"\x85R.",
        RUN + "os.system",
    ),
    ("state", ".pth"): (  # of the function that rebuilds tensors
        pth(b"ctorch._utils\n_rebuild_tensor_v2\n}b"),
        "cls: _Global, not a tensor",
    ),
    ("no storage", ".pth"): (
        archive(("a/data.pkl", b"}" + text("cls") + rebuilt() + b"s.")),
        "data/0",
    ),
    ("code", ".pth"): (pickle.dumps({"cls": Evil()}), RUN),
    ("text", ".pth"): (pth(text("a")), "cls: str, not a tensor"),
    ("key", ".pth"): (pth(rebuilt(), b"K\x03"), "3: a key"),
    ("length", ".pth"): (  # which would allocate 2**62 bytes
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
        "PyTorch file of plain weights",
    ),
    ("link", ".weights.h5"): (
        tree(lambda g: g.__setitem__("0", h5py.ExternalLink("b.h5", "/x"))),
        "holds a link",
    ),
    ("soft link", ".weights.h5"): (
        tree(lambda g: g.__setitem__("0", h5py.SoftLink("/layers"))),
        "holds a link",
    ),
    ("outside", ".weights.h5"): (  # data in any file that may be read
        tree(
            lambda g: g.create_dataset(
                "0", (4,), "float32", external=[("secret", 0, 16)]
            )
        ),
        "in another file",
    ),
    ("text", ".weights.h5"): (
        tree(lambda g: g.__setitem__("0", "text")),
        "dense/0: type object|dense/kernel: type object",
    ),
    ("terabytes", ".weights.h5"): (
        tree(lambda g: g.create_dataset("0", (2**40,), "float32")),
        "claims to hold 4,398,046,511,104",
    ),
    ("endless", ".weights.h5"): (
        tree(lambda g: g.__setitem__("inner", g.parent)),
        "/layers/dense/vars/inner is in it twice",
    ),
    ("twice", ".weights.h5"): (tree(twice), "is in it twice"),
    ("complex", ".weights.h5"): (
        tree(lambda g: g.create_dataset("0", data=ONES.astype("int8"))),
        "dense/0: type int8|dense/kernel: type int8",
    ),
    ("deep", ".keras"): (
        archive(("config.json", DEEP), ("model.weights.h5", "")),
        "maximum recursion depth",
    ),
    ("twice", ".keras"): (
        archive(("config.json", '{"a": 1, "a": 2}'), ("model.weights.h5", "")),
        "'a' is there twice",
    ),
}
FILES |= {
    (kind, ".safetensors"): (data, "is not a .safetensors file")
    for kind, data in BROKEN.items()
}


def refused(path, message, capsys, *more):
    """The reader and the command refuse the file; the target is unchanged."""
    folder = path.parent
    with pytest.raises(ValueError, match=message) as error:
        open_checkpoint(path)
    assert path.name in str(error.value) and "\x1b" not in str(error.value)
    target = folder / "target.npz"
    target.write_text("before")
    there = set(os.listdir(folder))
    for arguments in (["--inspect"], [str(target), "--overwrite", *more]):
        assert _cli.main([str(path), *arguments]) == 1
        out, err = capsys.readouterr()
        assert not out and err.startswith("error: ") and path.name in err
        assert "\x1b" not in err
    assert target.read_text() == "before"
    assert set(os.listdir(folder)) == there


@pytest.mark.parametrize("kind", FILES, ids=" ".join)
def test_malicious_file_is_refused(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, message = FILES[kind]
    path = tmp_path / f"a{kind[1]}"
    path.write_bytes(data)
    refused(path, message, capsys)


def test_unused_large_stride_is_accepted(tmp_path):
    (tmp_path / "a.pth").write_bytes(pth(rebuilt(shape=1, stride=2**62)))
    assert read(tmp_path / "a.pth")["cls"].tolist() == [0.0]


def test_archives_of_many_members_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    path = tmp_path / "a.npz"
    path.write_bytes(archive(*((name, npy()) for name in "abc")))
    refused(path, "more than 2 files", capsys)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("ending", [".npz", ".pth", ".keras"])
def test_duplicate_archive_member_is_refused(ending, tmp_path, capsys):
    path = tmp_path / f"a{ending}"
    path.write_bytes(archive(("x", npy()), ("x", npy())))
    refused(path, "'x', and holds it twice", capsys)


@pytest.mark.parametrize(
    "ending", [".npz", ".safetensors", ".pth", ".keras", ".weights.h5"]
)
def test_pipes_and_devices_are_refused(ending, tmp_path, capsys):
    path = tmp_path / f"a{ending}"
    os.mkfifo(path)  # which would be waited for
    refused(path, "is no file, but a pipe or a device", capsys)
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(path, "is no file, but a pipe or a device", capsys)
    path.unlink()
    path.mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match="folder"):
        open_checkpoint(path)


CONFIGS = {
    "num_attention_heads": (0, -1, 1.5, "2", True, None, [], 2**70),
    "hidden_act": ([], {}, None, 3),
    "layer_norm_eps": ("1e-6", 0, -1, float("nan"), float("inf"), []),
}


def test_wrong_config_values_raise(tmp_path, capsys):
    model = tiny()
    save(model, tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    for name, values in CONFIGS.items():
        for value in values:
            path.write_text(json.dumps({**config, name: value}))
            with pytest.raises(ValueError, match=f"a' .*'{name}' in its con"):
                open_checkpoint(tmp_path / "a")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="config.json' is no file"):
        open_checkpoint(tmp_path / "a")


def test_a_function_with_the_name_of_a_class_is_refused(tmp_path):
    """Keras looks up functions by another name than the registered one."""
    evil = attacks.function("system", "os")
    evil["registered_name"] = "keras_vit>MlpBlock"
    save(tiny(), tmp_path / "a.keras")
    attacks.rewrite(
        tmp_path / "a.keras",
        tmp_path / "b.keras",
        lambda config: attacks.add_layer(
            config, attacks.dense(activation=evil)
        ),
    )
    with pytest.raises(ValueError, match="'function' of the module 'os'"):
        load(tmp_path / "b.keras")


def test_missing_blocks_raise(tmp_path):
    """Otherwise the number in a name would set the number of layers to
    build."""
    save(tiny(), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        arrays = dict(arrays)
    far = {
        key.replace("encoderblock_0", "encoderblock_999999999"): array
        for key, array in arrays.items()
    }
    np.savez(tmp_path / "b.npz", **{**arrays, **far})
    with pytest.raises(ValueError, match="encoderblock_1/"):
        load(tmp_path / "b.npz")


def test_the_arrays_decide_on_sizes(tmp_path):
    path = tmp_path / "a.weights.h5"
    save(tiny(), path)
    with h5py.File(path, "r+") as file:
        notes = json.loads(file.attrs["keras_vit"])
        notes["told"]["num_layers"] = 10**9
        file.attrs["keras_vit"] = json.dumps(notes)
    names = [layer.name for layer in load(path).layers]
    assert "block_0" in names and "block_1" not in names


def test_newer_hdf5_files_are_read(tmp_path):
    path, newer = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
    save(tiny(), path)
    with h5py.File(path) as old, h5py.File(newer, "w", libver="latest") as new:
        for key in old:
            old.copy(key, new)
        new.attrs.update(old.attrs)
    expected, found = open_checkpoint(path), open_checkpoint(newer)
    assert found.arguments() == expected.arguments()
    assert found.weights.keys() == expected.weights.keys()
    for key, array in expected.weights.items():
        np.testing.assert_array_equal(found.weights[key], array)
    newer.write_bytes(newer.read_bytes()[:5000])
    with pytest.raises(ValueError, match="b.weights.h5' is not a"):
        open_checkpoint(newer)
