"""Files made to harm: arrays, archives, pickles, HDF5 trees and configs.

`FILES` are whole files, each with a part of its error. `TREES` change the HDF5
tree, and `LAYERS` and `SIZES` the config, of a harmless .keras file. What would
happen if an attack succeeded writes the file `trap`, asks the server at `url`,
or imports the package `keras_cv`.
"""

import functools
import io
import json
import os
import pathlib
import stat
import struct
import zipfile

import h5py
import keras
import numpy as np

ONES = np.ones(4, "float32")


def npy(array=ONES, header=None):
    """An .npy file, also with another header than that of its array."""
    if header is not None:
        size = struct.pack("<H", len(header))
        return b"\x93NUMPY\x01\x00" + size + header + array.tobytes()
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(*members, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def npz(array=ONES, header=None, key="cls"):
    return archive((f"{key}.npy", npy(array, header)))


def shaped(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n"
    return npz(header=text.encode())


def linked(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@functools.cache
def bomb(*names):
    """An archive of 100 MB of zeros per name, compressed to 0.1% of that."""
    members = [(name, bytes(10**8)) for name in names]
    return archive(*members, method=zipfile.ZIP_DEFLATED)


def tensors(header, data=bytes(16)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape=(4,), place=(0, 16), kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": place}


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(number):
    return b"\x8a\x09" + number.to_bytes(9, "little", signed=True)


def pth(value, key=None):
    """A PyTorch file with one key and value, given as pickle opcodes."""
    pickle = b"\x80\x02}" + (key or text("cls")) + value + b"s."
    return archive(("a/data.pkl", pickle), ("a/data/0", bytes(16)))


def call(function, *arguments):
    """Opcodes of a call: "c", module, name, the arguments, and the call."""
    module, _, name = function.rpartition(".")
    opcodes = f"c{module}\n{name}\n".encode()
    return opcodes + b"(" + b"".join(arguments) + b"tR"


def rebuilt(numel=4, shape=4, stride=1, more=b""):
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0")
    storage += text("cpu") + whole(numel) + b"tQ"
    sizes = whole(shape) + b"\x85" + whole(stride) + b"\x85"
    function = "torch._utils._rebuild_tensor_v2"
    return call(function, storage, b"K\x00", sizes, b"\x89}", more)


def hdf5(change):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["layers/dense/vars/0"] = ONES
        change(file)
    return buffer.getvalue()


def virtual(file):
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("trap", "x", (4,))
    file.create_virtual_dataset("evil", layout)


def linking(target):
    return lambda file: file.__setitem__("evil", target(file))


def creating(*arguments, **options):
    return lambda file: file.create_dataset("evil", *arguments, **options)


# Each with a part of its error.
TREES = {
    "external": (
        creating((4,), "u1", external=[("trap", 0, 4)]),
        "in another file",
    ),
    "virtual": (virtual, "in another file"),
    "link": (linking(lambda _: h5py.ExternalLink("trap", "/")), "holds a link"),
    "soft link": (linking(lambda _: h5py.SoftLink("/layers")), "holds a link"),
    "endless": (linking(lambda file: file["/"]), "/evil is in it twice"),
    "terabytes": (creating((2**40,), "f4"), "claims to hold 4,398,046,5"),
    "chunks": (
        creating((2**40,), "f4", chunks=(2**20,), fillvalue=1),
        "claims to hold 4,398,046,5",
    ),
}
DEEP = b"[" * 100_000
NESTED = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"-" * 9000
RUN = "it would call "
FILES = {  # name, ending: bytes and what the error says
    ("bomb", ".npz"): (bomb("cls.npy"), "claims to hold 100,000,000"),
    ("bomb", ".pth"): (bomb("a/data.pkl", "a/data/0"), "claims to hold 200"),
    ("outside", ".npz"): (npz(key="../x"), "'../x.npy', a path o"),
    ("root", ".npz"): (npz(key="/x"), "'/x.npy', a path outside"),
    ("link", ".npz"): (archive((linked("x.npy"), "/etc")), "'x.npy', a link"),
    ("link", ".pth"): (archive((linked("x"), "/etc")), "'x', a link"),
    ("backslash", ".keras"): (archive(("..\\x", "")), r"x', a path outside"),
    ("bzip2", ".npz"): (
        archive(("cls.npy", npy()), method=zipfile.ZIP_BZIP2),
        "'cls.npy', compressed by a method",
    ),
    ("same names", ".npz"): (
        archive(("cls", npy()), ("cls.npy", npy())),
        "cls: is there twice",
    ),
    ("negative", ".npz"): (shaped("(-2, -2)"), "cls: its shape .-2, -2. do"),
    ("terabytes", ".npz"): (shaped("(2199023255552,)"), "cls: its shape .219"),
    # Python raises a MemoryError for it.
    ("deep", ".npz"): (npz(header=NESTED + b"1}"), "cls: a broken .npy header"),
    ("complex", ".npz"): (npz(ONES * 1j), "cls: type complex64, expected flo"),
    ("wide", ".npz"): (npz(ONES.astype("longdouble")), "cls: type float128"),
    ("struct", ".npz"): (npz(np.zeros(1, "i4,f4")), "cls: type .*expected fl"),
    ("empty", ".npz"): (npz(np.zeros((9, 0), "f4")), r"cls: no .*is \(9, 0\)"),
    ("code", ".npz"): (npz(np.array([{}], object)), "cls: Object arrays canno"),
    ("terminal", ".npz"): (npz(key="\x1b[2J"), r"'\\x1b\[2J': a key with unp"),
    ("terminal and more", ".npz"): (
        archive(("\x1b[2J.npy", b"")),
        r"\\x1b\[2J: EOF",
    ),
    ("float8", ".safetensors"): (
        tensors({"cls": tensor([16], kind="F8_E4M3")}),
        "cls: type F8_E4M3, expected floats",
    ),
    ("many entries", ".safetensors"): (
        tensors({f"x{i}": tensor([0], [0, 0]) for i in range(10**4)}, b""),
        "no values",
    ),
    ("terminal", ".safetensors"): (
        tensors({"\x1b[2J": tensor()}),
        r"'\\x1b\[2J': a key with unprintable characters",
    ),
    **{
        (kind, ".safetensors"): (data, "is not a .safetensors file")
        for kind, data in {
            "terabytes": struct.pack("<Q", 2**42) + b"{}",
            "behind": tensors({"cls": tensor([8], [0, 32])}),
            "overlap": tensors({"a": tensor(), "b": tensor([2], [8, 16])}),
            "deep": tensors(DEEP),
        }.items()
    },
    ("memo", ".pth"): (  # a table of 16 GB
        pth(b"r\xff\xff\xff\x7f" + b"K\x01"),
        "the memo index 2147483647",
    ),
    ("extension", ".pth"): (pth(b"\x82\x01"), "pickle: its opcode .* is EXT1"),
    ("terabytes", ".pth"): (
        pth(rebuilt(shape=2**40, stride=0)),
        "cls: its shape .1099511627776,. does not fit the 4 values",
    ),
    ("beyond", ".pth"): (
        pth(rebuilt(numel=2**40)),
        "storage 0 has 16 bytes for 1,099,511,627,776 values",
    ),
    ("overflow", ".pt"): (pth(rebuilt(shape=2**63)), "cls: a tensor without a"),
    ("negative", ".pth"): (pth(rebuilt(stride=-1)), "cls: a tensor without a"),
    ("arguments", ".pth"): (
        pth(rebuilt(more=b"NNN")),
        "cls: torch._utils._rebuild_tensor_v2: 9 arguments",
    ),
    ("memory", ".pth"): (
        pth(call("builtins.bytearray", whole(2**40))),
        RUN + "builtins.bytearray",
    ),
    ("command", ".pth"): (
        pth(call("os.system", text("touch trap"))),
        RUN + "os.system",
    ),
    ("devices", ".pth"): (
        pth(call("torch.distributed._shard.sharded_tensor.api.ShardedTensor")),
        "was trained on several devices. Give .*teacher_checkpoint.pth",
    ),
    ("circle", ".pth"): (  # a dict that contains itself
        archive(("a/data.pkl", b"}q\x00" + text("cls") + b"h\x00s.")),
        "holds no arrays",
    ),
    ("long keys", ".pth"): (
        pth(b"}" + text("b" * 900) + b"K\x01s", text("a" * 900)),
        "a key of more than 1,000 characters",
    ),
    ("old command", ".bin"): (
        call("os.system", text("touch trap")) + b".",
        RUN + "os.system",
    ),
    ("terminal", ".pth"): (pth(call("\x1b[2J.x")), RUN + r"\\x1b\[2J"),
    ("state", ".pth"): (  # of the function that rebuilds tensors
        pth(b"ctorch._utils\n_rebuild_tensor_v2\n}b"),
        "cls: _Global, not a tensor",
    ),
    ("no storage", ".pth"): (
        archive(("a/data.pkl", b"}" + text("cls") + rebuilt() + b"s.")),
        "data/0",
    ),
    ("text", ".pth"): (pth(text("a")), "cls: str, not a tensor"),
    ("key", ".pth"): (pth(rebuilt(), b"K\x03"), "<int>: int, not a tensor"),
    ("length", ".pth"): (  # which would allocate 2**62 bytes
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
        "PyTorch file of plain weights",
    ),
    **{
        (kind, ".weights.h5"): (hdf5(change), message)
        for kind, (change, message) in TREES.items()
    },
    ("text", ".weights.h5"): (
        hdf5(lambda file: file.__setitem__("layers/dense/vars/1", "text")),
        r"dense/\w+: type object",
    ),
    ("twice", ".weights.h5"): (
        hdf5(linking(lambda file: file["layers/dense/vars/0"])),
        "/evil is in it twice|vars/0 is in it twice",
    ),
    ("deep", ".keras"): (
        archive(("config.json", DEEP), ("model.weights.h5", "")),
        "maximum recursion depth",
    ),
    ("key twice", ".keras"): (
        archive(("config.json", '{"a": 1, "a": 2}'), ("model.weights.h5", "")),
        "'a' is there twice",
    ),
}


def function(name, module):
    return {
        "module": module,
        "class_name": "function",
        "config": name,
        "registered_name": name,
    }


def layer(kind, module="keras.layers", **config):
    return {
        "module": module,
        "class_name": kind,
        "config": {"name": "evil", "trainable": True, **config},
        "registered_name": None,
        "name": "evil",
    }


def dense(**config):
    return layer("Dense", **{"units": 2, **config})


def sequential(*layers):
    return layer("Sequential", "keras", layers=list(layers))


def writing(trap):
    return f"lambda x: open({str(trap)!r}, 'w').close() or x"


def code(trap):
    """A lambda that writes a file, as Keras serializes it."""
    return keras.layers.Lambda(eval(writing(trap))).get_config()["function"]


def layers(trap, url):
    """Returns hostile layers by what they do."""
    evil = layer("Lambda", function=code(trap))
    activations = {
        "os.system": function("system", "os"),
        # Keras looks up functions by another name than the registered one.
        "the name of a class": {
            **function("system", "os"),
            "registered_name": "keras_vit>MlpBlock",
        },
        "get_file": function("get_file", "keras.utils"),
        "unsafe mode": function("enable_unsafe_deserialization", "keras.config"),
        "lambda": code(trap),
    }
    reading = {
        "TorchModuleWrapper": {},
        "TFSMLayer": {"filepath": str(trap)},
        "JaxLayer": {"call_fn": code(trap)},
        "StringLookup": {"vocabulary": url},
        "IntegerLookup": {"vocabulary": str(trap)},
        "TextVectorization": {"vocabulary": str(trap)},
    }
    return {
        "lambda": evil,
        "lambda in a wrapper": layer("TimeDistributed", layer=evil),
        "lambda in a model": sequential(evil),
        "lambda of a registered class": {**evil, "registered_name": "Lambda"},
        "lambda without a module": {
            "class_name": "Lambda",
            "config": {"name": "evil", "function": code(trap)},
        },
        "an unregistered class": {
            **layer("Layer", None),
            "registered_name": "evil>Layer",
        },
        "os.system": layer("system", "os", command="touch trap"),
        "keras_cv": layer("Layer", "keras_cv.layers"),
        "get_file": layer("get_file", "keras.utils", fname="x", origin=url),
        "an application": layer("ResNet50", "keras.applications"),
        "a saved model": layer("load_model", "keras.saving", filepath="trap"),
        "unsafe mode": layer("enable_unsafe_deserialization", "keras.config"),
        **{
            f"{name} as activation": dense(activation=value)
            for name, value in activations.items()
        },
        **{kind: layer(kind, **config) for kind, config in reading.items()},
        "IndexLookup": layer(
            "IndexLookup",
            "keras.src.layers.preprocessing.index_lookup",
            vocabulary=str(trap),
        ),
        "a type": {
            "class_name": "__typespec__",
            "spec_name": "Thread",
            "module": "threading",
            "registered_name": None,
            "config": [],
        },
        "a path": dense(name="../trap"),
        "a hidden path": dense(name="a\\..\\trap"),
        "a constant": {
            **layer("UpSampling2D", size=[2**20, 2**20]),
            "inbound_nodes": [{"args": [[[[1.0]]]], "kwargs": {}}],
        },
    }


LAYERS = tuple(layers(pathlib.Path("trap"), "http://x"))
# Each would allocate gigabytes, or build for hours.
SIZES = {
    "a dense layer": dense(units=2**31),
    "a square": sequential(
        dense(units=2**17, name="first"), dense(units=2**17, name="second")
    ),
    "an embedding": layer("Embedding", input_dim=2**31, output_dim=2),
    "attention": layer("MultiHeadAttention", num_heads=2**20, key_dim=2**20),
    "prototypes": layer(
        "ProjectionHead",
        "keras_vit",
        output_dim=2**31,
        hidden_dim=2**31,
        bottleneck_dim=2**31,
    ),
    "positions": {
        **layer("AddPositionEmbs", "keras_vit", grid_size=[2**17, 2**17]),
        "registered_name": "keras_vit>AddPositionEmbs",
    },
}


def rewrite(source, target, config=None, tree=None):
    """Writes a .keras file with another config, which a function of the old one
    returns, or with another HDF5 file, which a function changes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json" and config:
                data = json.dumps(config(json.loads(data)))
            if name.endswith(".h5") and tree:
                buffer = io.BytesIO(data)
                with h5py.File(buffer, "r+") as file:
                    tree(file)
                data = buffer.getvalue()
            new.writestr(name, data)


def add_layer(config, evil):
    """Lets a model compute the output of its first layer with another, too."""
    model = config["config"].get("encoder", config)["config"]
    first = model["layers"][0]["config"]
    if "input_layers" in model and "inbound_nodes" not in evil:
        tensor = {
            "class_name": "__keras_tensor__",
            "config": {
                "shape": first["batch_shape"],
                "dtype": "float32",
                "keras_history": [first["name"], 0, 0],
            },
        }
        evil = {**evil, "inbound_nodes": [{"args": [tensor], "kwargs": {}}]}
    model["layers"].append(evil)
    return config


def device(path):
    path.symlink_to("/dev/zero")


PIPES = (os.mkfifo, device)  # one would be waited for, the other never ends
