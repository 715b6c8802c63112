"""`--inspect` reports the contents of a file and what is ambiguous."""

import numpy as np
import pytest

from keras_vit.converters import save
from keras_vit.weights.files import track, write
from keras_vit_programs import convert as _cli
from tests import golden_data
from tests.small import vit

pytestmark = pytest.mark.backends("torch")


def inspected(capsys, *arguments, status=0):
    assert _cli.main([*map(str, arguments), "--inspect"]) == status
    out, err = capsys.readouterr()
    assert not err
    metadata = {}
    for line in out.split("\n\n")[1].splitlines():
        name, _, value = line.partition(" ")
        metadata[name] = value.strip()
    return out, metadata


# One of each code base.
@pytest.mark.parametrize("case", {x: c for c, x in golden_data.LOADED.items()}.values())
def test_inspect_reports_golden_cases(case, capsys):
    path = golden_data.load_path(case)
    out, metadata = inspected(capsys, path)
    arrays = golden_data.arrays(case)
    formats = {golden_data.LOADED[case]}
    if formats & golden_data.SAME:
        formats = golden_data.SAME
    assert metadata["format"].partition(":")[0] in formats
    count = sum(array.size for array in arrays.values())
    assert metadata["parameters"] == f"{count:,}"
    assert metadata["hidden_size"] == "48" and metadata["num_layers"] == "3"
    rows = [line.split() for line in out.splitlines()]
    for key, array in arrays.items():
        shape = str(array.shape).split()
        assert [key, *shape, str(array.dtype)] in rows


@pytest.mark.parametrize(
    "case,settings,question,name,value",
    [
        ("timm_base", "num_heads=3", "Give `num_heads`", "num_heads", "3"),
        (
            "vit_jax_gap",
            "grid_size=(4,6)",
            "Possible: (1, 24), (2, 12), (3, 8), (4, 6)",
            "grid_size",
            "(4, 6)",
        ),
    ],
)
def test_ambiguous_arguments_are_reported(
    case, settings, question, name, value, capsys
):
    path = golden_data.load_path(case)
    out, metadata = inspected(capsys, path)
    assert f"ambiguous:\n  {name}" in out and question in out
    assert metadata[name] != value
    assert metadata["norm_epsilon"] == "1e-06 (default of the format)"
    options = ("--set", settings, "--set", "norm_epsilon=1e-5")  # repeated
    out, metadata = inspected(capsys, path, *options)
    assert "ambiguous" not in out and metadata[name] == value
    assert metadata["norm_epsilon"] == "1e-05"


def test_ambiguous_positions_are_reported(capsys, tmp_path):
    """The shapes fit 3 x 5 patches with a class token, and 4 x 4 patches
    without."""
    arrays = golden_data.arrays("timm_reg_ls_qknorm")
    arrays = {
        key: array
        for key, array in arrays.items()
        if "ls1" not in key and "ls2" not in key and key != "reg_token"
    }
    write(arrays, tmp_path / "a.npz")
    out, _ = inspected(capsys, tmp_path / "a.npz")
    assert "ambiguous:\n  grid_size, position_prefix: " in out
    assert "can be read in two ways" in out
    settings = ("--set", "position_prefix=none")
    out, metadata = inspected(capsys, tmp_path / "a.npz", *settings)
    assert "ambiguous" not in out and metadata["grid_size"] == "(4, 4)"


def test_inspect_says_what_a_file_without_a_head_gives(capsys, tmp_path):
    for name, options in (("a", {"include_top": False}), ("b", {"classes": 3})):
        save(vit(**options), tmp_path / f"{name}.npz", "timm")
        capsys.readouterr()  # what the format does not store
        _, metadata = inspected(capsys, tmp_path / f"{name}.npz")
        said = metadata.get("output", "")
        assert said.startswith("all tokens") == (name == "a")


def test_inspect_reads_keras_files(capsys, tmp_path):
    model = vit(input_shape=(8, 16, 3), activation="gelu")
    for ending in (".keras", ".weights.h5"):
        path = tmp_path / f"model{ending}"
        save(model, path)
        out, metadata = inspected(capsys, path)
        assert metadata["activation"] == "gelu"
        assert metadata["grid_size"] == "(2, 4)"
        assert metadata["parameters"] == f"{model.count_params():,}"
        assert "block_0/mlp/dense_1/kernel" in out and "(16, 64)" in out
    # The folder of a recipe's run, too.
    assert inspected(capsys, tmp_path) == inspected(capsys, tmp_path / "model.keras")
    bare = tmp_path / "bare.weights.h5"
    model.save_weights(bare)
    out, metadata = inspected(capsys, bare)
    assert "ambiguous:\n  activation, norm_epsilon, resampling" in out
    out, metadata = inspected(capsys, bare, "--from", "timm")
    assert "ambiguous" not in out and metadata["activation"] == "gelu"


def test_keys_of_an_unknown_format_are_shown(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", what=np.ones((2, 3), "float32"))
    out, _ = inspected(capsys, tmp_path / "a.npz", status=1)
    assert "The keys fit no format" in out
    assert ["what", "(2,", "3)", "float32"] in [
        line.split() for line in out.splitlines()
    ]
    arguments = [str(tmp_path / "a.npz"), "--from", "timm", "--inspect"]
    assert _cli.main(arguments) == 1


def test_progress_bar_is_shown_only_on_terminals(monkeypatch, capsys):
    items = list(range(5))
    assert list(track(items, "reading", 1e9)) == items
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(track(items, "reading", 1e3)) == items
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "xterm")
    assert list(track(items, "reading", 1e9)) == items
    out, err = capsys.readouterr()
    assert out == "" and "reading" in err
