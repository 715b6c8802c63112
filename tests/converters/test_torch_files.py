"""PyTorch files of wrapped and of whole models."""

import pytest

from keras_vit.checkpoints.files import read
from keras_vit.converters import load

torch = pytest.importorskip("torch")


def test_wrapped_names_of_a_pth(tmp_path):
    """As torch.compile and DistributedDataParallel save them."""
    path = tmp_path / "a.pth"
    torch.save({"_orig_mod.module.head.bias": torch.ones(2)}, path)
    assert list(read(path)) == ["head.bias"]


def test_a_pth_of_a_whole_model_says_what_to_save(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"call torch.*Linear.*state_dict\(\)"):
        read(path)
    torch.save({"_torch_params.head/kernel": torch.ones(2, 2)}, path)
    with pytest.raises(ValueError, match="Keras gives its `state_dict`"):
        load(path)
