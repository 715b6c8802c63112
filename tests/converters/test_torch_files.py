"""PyTorch files of wrapped and of whole models."""

import collections

import numpy as np
import pytest

from keras_vit.weights.files import read

pytestmark = pytest.mark.backends("torch")

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def named(*keys):
    """Tensors of ones by these keys."""
    return {key: torch.ones(2) for key in keys}


# What a file holds, and the keys that are read.
WRAPPED = {
    "compiled, then parallel": (named("module._orig_mod.head.bias"), None),
    "parallel, then compiled": (named("_orig_mod.module.head.bias"), None),
    "Lightning": ({"state_dict": named("model.head.bias")}, None),
    "a module in a module": (named("model.net.backbone.vit.head.bias"), None),
    "AveragedModel": (
        {**named("module.head.bias"), "n_averaged": torch.tensor(5)},
        None,
    ),
    "PyTorch's tutorial": (
        {"epoch": 3, "model_state_dict": named("head.bias")},
        None,
    ),
    "timm's averages": (
        {"state_dict": named("raw"), "state_dict_ema": named("head.bias")},
        None,
    ),
    "DeiT's averages": (
        {"model": named("raw"), "model_ema": named("module.head.bias")},
        None,
    ),
    "no averages yet": ({"model": named("head.bias"), "model_ema": {}}, None),
    "not of all keys": (
        named("model.head.bias", "module.head.bias"),
        ["model.head.bias", "module.head.bias"],
    ),
    "transformers": (
        named("vit.layernorm.bias", "classifier.bias"),
        ["vit.layernorm.bias", "classifier.bias"],
    ),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_weights_are_found_in_what_wraps_them(case, tmp_path):
    """Also in .safetensors files, which have no nested weights."""
    content, expected = WRAPPED[case]
    torch.save(content, tmp_path / "a.pth")
    assert list(read(tmp_path / "a.pth")) == (expected or ["head.bias"])
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        path = tmp_path / "a.safetensors"
        safetensors_torch.save_file(content, path)
        assert {*read(path)} == {*(expected or ["head.bias"])}


@pytest.mark.parametrize("zipped", [True, False])
def test_views_parameters_and_nested_state_dicts(zipped, tmp_path):
    """Tensors with a common storage and any strides are read as PyTorch reads
    them."""
    base = torch.arange(12.0).reshape(3, 4)
    tensors = collections.OrderedDict(
        base=base,
        transposed=base.T,
        sliced=base[1:, ::2],
        expanded=torch.ones(1).expand(1),
        scalar=base[2, 3],
        parameter=torch.nn.Parameter(base + 1),
        half=base.to(torch.bfloat16),
    )
    tensors._metadata = {"": {"version": 1}}
    path = tmp_path / "a.pth"
    content = {"epoch": 3, "lr": 0.1, "state_dict": tensors}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    arrays = read(path)
    assert str(arrays["half"].dtype) == "bfloat16"
    assert arrays.keys() == tensors.keys()
    for key, tensor in tensors.items():
        expected = tensor.detach().float().numpy()
        np.testing.assert_array_equal(arrays[key].astype("float32"), expected)


def test_pickled_model_error_says_what_to_save(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"call torch.*Linear.*state_dict\(\)"):
        read(path)
