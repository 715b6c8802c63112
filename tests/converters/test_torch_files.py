"""PyTorch files of wrapped and of whole models."""

import collections

import numpy as np
import pytest

from keras_vit.weights.files import read

pytestmark = pytest.mark.backends("torch")

torch = pytest.importorskip("torch")


def test_wrapper_prefixes_are_removed(tmp_path):
    """torch.compile and DistributedDataParallel add prefixes to the names."""
    path = tmp_path / "a.pth"
    torch.save({"_orig_mod.module.head.bias": torch.ones(2)}, path)
    assert list(read(path)) == ["head.bias"]


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
