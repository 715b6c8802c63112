"""Importing the package, its public names, and files of all backends."""

import os
import pathlib
import pkgutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from tests.small import tiny

# One name a line. CONTRIBUTING.md states how a name may leave it.
PUBLIC = pathlib.Path(__file__).with_name("public_names.txt")


@pytest.mark.backends("torch")
def test_public_names():
    """`from module import *` imports the names of the file, and no others."""
    found = []
    modules = [x.name for x in pkgutil.iter_modules(keras_vit.__path__, "keras_vit.")]
    for module in ("keras_vit", *modules, "keras_vit.data.steps"):
        if module not in ("keras_vit._version", "keras_vit.utils"):
            names = {}
            exec(f"from {module} import *", names)
            names.pop("__builtins__")
            found += [f"{module}.{name}" for name in names]
    for module in ("converters", "exporting", "hub"):
        face = getattr(keras_vit, module)
        assert dir(face) == sorted(face.__all__)
    assert sorted(found) == PUBLIC.read_text().split()
    assert not hasattr(keras_vit, "__wrapped__")


@pytest.mark.backends("jax")  # test_keras_workflows has the others
@pytest.mark.usefixtures("eager")
def test_float64_under_jax():
    import jax

    with jax.enable_x64(True):
        keras.config.set_floatx("float64")
        # `dtype_policy()` gives it in a process that begins with this floatx.
        keras.config.set_dtype_policy("float64")
        model = tiny(input_shape=(None, None, 3), classes=2, grid_size=2)
        model.compile("sgd", "mse")
        model.fit(np.zeros((1, 16, 24, 3)), np.ones((1, 2)), verbose=0)
        dtypes = {w.dtype for w in model.weights if "seed" not in w.path}
        found = model(np.zeros((1, 16, 24, 3))).dtype
    assert dtypes == {keras.backend.standardize_dtype(found)} == {"float64"}


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "guess, name",
    [
        ("from_preset", "load"),
        ("from_pretrained", "load"),
        ("load_model", "load"),
        ("create_model", "load.+hf://timm/NAME"),
        ("create_transform", "preprocess_input"),
        ("ViTBase16", "ViTB16"),
        ("vit_small_patch16_224", "ViTS16"),
        ("ViTImageClassifier", "VisionTransformer"),
        ("applications", "ViTB16"),
        ("load_weights", "load"),
        ("dinov2", r"ViTB14\(weights="),
        ("relevance", "inspection.relevance"),
        ("inference_model", "models.inference_model"),
    ],
)
def test_names_of_other_packages_are_answered_with_ours(guess, name):
    with pytest.raises(AttributeError, match=f"Did you mean '{name}"):
        getattr(keras_vit, guess)


@pytest.mark.backends("torch")
def test_list_models():
    assert {"ViTB16", "R50ViTL32", "BiT_R50x1"} < set(keras_vit.list_models())
    assert all(callable(getattr(keras_vit, name)) for name in keras_vit.list_models())
    assert keras_vit.list_models("vit*14") == [
        *("ViTH14", "ViTS14", "ViTB14", "ViTL14", "ViTg14", "ViTG14")
    ]
    assert keras_vit.list_models("dino*") == []


CODE = """
import sys
# Keras itself looks for some of these when imported; what counts is us.
import keras
others = {"jax", "tensorflow", "torch"} - {keras.config.backend()}
others |= {"matplotlib", "sklearn", "keras_cv", "scipy", "tensorflow_datasets"}
before = others & sys.modules.keys()
import keras_vit
assert others & sys.modules.keys() == before
import numpy as np
io = np.load("io.npz")
for name in ("PublishedSGD", "PublishedAdamW"):
    model = keras.models.load_model(f"{name}.keras")
    assert type(model.optimizer).__name__ == name
    assert int(model.optimizer.iterations) == 1
    print(type(model.optimizer._learning_rate).__name__)
    print(type(model.loss).__name__)
    y = model(io["x"])
    y = keras.ops.convert_to_numpy(y)
    assert np.abs(y - io[name]).max() < 3e-5, np.abs(y - io[name]).max()
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_compiled_models_load_in_a_new_process(backend, tmp_path):
    """The process runs only `import keras_vit`, which imports no other
    framework, and the model that PyTorch saved has the same outputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 32, 32, 3)).astype("float32")
    io = {"x": x}
    for optimizer in (
        keras_vit.optimizers.PublishedSGD(keras_vit.schedules.BiTHyperRule(0.1, 100)),
        keras_vit.optimizers.PublishedAdamW(
            keras_vit.schedules.WarmupDecay(0.1, 100, 10), weight_decay=1e-4
        ),
    ):
        name = type(optimizer).__name__
        model = keras_vit.ViTTi16(num_layers=1, input_shape=x.shape[1:], classes=2)
        model.compile(optimizer, keras_vit.losses.SigmoidCrossentropy())
        model.train_on_batch(x, np.eye(2))
        for weight in model.weights:
            weight.assign(rng.normal(size=weight.shape) * 0.1)
        model.save(tmp_path / f"{name}.keras")
        io[name] = model.predict(x, verbose=0)
    np.savez(tmp_path / "io.npz", **io)
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loss = "SigmoidCrossentropy"
    assert done.stdout.split() == ["BiTHyperRule", loss, "WarmupDecay", loss]
