"""Checkpoints of training programs, which name the architecture of their model."""

import argparse
import warnings

import numpy as np
import pytest

from keras_vit.converters import load
from keras_vit.weights import open_checkpoint
from keras_vit.weights.files import torch as torch_files
from tests.originals import shake

pytestmark = pytest.mark.backends("torch")
SIZES = {"embed_dim": 64, "depth": 1, "num_heads": 2, "img_size": 64, "patch_size": 16}


def built(name, **options):
    torch, timm = (pytest.importorskip(x) for x in ("torch", "timm"))
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, **{**SIZES, **options})
    shake(model)
    return model.eval()


def of_timm(name, model, **flags):
    """What timm's `CheckpointSaver` writes for `train.py`."""
    options = {"model": name, "gp": None, "model_kwargs": SIZES, "mean": None}
    args = argparse.Namespace(**{**options, **flags})
    return {"arch": name, "state_dict": model.state_dict(), "args": args, "epoch": 3}


def of_lightning(name, model):
    weights = {f"model.{key}": array for key, array in model.state_dict().items()}
    return {"state_dict": weights, "hyper_parameters": {"model_name": name, "lr": 0.1}}


def said_and_error(content, model, tmp_path, **options):
    """Returns what is warned of, and how far outputs are from the model's."""
    import torch

    torch.save(content, tmp_path / "last.pth.tar")
    images = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = load(tmp_path / "last.pth.tar", input_shape=(64, 64, 3), **options)
    expected = model(torch.tensor(images.transpose(0, 3, 1, 2))).detach().cpu().numpy()
    error = np.abs(ours.predict(images, verbose=0) - expected).max()
    return "\n".join(str(x.message) for x in caught), error


NAMES = (
    *("vit_base_patch16_clip_quickgelu_224", "vit_base_patch32_siglip_256"),
    *("vit_base_patch16_clip_224.openai", "vit_large_patch16_siglip_gap_512"),
    *("vit_wee_patch16_reg1_gap_256", "timm/eva_large_patch14_196"),
    *("hf-hub:timm/deit3_small_patch16_224.fb_in1k", "vit_small_patch14_dinov2"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [of_timm, of_lightning])
def test_the_name_says_what_arrays_do_not(name, content, tmp_path):
    architecture = name.rpartition("/")[2].partition(".")[0]
    model = built(architecture)
    given = {} if content is of_timm else {"num_heads": 2}
    said, error = said_and_error(content(name, model), model, tmp_path, **given)
    assert error < 1e-5
    asked = content is of_lightning and name.startswith("timm/eva")
    assert ("does not store `pooling`" in said) == asked
    assert "`activation`" not in said and "`norm_epsilon`" not in said


def test_images_are_scaled_and_cropped_as_for_the_architecture(tmp_path):
    """Where flags do not say it: timm's `train.py` takes it from the architecture."""
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    names = [
        name
        for module in ("vision_transformer", "deit", "eva")
        for is_released in (False, True)  # with the tag of its weights, too
        for name in timm.list_models(module=module, pretrained=is_released)
        if name.startswith(("deit", "vit_"))
    ]
    found = {}
    for name in names:
        content = {"arch": name, "state_dict": {}, "args": argparse.Namespace()}
        torch.save(content, tmp_path / "last.pth.tar")
        config = torch_files.read_training(tmp_path / "last.pth.tar")
        found[name] = config["pretrained_cfg"]
    expected = {name: timm.get_pretrained_cfg(name) for name in names}
    assert len(names) > 400
    wrong = [
        x for x in names if not np.allclose(found[x]["mean"], expected[x].mean, 0, 1e-3)
    ]
    assert not wrong
    cropped = [name for name in names if "crop_pct" in found[name]]
    assert len(cropped) > 80
    for name in cropped:
        cfg = expected[name]
        assert found[name]["crop_pct"] == cfg.crop_pct, name
        for key in ("interpolation", "crop_mode"):
            assert found[name][key] == getattr(cfg, key), name


def test_flags_of_a_training(tmp_path):
    name = "vit_base_patch16_224"
    model = built(name, global_pool="avg", act_layer="relu")
    flags = {"gp": "avg", "model_kwargs": {**SIZES, "act_layer": "relu"}}
    flags |= {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3], "crop_pct": 0.8}
    content = of_timm(name, model, **flags)
    said, error = said_and_error(content, model, tmp_path)
    assert error < 1e-5 and not said
    found = open_checkpoint(tmp_path / "last.pth.tar")
    assert found.preprocess_mode == ((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    center = {"interpolation": "bicubic", "crop_pct": 0.8, "crop_mode": "center"}
    assert found.resizing == center
    content["args"].gp = "max"
    with pytest.raises(ValueError, match="'global_pool'.*must be one of"):
        said_and_error(content, model, tmp_path)


def test_a_norm_that_is_given_has_its_own_epsilon(tmp_path):
    name, norm = "vit_base_patch16_clip_224", {"norm_layer": "layernorm"}
    model = built(name, **norm)
    content = of_timm(name, model, model_kwargs={**SIZES, **norm})
    assert said_and_error(content, model, tmp_path)[1] < 1e-5
    content["args"].model_kwargs["norm_layer"] = "groupnorm1"
    with pytest.raises(ValueError, match="'norm_layer'.*must be None"):
        said_and_error(content, model, tmp_path)


def test_the_name_of_another_model_is_refused(tmp_path):
    name = "vit_base_patch16_rpn_224"
    model = built(name)
    with pytest.raises(ValueError, match=f"no {name!r}, the architecture in its"):
        said_and_error(of_timm(name, model), model, tmp_path)


@pytest.mark.parametrize("name", ["vit_small", "vit_base_patch16", "", "my/vit_x", 3])
def test_other_names_say_nothing(name, tmp_path):
    """Such as those of MAE and MoCo v3, and of a hub's model with a config."""
    model = built("vit_base_patch16_clip_quickgelu_224")
    content = of_timm(name, model)
    said, error = said_and_error(content, model, tmp_path, num_heads=2)
    assert "`activation`" in said and "`norm_epsilon`" in said and error > 1e-4
