"""PyTorch files of wrapped and of whole models."""

import argparse
import collections
import datetime
import math
import pathlib
import random
import re
import types
import warnings

import numpy as np
import pytest

from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import read, read_all
from keras_vit.weights.files.npz import write_npz
from tests import golden_data, originals

pytestmark = pytest.mark.backends("torch")

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def below(prefix, tensors):
    return {prefix + key: tensor for key, tensor in tensors.items()}


def settings(model):
    """What a training program saves beside weights."""
    return {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, out=pathlib.Path("runs")),
        "config": types.SimpleNamespace(size={32}, steps=slice(1, 2)),
        "best": np.float64(0.5),
        "curve": np.arange(4.0),
        "random state": (random.getstate(), np.random.get_state()),
        "losses": collections.defaultdict(list, train=[collections.deque([1.0])]),
        "time": datetime.timedelta(1),
        "optimizer": torch.optim.AdamW(model.parameters()).state_dict(),
    }


def compiled(tensors):
    return {
        key.replace("blocks.0.", "blocks.0._orig_mod."): x for key, x in tensors.items()
    }


def split(tensors, body, head):
    """The model with its encoder and its head in two modules."""
    names = {
        key: key.replace("head.", f"{head}.") for key in tensors if key[:4] == "head"
    }
    return {names.get(key, body + key): x for key, x in tensors.items()}


PROJECTION = {"0.weight": (8, 32), "2.weight": (4, 8)}
# What programs save: functions of a model's weights and those of another, and
# what they save beside it, as a warning names it.
WRAPPED = {
    "compiled, then parallel": (lambda w, o: below("module._orig_mod.", w), None),
    "each block compiled": (lambda w, o: compiled(w), None),
    "Lightning": (
        lambda w, o: {"state_dict": below("model.", w) | {"loss.w": o["norm.bias"]}},
        "1 arrays that .* in 'state_dict.model', which are left out: state_dict.loss.w",
    ),
    "a module in a module": (lambda w, o: below("model.net.backbone.vit.", w), None),
    "AveragedModel": (
        lambda w, o: below("module.", w) | {"n_averaged": torch.tensor(5)},
        None,
    ),
    "any name": (
        lambda w, o: {"any": {"other": w}, "random state": torch.get_rng_state()},
        None,
    ),
    "weights and settings in one": (lambda w, o: {**w, "best": 0.5}, None),
    "timm's averages": (
        lambda w, o: {"state_dict": o, "state_dict_ema": w},
        r"left out: state_dict \(32 arrays\)",
    ),
    "DeiT's averages": (
        lambda w, o: {"model": o, "model_ema": below("module.", w)},
        r"in 'model_ema.module', which are left out: model \(32 arrays\)",
    ),
    "no averages yet": (lambda w, o: {"model": w, "model_ema": {}}, None),
    "an average among the weights": (
        lambda w, o: below("net.", o) | below("ema_net.", w),
        r"left out: net \(32 arrays\)",
    ),
    "DINOv3's student, average and its copy, and an older average": (
        lambda w, o: {
            "model": below("student.backbone.", o)
            | below("teacher.backbone.", w)
            | below("model_ema.backbone.", w)
            | below("gram_teacher.backbone.", o)
        },
        r"in 'model.teacher.backbone', which are left out: model.student \(32",
    ),
    "student and teacher": (
        lambda w, o: below("student_backbone.", o) | below("teacher_backbone.", w),
        r"left out: student_backbone \(32 arrays\)",
    ),
    "a head beside": (
        lambda w, o: split(w, "backbone.", "classifier"),
        "taken to be 'classifier.weight'",
    ),
    "a head beside, deeper": (
        lambda w, o: {"net": split(w, "encoder.model.", "head.fc"), "loss": {}},
        "taken to be 'net.head.fc.weight'",
    ),
    "a projection beside": (
        lambda w, o: (
            split(w, "backbone.", "linear")
            | {f"projector.{key}": torch.ones(x) for key, x in PROJECTION.items()}
        ),
        r"left out: projector \(2 arrays\)",
    ),
}


@pytest.fixture(scope="module")
def model():
    return originals.build(originals.TIMM["token"])


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "a.pth"
    torch.save(model.state_dict(), path)
    return open_checkpoint(path, num_heads=2).weights


