"""`--verify`: both files on the same images, also in the original library."""

import builtins
import sys

import numpy as np
import pytest

from keras_vit.weights.files import read, write
from keras_vit_programs import convert as _cli
from keras_vit_programs.verification import verify
from tests import golden_data

pytestmark = pytest.mark.backends("torch")

# case, target, format to write, --set, libraries that run
CASES = [
    ("timm_base", "a.npz", "vit_jax", {"num_heads": 3}, "timm"),
    ("timm_map", "a.keras", None, {"num_heads": 3}, "timm"),
    ("timm_reg_ls_qknorm", "a.pth", "timm", {}, "timm timm"),
    ("vit_jax_token", "a.safetensors", "timm", {}, "timm"),
    (
        "timm_deit_distilled",
        "folder",
        "huggingface",
        {"num_heads": 3},
        "timm transformers",
    ),
    (
        "timm_avg",
        "a.pth",
        None,
        {"num_heads": 3, "class_token": True, "grid_size": (4, 5)},
        "timm timm",
    ),
    ("hf_vit", "a.safetensors", None, {}, "transformers transformers"),
    (
        "torchvision_vit_old_names",
        "a.pth",
        None,
        {"num_heads": 3},
        "torchvision torchvision",
    ),
    (
        "facebook_dinov2_reg",
        "folder",
        "huggingface",
        {"num_heads": 3},
        "transformers",
    ),
    ("big_vision_gap", "a.npz", None, {}, ""),
]


# keras-hub takes 10 seconds to import: `test_keras_hub.py` runs it.
OTHERS = {
    "hf_vit": ["timm", "torchvision"],
    "timm_base": ["transformers", "torchvision"],
    "torchvision_vit_old_names": ["timm", "transformers"],
    "vit_jax_token": ["transformers", "torchvision"],
}


@pytest.fixture(autouse=True)
def _no_keras_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)


@pytest.mark.parametrize("case,target,to,settings,libraries", CASES)
def test_verify_matches_every_library(case, target, to, settings, libraries, tmp_path):
    for library in libraries.split():
        pytest.importorskip(library)
    source, target = golden_data.load_path(case), tmp_path / target
    _cli.convert(source, target, to=to, settings=settings)
    text, same, complete = verify(source, target, to=to, settings=settings)
    assert same and complete, text
    assert f"{target.name} in keras_vit" in text and "DIFFERS" not in text
    lines = [
        line
        for line in text.splitlines()
        if line.endswith("same") and " in keras_vit" not in line
    ]
    ran, others = (
        [
            line.split(" in ")[1].split()[0]
            for line in lines
            if (", as " in line) == elsewhere
        ]
        for elsewhere in (False, True)
    )
    assert ran == libraries.split(), text
    # Other libraries that have the model.
    assert not set(ran) & set(others)
    assert others == OTHERS.get(case, []), text


def test_verify_reports_a_difference(tmp_path):
    source = golden_data.load_path("vit_jax_token")
    target = tmp_path / "a.npz"
    arrays = read(source)
    arrays["head/bias"] = arrays["head/bias"] + np.float32(1e-3)
    write(arrays, target)
    text, same, complete = verify(source, target)
    assert not same and "DIFFERS" in text
    assert "(vit_jax): the original code is not on PyPI" in text


@pytest.mark.slow
def test_tolerance_depends_on_the_dtype(tmp_path):
    source = golden_data.load_path("vit_jax_token")
    limits = {}
    for dtype in (None, "float16", "bfloat16"):
        target = tmp_path / f"{dtype}.npz"
        _cli.convert(source, target, dtype=dtype)
        text, same, complete = verify(source, target, dtype=dtype)
        assert same, text
        line = next(x for x in text.splitlines() if "in keras_vit" in x)
        limits[dtype] = float(line.split()[-2])
    assert limits[None] < 1e-4 < limits["float16"] < limits["bfloat16"] < 0.2


@pytest.mark.filterwarnings("default::UserWarning")
def test_command_reports_the_verification(tmp_path, capsys, monkeypatch):
    source = str(golden_data.load_path("vit_jax_token"))
    target = tmp_path / "a.safetensors"
    options = ["--to", "timm", "--verify"]
    assert _cli.main([source, str(target), *options]) == 0
    out, printed = capsys.readouterr()
    assert "warning: " in printed and "--set num_heads=3" in printed
    assert "difference  tolerance" in out
    assert "does not store activation='gelu_tanh'; readers" in printed
    convert = _cli.convert

    def damaged(*arguments, **keywords):
        notes = convert(*arguments, **keywords)
        arrays = read(target)
        arrays["head.weight"] = arrays["head.weight"][::-1]
        write(arrays, target, overwrite=True)
        return notes

    monkeypatch.setattr(_cli, "convert", damaged)
    options.append("--overwrite")
    assert _cli.main([source, str(target), *options]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def _break(monkeypatch, kind):
    """Makes timm unavailable, or its import fail as with a mismatched
    torchvision."""
    if kind == "absent":
        monkeypatch.setitem(sys.modules, "timm", None)
        return
    for name in [name for name in sys.modules if name.startswith("timm")]:
        monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def fail(name, *arguments, **keywords):
        if name == "timm":
            cause = RuntimeError("operator torchvision::nms does not exist")
            if kind == "raised":
                raise cause
            # As transformers does, whose error names no module.
            raise ModuleNotFoundError("Could not import module") from cause
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", fail)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "kind,words",
    [
        ("absent", "timm is not installed: pip install timm"),
        ("raised", "torchvision was built for another PyTorch (operator"),
        ("wrapped", "torchvision was built for another PyTorch (operator"),
    ],
)
def test_unavailable_library_is_reported(kind, words, tmp_path, capsys, monkeypatch):
    source = str(golden_data.load_path("vit_jax_token"))
    target = str(tmp_path / "a.safetensors")
    _break(monkeypatch, kind)
    options = ["--to", "timm", "--verify"]
    assert _cli.main([source, target, *options]) == 3
    out = capsys.readouterr().out
    last = out.strip().splitlines()[-1]
    assert last.startswith("not verified in the original library: a.safe")
    assert words in last


@pytest.mark.backends("torch")
@pytest.mark.parametrize("has_torch", [True, False])
def test_code_that_is_not_on_pypi_is_reported(has_torch, tmp_path, capsys, monkeypatch):
    original = builtins.__import__

    def fail(name, scope=None, *arguments):
        if name == "torch" and scope["__name__"].startswith("keras_vit_programs"):
            raise ModuleNotFoundError(name="torch")
        return original(name, scope, *arguments)

    if not has_torch:
        monkeypatch.setattr(builtins, "__import__", fail)
    source = str(golden_data.load_path("vit_jax_token"))
    target = str(tmp_path / "a.npz")
    options = ["--to", "vit_jax:current", "--verify"]
    assert _cli.main([source, target, *options]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("not verified in the original library: a.npz")
