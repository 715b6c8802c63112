"""Importing the package, its public names, and files of all backends."""

import contextlib
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit

PUBLIC = """
BiT BiT_R101x1 BiT_R101x3 BiT_R152x2 BiT_R152x4 BiT_R50x1 BiT_R50x3
HybridVisionTransformer R26ViTB32 R26ViTS32 R50ViTB16 R50ViTL32 R_ViTTi16
VisionTransformer ViTB14 ViTB16 ViTB32 ViTB8 ViTG14 ViTH14 ViTL14 ViTL16 ViTL32
ViTS14 ViTS16 ViTS32 ViTTi16 ViTg14 config config_of converters cost costs data
decode_predictions dense_features detection distribution evaluation export
feature_extractor hub inspection layers list_weights load losses metrics
optimizers preprocess_input pretraining save schedules segmentation training
""".split()


@pytest.mark.backends("torch")
def test_public_names():
    internal = {"models", "preprocessing", "checkpoints", "downloads"}
    internal |= {"convert", "exporting", "weights"}  # of tools
    found = {name for name in dir(keras_vit) if not name.startswith("_")}
    assert sorted(found - internal) == sorted(PUBLIC)


def run(code, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )


@pytest.mark.slow
def test_import_loads_no_other_framework():
    """No other framework is imported by building and running a model
    either."""
    backend = keras.config.backend()
    others = {"jax", "tensorflow", "torch"} - {backend}
    code = f"""
import sys
# Keras itself looks for some of these when imported; what counts is us.
import keras
others = {others!r} | {{"matplotlib", "sklearn", "keras_cv", "scipy",
                        "tensorflow_datasets"}}
before = others & sys.modules.keys()
import keras_vit, numpy as np
assert others & sys.modules.keys() == before
model = keras_vit.ViTTi16(num_layers=1, input_shape=(32, 32, 3), classes=2)
model(np.zeros((1, 32, 32, 3)))
if "{backend}" in ("jax", "torch"):
    assert "tensorflow" not in sys.modules
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("eager")
def test_float64():
    x = np.zeros((1, 32, 48, 3))
    with contextlib.ExitStack() as stack:
        if keras.config.backend() == "jax":
            import jax

            stack.enter_context(jax.enable_x64(True))
        keras.config.set_floatx("float64")
        # `dtype_policy()` gives it in a process that begins with this floatx.
        keras.config.set_dtype_policy("float64")
        model = keras_vit.VisionTransformer(
            patch_size=16,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            input_shape=(None, None, 3),
            classes=2,
            grid_size=2,
        )
        model.compile("sgd", "mse")
        model.fit(x, np.ones((1, 2)), verbose=0)
        dtypes = {w.dtype for w in model.weights if "seed" not in w.path}
        found = keras.backend.standardize_dtype(model(x).dtype)
    assert dtypes == {found} == {"float64"}


@pytest.mark.backends("torch")
@pytest.mark.slow
def test_keras_files_load_on_every_backend(tmp_path):
    """The outputs of a model saved under PyTorch are equal on the other
    backends."""
    import numpy as np

    model = keras_vit.ViTTi16(num_layers=1, input_shape=(32, 32, 3), classes=4)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.1)
    x = rng.normal(size=(2, 32, 32, 3)).astype("float32")
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "io.npz", x=x, y=model.predict(x, verbose=0))
    code = f"""
import keras, numpy as np
import keras_vit
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
io = np.load({str(tmp_path / "io.npz")!r})
y = model.predict(io["x"], verbose=0)
assert np.abs(y - io["y"]).max() < 3e-5, np.abs(y - io["y"]).max()
"""
    for backend in {"jax", "tensorflow", "torch"} - {keras.config.backend()}:
        done = run(code, KERAS_BACKEND=backend)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_compiled_models_load_in_a_new_process(tmp_path):
    """The process runs only `import keras_vit`, which does not import
    TensorFlow."""
    schedules = (
        keras_vit.schedules.BiTHyperRule,
        keras_vit.schedules.WarmupDecay,
    )
    for number, (optimizer, schedule) in enumerate(
        [
            (keras_vit.optimizers.PublishedSGD, schedules[0](0.1, 100)),
            (keras_vit.optimizers.PublishedAdamW, schedules[1](0.1, 100, 10)),
        ]
    ):
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        decay = {"weight_decay": 1e-4} if number else {}
        model.compile(
            optimizer(schedule, **decay),
            keras_vit.losses.SigmoidCrossentropy(),
        )
        model.train_on_batch(np.ones((2, 4)), np.eye(2))
        model.save(tmp_path / f"{number}.keras")
    done = run(f"""
import sys, keras
import keras_vit
if keras.config.backend() != "tensorflow":
    assert "tensorflow" not in sys.modules
models = [keras.models.load_model(f"{tmp_path}/{{n}}.keras") for n in (0, 1)]
assert [int(m.optimizer.iterations) for m in models] == [1, 1]
print(*(type(m.optimizer).__name__ for m in models))
print(*(type(m.optimizer._learning_rate).__name__ for m in models))
print(*(type(m.loss).__name__ for m in models))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "PublishedSGD",
        "PublishedAdamW",
        "BiTHyperRule",
        "WarmupDecay",
        "SigmoidCrossentropy",
        "SigmoidCrossentropy",
    ]