@pytest.mark.parametrize("case", WRAPPED)
def test_weights_are_found_in_what_wraps_them(case, model, plain, tmp_path):
    """Also in .safetensors files, which have no nested weights."""
    weights = model.state_dict()
    make, message = WRAPPED[case]
    content = make(weights, {key: x + 1 for key, x in weights.items()})
    torch.save({**settings(model), **content}, tmp_path / "a.pth")
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        content = {key: value.clone() for key, value in content.items()}
        safetensors_torch.save_file(content, tmp_path / "a.safetensors")
    for path in tmp_path.iterdir():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = open_checkpoint(path, num_heads=2)
        golden_data.assert_same(found.weights, plain)
        said = [str(warning.message) for warning in caught]
        assert bool(message) == bool(said)
        assert re.search(message or "", "\n".join(said))
        assert found.key("block_0/mlp/dense_1/bias") in read_all(path)[0]


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda w, o: {"best": w, "last": o, "steps": torch.tensor([3])},
            "begin with 'best.' and 'last.'",
        ),
        (  # although a model of EVA's has such a key
            lambda w, o: {
                "best": w,
                "last": o,
                "a.blocks.0.mlp.w1.bias": o["cls_token"],
            },
            "begin with 'best.' and 'last.'",
        ),
        (
            lambda w, o: {
                "student": w,
                "teacher": {**o, "pos_embed": o["pos_embed"][:, 1:]},
            },
            "2 models, whose keys begin with",
        ),
        (
            lambda w, o: {**w, "loss.weight": o["norm.bias"]},
            "place for:\n  loss.weight",
        ),
        (
            lambda w, o: below("net.", w) | {"net.blocks.0.gate": o["norm.bias"]},
            "place for:\n  net.blocks.0.gate",
        ),
    ],
)
def test_what_may_be_another_model_is_refused(make, message, model, tmp_path):
    """Two models of which none is an average, and arrays in a model."""
    weights = model.state_dict()
    torch.save(
        make(weights, {key: x + 1 for key, x in weights.items()}), tmp_path / "a"
    )
    with pytest.raises(ValueError, match=message):
        open_checkpoint(tmp_path / "a", num_heads=2)


@pytest.mark.parametrize("case", ["facebook_dinov2", "facebook_dinov2_reg"])
def test_what_dinov2s_training_writes(case, tmp_path):
    """Blocks in chunks, the teacher for evaluation, and checkpoints of both; in
    those of several devices, the names of a module that FSDP wraps."""
    expected = open_checkpoint(golden_data.weights_path(case), num_heads=3).weights
    backbone = {k: torch.tensor(a) for k, a in golden_data.arrays(case).items()}
    names = ("0.weight", "0.bias", "last_layer.weight_g", "last_layer.weight_v")
    head = {name: torch.ones(2, 2) for name in names}

    def model(name, more=0.0):
        chunk = re.compile(r"^blocks\.(\d)")
        weights = {chunk.sub(r"blocks.0.\1", k): x + more for k, x in backbone.items()}
        heads = below(f"{name}dino_head.", head) | below(f"{name}ibot_head.", head)
        return below(f"{name}backbone.", weights) | heads

    both = model("student.", 1.0) | {"dino_loss.center": torch.ones(1, 2)}
    both |= model("teacher.")
    fsdp = {
        key.replace("bone.", "bone._fsdp_wrapped_module."): x for key, x in both.items()
    }
    for name, content in {
        "teacher_checkpoint.pth": {"teacher": model("")},
        "model_final.rank_0.pth": {"model": both, "iteration": 3},
        "model_0001.rank_0.pth": {"model": fsdp},
    }.items():
        torch.save(content, tmp_path / name)
        with pytest.warns(
            UserWarning, match=r"in '.*teacher.backbone', .*dino_head \(4"
        ):
            found = open_checkpoint(tmp_path / name, num_heads=3)
        assert found.format == "dinov2"
        golden_data.assert_same(found.weights, expected)


@pytest.mark.parametrize("name", ["a.ckpt", "A.PTH", "a", "a.pth.tar", "a.safetensors"])
def test_first_bytes_decide_on_the_kind_of_file(name, model, plain, tmp_path):
    writers = {
        "zip": lambda path: torch.save({"net": model.state_dict()}, path),
        "pickle": lambda path: torch.save(
            model.state_dict(), path, _use_new_zipfile_serialization=False
        ),
        "safetensors": lambda path: safetensors_torch.save_file(
            model.state_dict(), path
        ),
        "npz": lambda path: write_npz(read(tmp_path / "zip").items(), path),
    }
    for kind, save in writers.items():
        path = tmp_path / f"{kind}{name}"
        save(path)
        path.rename(tmp_path / kind)
        (tmp_path / name).write_bytes((tmp_path / kind).read_bytes())
        golden_data.assert_same(
            open_checkpoint(tmp_path / name, num_heads=2).weights, plain
        )


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
    assert str(arrays["state_dict.half"].dtype) == "bfloat16"
    assert [*arrays] == [f"state_dict.{key}" for key in tensors]
    for key, tensor in tensors.items():
        found, expected = arrays[f"state_dict.{key}"], tensor.detach().float().numpy()
        np.testing.assert_array_equal(found.astype("float32"), expected)


def test_pickled_model_error_says_what_to_save(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"call torch.*Linear.*state_dict\(\)"):
        read(path)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda w: {"norm.bias": w["norm.bias"] * math.nan}, "not all .* are finite"),
        (
            lambda w: {"norm.bias": w["norm.bias"].to("meta")},
            "norm.bias: .*meta_tensor",
        ),
        (lambda w: {"norm.bias": w["norm.bias"].int()}, "type int32, expected floats"),
    ],
)
def test_weights_that_cannot_be_used_are_named(change, message, model, tmp_path):
    weights = model.state_dict()
    torch.save({**weights, **change(weights)}, tmp_path / "a.pth")
    with pytest.raises(
        ValueError, match="an earlier step of its training:\n.*" + message
    ):
        open_checkpoint(tmp_path / "a.pth", num_heads=2)


def test_an_optimizer_alone_is_no_model(model, tmp_path):
    torch.save(settings(model)["optimizer"], tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match="cannot be used as weights. Give another"):
        open_checkpoint(tmp_path / "optimizer.pt")
