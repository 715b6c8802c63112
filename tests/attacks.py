"""Hostile .keras files: what their configs name, for any model.

Each attack changes the config of a harmless model. What would happen if it
succeeded writes the file `trap`, asks the server at `url`, or imports the
package `keras_cv`.
"""

import io
import json
import pathlib
import zipfile

import h5py
import keras


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


def writing(trap):
    return f"lambda x: open({str(trap)!r}, 'w').close() or x"


def code(trap):
    """A lambda that writes a file, as Keras serializes it."""
    return keras.layers.Lambda(eval(writing(trap))).get_config()["function"]


def lookup(kind):
    return lambda trap, url: layer(kind, vocabulary=str(trap))


LAYERS = {
    "lambda": lambda trap, url: layer("Lambda", function=code(trap)),
    "lambda in a wrapper": lambda trap, url: layer(
        "TimeDistributed", layer=layer("Lambda", function=code(trap))
    ),
    "lambda in a model": lambda trap, url: layer(
        "Sequential",
        "keras",
        layers=[
            {
                "module": "keras.layers",
                "class_name": "InputLayer",
                "config": {"batch_shape": [None, 4], "name": "in"},
                "registered_name": None,
            },
            layer("Lambda", function=code(trap)),
        ],
    ),
    "lambda of a registered class": lambda trap, url: {
        **layer("Lambda", function=code(trap)),
        "registered_name": "Lambda",
    },
    "an unregistered class": lambda trap, url: {
        **layer("Layer", None),
        "registered_name": "evil>Layer",
    },
    "lambda as activation": lambda trap, url: dense(activation=code(trap)),
    "lambda without a module": lambda trap, url: {
        "class_name": "Lambda",
        "config": {"name": "evil", "function": code(trap)},
    },
    "os.system": lambda trap, url: layer("system", "os", command="touch trap"),
    "os.system as activation": lambda trap, url: dense(
        activation=function("system", "os")
    ),
    "keras_cv": lambda trap, url: layer("Layer", "keras_cv.layers"),
    "get_file": lambda trap, url: layer(
        "get_file", "keras.utils", fname=str(trap), origin=url
    ),
    "get_file of a file": lambda trap, url: layer(
        "get_file", "keras.utils", fname="x", origin=trap.as_uri()
    ),
    "get_file as activation": lambda trap, url: dense(
        activation=function("get_file", "keras.utils")
    ),
    "an application": lambda trap, url: layer("ResNet50", "keras.applications"),
    "a saved model": lambda trap, url: layer(
        "load_model", "keras.saving", filepath=str(trap)
    ),
    "unsafe mode": lambda trap, url: layer(
        "enable_unsafe_deserialization", "keras.config"
    ),
    "unsafe mode as activation": lambda trap, url: dense(
        activation=function("enable_unsafe_deserialization", "keras.config")
    ),
    "torch": lambda trap, url: layer("TorchModuleWrapper", module="AAAA"),
    "TFSMLayer": lambda trap, url: layer("TFSMLayer", filepath=str(trap)),
    "JaxLayer": lambda trap, url: layer("JaxLayer", call_fn=code(trap)),
    "StringLookup": lookup("StringLookup"),
    "IntegerLookup": lookup("IntegerLookup"),
    "TextVectorization": lookup("TextVectorization"),
    "StringLookup of a URL": lambda trap, url: layer(
        "StringLookup", vocabulary=url
    ),
    "IndexLookup": lambda trap, url: layer(
        "IndexLookup",
        "keras.src.layers.preprocessing.index_lookup",
        vocabulary=str(trap),
    ),
    "a type": lambda trap, url: {
        "class_name": "__typespec__",
        "spec_name": "Thread",
        "module": "threading",
        "registered_name": None,
        "config": [],
    },
    "a path": lambda trap, url: dense(name="../trap"),
    "a hidden path": lambda trap, url: dense(name="a/../../trap"),
    "an absolute path": lambda trap, url: dense(name=str(trap)),
    "a constant": lambda trap, url: {
        **layer("UpSampling2D", size=[2**20, 2**20]),
        "inbound_nodes": [{"args": [[[[1.0]]]], "kwargs": {}}],
    },
}
# Each would allocate gigabytes, or build for hours.
SIZES = {
    "a dense layer": lambda trap, url: dense(units=2**31),
    "a square": lambda trap, url: layer(
        "Sequential",
        "keras",
        layers=[
            dense(units=2**17, name="first"),
            dense(units=2**17, name="second"),
        ],
    ),
    "an embedding": lambda trap, url: layer(
        "Embedding", input_dim=2**31, output_dim=2
    ),
    "attention": lambda trap, url: layer(
        "MultiHeadAttention", num_heads=2**20, key_dim=2**20
    ),
    "prototypes": lambda trap, url: layer(
        "ProjectionHead",
        "keras_vit",
        output_dim=2**31,
        hidden_dim=2**31,
        bottleneck_dim=2**31,
    ),
    "positions": lambda trap, url: {
        **layer("AddPositionEmbs", "keras_vit", grid_size=[2**17, 2**17]),
        "registered_name": "keras_vit>AddPositionEmbs",
    },
}


def rewrite(source: pathlib.Path, target: pathlib.Path, change) -> None:
    """Writes a .keras file whose config is `change(config)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                data = json.dumps(change(json.loads(data)))
            new.writestr(name, data)


def add_layer(config, evil):
    """Lets a model compute the output of its first layer with another, too."""
    model = config["config"].get("encoder", config)["config"]
    first = model["layers"][0]["config"]
    if "input_layers" in model and "inbound_nodes" not in evil:
        shape = first["batch_shape"]
        tensor = {
            "class_name": "__keras_tensor__",
            "config": {
                "shape": shape,
                "dtype": "float32",
                "keras_history": [first["name"], 0, 0],
            },
        }
        evil["inbound_nodes"] = [{"args": [tensor], "kwargs": {}}]
    model["layers"].append(evil)
    return config


def linked(source: pathlib.Path, target: pathlib.Path, link) -> None:
    """Writes a .keras file whose HDF5 tree is changed by `link(file)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".h5"):
                buffer = io.BytesIO(data)
                with h5py.File(buffer, "r+") as file:
                    link(file)
                data = buffer.getvalue()
            new.writestr(name, data)


def external(file, trap):
    file.create_dataset("evil", (4,), "u1", external=[(str(trap), 0, 4)])


def virtual(file, trap):
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(trap), "x", (4,))
    file.create_virtual_dataset("evil", layout)


TREES = {
    "external storage": external,
    "an external link": lambda file, trap: file.__setitem__(
        "evil", h5py.ExternalLink(str(trap), "/")
    ),
    "a soft link": lambda file, trap: file.__setitem__(
        "evil", h5py.SoftLink("/layers")
    ),
    "a virtual array": virtual,
    "an endless tree": lambda file, trap: file.__setitem__("evil", file["/"]),
    "terabytes": lambda file, trap: file.create_dataset("evil", (2**40,), "f4"),
    "chunked terabytes": lambda file, trap: file.create_dataset(
        "evil", (2**40,), "f4", chunks=(2**20,), fillvalue=1
    ),
}
