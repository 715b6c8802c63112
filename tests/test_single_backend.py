"""One backend and the required dependencies suffice: importing any other
installed package is made to fail."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

from tests import golden_data

ROOT = pathlib.Path(__file__).parents[1]
BACKEND = keras.config.backend()
OTHERS = sorted({"jax", "tensorflow", "torch"} - {BACKEND})
EXTRAS = """
matplotlib sklearn keras_cv tensorflow_datasets optax timm transformers
torchvision onnx
""".split()
# Not found, as if it were not installed. None in sys.modules, or an error from
# a finder, are taken otherwise by those who only look whether it is there.
FORBID = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {OTHERS + EXTRAS}:
            return self.finder.find_spec(name, path, target)
    def __getattr__(self, key):
        return getattr(self.finder, key)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run(code, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", FORBID + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
    )


@pytest.mark.slow
def test_one_backend_alone_is_enough(tmp_path):
    """Build, fit, save, load and convert a model, and preprocess images."""
    code = """
import keras, numpy as np
import keras_vit
from keras_vit_programs.convert import main

def build(**arguments):
    return keras_vit.VisionTransformer(
        patch_size=8, hidden_size=16, num_layers=1, num_heads=2, mlp_dim=32,
        input_shape=(16, 16, 3), **arguments)

model = build(classes=3)
x = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(
    from_logits=True))
model.fit(x, np.arange(4) % 3, verbose=0)
y = model.predict(x, verbose=0)

def check(other):
    np.testing.assert_allclose(other.predict(x, verbose=0), y, atol=1e-5)

model.save("model.keras")
check(keras.models.load_model("model.keras"))
model.save_weights("model.weights.h5")
keras_vit.converters.save(model, "timm.safetensors", "timm")
assert main(["timm.safetensors", "flax.npz", "--to", "vit_jax",
             "--set", "num_heads=2", "--set", "activation=gelu_tanh"]) == 0
check(build(weights="flax.npz", classes=3))
assert "ViTB16/imagenet21k" in keras_vit.list_weights()
for pixels in np.full(3, 255), keras.ops.full((3,), 255):
    assert float(keras_vit.preprocess_input(pixels)[0]) == 1
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.backends("jax")
@pytest.mark.parametrize(
    "command,words",
    [
        (
            "recipes/pretrain_masked.py --dataset digits",
            'pip install ".[recipes]"',
        ),
        ("tools/convert.py a.npz b.pth", "pip install torch."),
    ],
)
def test_missing_dependency_gives_a_one_line_error(command, words, tmp_path):
    code = f"""
import runpy
sys.argv = {command.split()!r}
sys.path.insert(0, {str(ROOT)!r})
runpy.run_path({str(ROOT)!r} + "/" + sys.argv[0], run_name="__main__")
"""
    weights = golden_data.folder("vit_jax_token") / "weights.npz"
    (tmp_path / "a.npz").write_bytes(weights.read_bytes())
    done = run(code, tmp_path)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert words in done.stderr.strip().splitlines()[-1], done.stderr
