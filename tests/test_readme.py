"""The README's Python runs; its commands and figures are correct."""

import pathlib
import re

import numpy as np
import pytest

import keras_vit

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras_vit.converters.save(
        keras_vit.ViTTi16(input_shape=(32, 32, 3), classes=7), "Ti_16.npz"
    )
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["logits"].shape == (8, 3)
    assert np.isfinite(names["logits"]).all()
    assert names["features"]["block_3"].shape == (1, 197, 192)


def test_ci_command_is_in_the_readme():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1].strip() in README


def test_parameter_counts_match_the_table():
    from tests.models.test_variants import PARAMETERS

    for variant, count in PARAMETERS.items():
        assert f"`{variant}`" in README
        assert f"{count:,}" in README
