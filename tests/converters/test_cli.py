"""tools/convert.py: converted files, refused arguments, `--inspect`."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.files import read
from keras_vit.weights.formats import FORMATS
from keras_vit_programs import convert as _cli
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "convert.py"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


@pytest.mark.parametrize("ending", [".npz", ".keras", ".weights.h5"])
def test_command_line_needs_no_backend(ending, tmp_path):
    source = golden_data.weights_path("vit_jax_token")
    if ending != ".npz":
        model = keras_vit.converters.load(source)
        source = tmp_path / f"model{ending}"
        keras_vit.converters.save(model, source)
    target = tmp_path / "out.safetensors"
    # A backend that does not exist would stop Keras at its import.
    done = run(source, target, "--to", "timm", KERAS_BACKEND="none")
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    assert "blocks.0.attn.qkv.weight" in read(target)
    if ending != ".npz":
        return
    again = run(source, target, "--to", "timm", KERAS_BACKEND="none")
    assert again.returncode == 1
    assert "Traceback" not in again.stderr and "exists" in again.stderr


@pytest.mark.parametrize(
    "arguments", [["out.keras"], ["out.npz", "--verify"], ["out", "--to", "hub"]]
)
def test_what_needs_keras_says_which_backends_there_are(arguments, tmp_path):
    source = golden_data.weights_path("vit_jax_token")
    done = run(source, tmp_path / arguments[0], *arguments[1:], KERAS_BACKEND="jxa")
    assert done.returncode == 1
    assert "no backend 'jxa'" in done.stderr and "KERAS_BACKEND=jax" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_help_names_every_format():
    words = str(_cli.__doc__).replace(",", " ").replace(";", " ").split()
    assert {*FORMATS} <= {*words}


def test_output_that_is_no_longer_read_is_no_error():
    source = golden_data.weights_path("vit_jax_token")
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does
    command = [sys.executable, str(TOOL), str(source), "--inspect"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


def test_inspect_and_wrong_arguments(capsys, tmp_path):
    source = str(golden_data.weights_path("timm_map"))
    assert _cli.main([source, str(tmp_path / "a.npz")]) == 1
    printed = capsys.readouterr().err
    assert "--set num_heads=..." in printed and "Possible: 1, 2, 3" in printed
    source = str(golden_data.weights_path("vit_jax_token"))
    assert _cli.main([source, "--inspect"]) == 0
    out = capsys.readouterr().out
    assert "vit_jax\n" in out and "embedding/kernel" in out
    assert re.search("(?m)^pixels +tf", out)
    for arguments, message in (
        ([source], "TARGET is missing"),
        ([source, str(tmp_path / "a.txt")], "must end in"),
        ([source, str(tmp_path / "a.npz"), "--to", "onnx"], "--to must be one of"),
        ([source, str(tmp_path / "a.npz"), "--set", "x"], "name=value"),
        ([str(tmp_path / "no.npz"), str(tmp_path / "a.npz")], "no file"),
        ([source, str(tmp_path / "no" / "a.npz")], "no folder"),
        ([source, str(tmp_path / "a.npz"), "--to", "timm:x"], "variants"),
    ):
        assert _cli.main(arguments) == 1
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_head_count_that_a_format_cannot_store_warns(tmp_path):
    """timm's format cannot store the number of heads: 4 heads of 16 channels
    were loaded as one head of 64."""
    sizes = {"hidden_size": 64, "num_layers": 1, "mlp_dim": 8, "patch_size": 4}
    model = keras_vit.VisionTransformer(
        num_heads=4, input_shape=(8, 8, 3), classes=2, **sizes
    )
    source, target = (tmp_path / name for name in ("a.npz", "timm.pth"))
    keras_vit.converters.save(model, source)  # Google's format stores it
    message = "cannot store that it has 4 heads of"
    with pytest.warns(UserWarning, match=message) as caught:
        keras_vit.converters.save(model, target, "timm")
    assert __file__ in {warning.filename for warning in caught}
    with pytest.warns(UserWarning, match="taken to be 1, of 64 ch") as caught:
        _cli.convert(target, tmp_path / "guessed.npz", to="vit_jax")
    assert __file__ in {warning.filename for warning in caught}
    given = {"num_heads": 4}
    _cli.convert(target, tmp_path / "given.npz", to="vit_jax", settings=given)
    given, guessed = (read(tmp_path / f"{n}.npz") for n in ("given", "guessed"))
    for name, array in read(source).items():
        np.testing.assert_array_equal(given[name], array)
    key = next(name for name in guessed if name.endswith("query/kernel"))
    assert guessed[key].shape[1:] == (1, 64)
