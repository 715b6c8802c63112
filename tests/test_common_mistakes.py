"""Frequent mistakes and their messages: the tables in docs/mistakes.md and
docs/migrate.md."""

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import keras_vit
from keras_vit.models.arguments import FOREIGN_ARGUMENT_NAMES
from keras_vit.utils import requirements
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
FILE = golden_data.folder("vit_jax_token") / "weights.npz"  # of 8 x 8, 3 blocks


def tiny(**arguments):
    sizes = {"num_layers": 1, "input_shape": (32, 32, 3), "classes": 3}
    return keras_vit.ViTTi16(**{**sizes, **arguments})


# Installed backends, KERAS_BACKEND, the backend in keras.json, the message.
BACKENDS = {
    "another": (("jax",), "torch", None, r"'torch' \(KERAS_BACKEND\).*=jax"),
    "misspelt": (("torch",), "pytorch", None, "'pytorch'.*KERAS_BACKEND=torch"),
    "unspecified": (
        ("jax", "torch"),
        "",
        None,
        "default.*Installed: jax, to",
    ),
    "in the file": (("jax",), "", "torch", "'torch' .*keras.json.*=jax"),
    "none": ((), "", None, "none.*=jax.*, and run: pip install jax"),
}


@pytest.mark.parametrize("installed, variable, keras_json, text", BACKENDS.values())
def test_missing_backend_is_reported(
    installed, variable, keras_json, text, monkeypatch, tmp_path
):
    monkeypatch.setenv("KERAS_BACKEND", variable)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if keras_json:
        config = json.dumps({"backend": keras_json})
        (tmp_path / "keras.json").write_text(config)
    monkeypatch.setattr(requirements, "_is_installed", installed.__contains__)
    monkeypatch.delitem(sys.modules, "keras")
    with pytest.raises(ImportError, match=text):
        requirements.check()
    monkeypatch.setattr(requirements, "_is_installed", lambda name: True)
    if variable != "pytorch":
        requirements.check()


def test_import_reports_a_wrong_backend():
    """The check precedes the import of Keras, which would end in a long
    traceback."""
    done = subprocess.run(
        [sys.executable, "-c", "import keras_vit"],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "pytorch"},
        timeout=300,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: Keras has no backend 'pytorch'")
    assert "KERAS_BACKEND=torch before" in last
    assert "site-packages/keras/" not in done.stderr


def test_old_keras_raises(monkeypatch):
    found = {}
    monkeypatch.setattr("importlib.metadata.version", found.get)
    major, minor, patch = requirements.KERAS
    older = ("2.15.0", f"{major}.{minor - 1}.3", f"{major}.{minor}.{patch - 1}")
    for found["keras"] in older:
        with pytest.raises(ImportError, match="this is Keras [23]"):
            requirements.check()
    for found["keras"] in (
        f"{major}.{minor}.{patch}",
        f"{major}.{minor + 1}rc1",
        f"{major}.{minor + 9}.0",
        f"{major + 1}.0.dev1",
        f"{major + 1}a1",
    ):
        requirements.check()


def test_required_keras_version_matches_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = ".".join(map(str, requirements.KERAS))
    assert f"keras>={wanted}" in project["dependencies"]


def weights(name):
    return lambda: keras_vit.ViTB16(weights=name)


MODELS = {
    "channels first": (
        lambda: tiny(input_shape=(3, 32, 48)),
        (ValueError, r"\(height, width, channels\).*\(3, 32, 48\)"),
    ),
    "another's argument": (
        lambda: tiny(num_classes=10),
        (TypeError, r"ViTTi16\(\) has no argument 'num_classes'.*'classes'"),
    ),
    "a misspelt argument": (
        lambda: tiny(pooing="gap"),
        (TypeError, "Did you mean 'pooling'"),
    ),
    "no classes": (
        lambda: tiny(classes=0),
        (ValueError, "positive integer, .* include_top=False.* Received: classes=0"),
    ),
    "the mean of another library": (
        lambda: tiny(pooling="avg"),
        (ValueError, r"Did you mean 'gap'\?$"),
    ),
    "the token of another library": (
        lambda: tiny(pooling="cls"),
        (ValueError, r"Did you mean 'token'\?$"),
    ),
    "a misspelt model": (
        lambda: keras_vit.cost("ViTB61"),
        (ValueError, r"Did you mean 'ViTB16'\?$"),
    ),
    "a name as a model": (
        lambda: keras_vit.feature_extractor("ViTB16", "head"),
        (ValueError, r"'ViTB16'\.?$"),
    ),
    "an underscore": (
        lambda: keras_vit.ViT_B16,
        (AttributeError, "Did you mean 'ViTB16'?"),
    ),
    "weights as a switch": (
        lambda: tiny(weights=True),
        (ValueError, "name of keras_vit.list_weights.*weights=True"),
    ),
    "an argument that is a function": (
        lambda: tiny(features_only=True),
        (TypeError, "Call the function 'dense_features' instead"),
    ),
    "timm's layers by index": (
        lambda: tiny(out_indices=[0]),
        (TypeError, "Call the function 'dense_features' instead"),
    ),
    "weights that are no file": (
        lambda: tiny(weights={"head.weight": 0}),
        (ValueError, "`path` must be a path or a URL; save .*class 'dict'"),
    ),
    "a format by the name of its library": (
        lambda: keras_vit.converters.save(tiny(), "a.npz", format="transformers"),
        (ValueError, "^`format` must be .*That of transformers is 'huggingface'"),
    ),
    # The first argument is `include_top`: this gave a random model.
    "weights by position": (
        lambda: keras_vit.ViTTi16("imagenet"),
        (ValueError, "Received: include_top='imagenet'.*Give all .* by name"),
    ),
    "a repository": (
        weights("google/vit-base-patch16-224"),
        (FileNotFoundError, "'hf://google/vit-base-patch16-224'"),
    ),
    "weights in capitals": (
        weights("imagenet21K"),
        (FileNotFoundError, r"Did you mean 'imagenet21k'\? Names: 'im.*'sam'"),
    ),
    "weights by the model's name": (
        weights("vit_b16"),
        (FileNotFoundError, "no weights have that name. Names: .*list_weights"),
    ),
    "a name as a file": (
        lambda: keras_vit.converters.load("imagenet21k"),
        (FileNotFoundError, r"keras_vit.ViTB16\(weights='imagenet21k'\)"),
    ),
}


@pytest.mark.parametrize("do, expected", MODELS.values(), ids=MODELS)
def test_wrong_model_arguments_raise(do, expected):
    kind, text = expected
    with pytest.raises(kind) as error:
        do()
    assert re.search(text, str(error.value), re.DOTALL), error.value


def test_errors_of_other_libraries_arguments_are_the_table_of_the_docs():
    accepted = inspect.signature(keras_vit.VisionTransformer).parameters
    others = "dense_features", "attention_maps", "set_dtype_policy"
    suggested = {x.split(".")[-1] for x in FOREIGN_ARGUMENT_NAMES.values()}
    assert suggested <= {*accepted, *others}
    text = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
    checked = []
    for line in text.partition("\n## ")[0].splitlines():
        *theirs, here = line.strip("|").split("|")
        for name in re.findall(r"`(\w+)=", " ".join(theirs[1:])):
            if name in accepted:
                continue
            with pytest.raises(TypeError) as error:
                tiny(**{name: 1})
            words = set(re.findall(r"\w+", here))
            words |= {"classes"} if "include_top" in words else set()
            assert str(error.value).split("'")[-2] in words, line
            checked.append(name)
    assert len(checked) > 5
