"""SigLIP's and CLIP's image towers: transformers, timm and big_vision."""

import contextlib
import json

import numpy as np
import pytest

from keras_vit import convert as _cli
from keras_vit.converters import load
from keras_vit.converters import open_checkpoint
from keras_vit.converters import save
from keras_vit.weights.files import read
from keras_vit.weights.files import write
from tests import golden_data
from tests import originals
from tests.harness import numpy
from tests.markers import on_all
from tests.originals import images

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 8,
}
# class: (class of its config, options, its output, arrays that are left out)
TOWERS = {
    "siglip": ("SiglipVisionModel", {}, "pooler_output", 0),
    "siglip-tokens": (
        "SiglipVisionModel",
        {"vision_use_head": False},
        "last_hidden_state",
        0,
    ),
    "siglip-classifier": (
        "SiglipForImageClassification",
        {"vision_use_head": False},
        "logits",
        0,
    ),
    "siglip-unread-pooling": ("SiglipForImageClassification", {}, "logits", 11),
    "siglip-two-towers": ("SiglipModel", {}, "pooler_output", 24),
    "clip": ("CLIPVisionModel", {}, "pooler_output", 0),
    "clip-projection": (
        "CLIPVisionModelWithProjection",
        {"projection_dim": 24},
        "image_embeds",
        0,
    ),
    "clip-two-towers": ("CLIPModel", {"projection_dim": 24}, None, 22),
}
# One of each kind compiles on every backend.
NAMES = on_all(TOWERS, ("siglip", "clip-projection"))
SIZES = ((16, 16), (24, 24), (12, 28))


def build(name):
    """Their model with random weights, none of which is zero."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, options, _, _ = TOWERS[name]
    torch.manual_seed(0)
    vision = {**VISION, **options}
    with torch.device("cpu"):
        cls = getattr(transformers, kind)
        if cls.config_class.model_type in ("siglip", "clip"):
            vision = {
                "vision_config": vision,
                "text_config": TEXT,
                "num_labels": 5,
                "projection_dim": 24,
            }
        model = cls(cls.config_class(**vision))
    originals.shake(model)
    return model.cpu().eval()


def output(name, model, images):
    kind, _, field, _ = TOWERS[name]
    options = {"interpolate_pos_encoding": True, "field": field}
    if kind != "CLIPModel":
        model = model.vision_model if kind == "SiglipModel" else model
        return originals.run(model, images, **options)
    import torch

    options["field"] = "pooler_output"
    pooled = originals.run(model.vision_model, images, **options)
    with torch.no_grad(), torch.device("cpu"):
        return model.visual_projection(torch.from_numpy(pooled)).numpy()


def run(model, x):
    return numpy(model(x, training=False))


def warns(count):
    if not count:
        return contextlib.nullcontext()
    return pytest.warns(UserWarning, match=f"holds {count} arrays that are no")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("eager")
def test_tower_matches_transformers_at_any_size(name, tmp_path, record_error):
    original, left_out = build(name), TOWERS[name][3]
    original.save_pretrained(tmp_path / "theirs")
    with warns(left_out):
        checkpoint = open_checkpoint(tmp_path / "theirs", num_heads=2)
    model = load(checkpoint, input_shape=(None, None, 3))
    for height, width in SIZES:
        x = images(height, width)
        expected = output(name, original, x)
        found = run(model, x)
        assert found.shape == expected.shape
        error = np.abs(found - expected).max()
        record_error(f"hf_{name}", f"{height} x {width}", error, 1e-5)
    save(load(checkpoint), tmp_path / "back")
    arrays = read(tmp_path / "theirs")
    found = read(tmp_path / "back")
    assert len(found) == len(arrays) - left_out
    if not left_out:
        golden_data.assert_same(found, arrays)
        old, new = (
            json.loads((tmp_path / folder / "config.json").read_text())
            for folder in ("theirs", "back")
        )
        assert old["architectures"] == new["architectures"]
        assert old["model_type"] == new["model_type"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name", ["siglip", "clip-projection", "clip", "clip-two-towers"]
)
@pytest.mark.filterwarnings("ignore:.*arrays that are no part of")
def test_every_library_that_has_the_tower_verifies_it(name, tmp_path, capsys):
    pytest.importorskip("timm")
    build(name).save_pretrained(tmp_path / "a")
    target, layout = str(tmp_path / "b.safetensors"), "timm"
    if name == "siglip":
        target, layout = str(tmp_path / "b.npz"), "big_vision"
    options = ["--to", layout, "--verify"]
    assert _cli.main([str(tmp_path / "a"), target, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    ran = [line for line in lines if line.endswith("same")]
    for library in ("keras_vit", "transformers", "timm"):
        assert any(f"in {library}" in line for line in ran), lines
    # Back, with what the layout does not store.
    settings = {"num_heads": 2, **keras_vit_arguments(name)}
    _cli.convert(target, tmp_path / "back", to="huggingface", settings=settings)
    arrays = read(tmp_path / "a")
    if name == "clip-two-towers":
        dropped = ("text_model.", "text_projection.", "logit_scale")
        arrays = {k: a for k, a in arrays.items() if not k.startswith(dropped)}
    golden_data.assert_same(read(tmp_path / "back"), arrays)


def keras_vit_arguments(name):
    if name == "siglip":
        return {}
    return {"activation": "quick_gelu", "norm_epsilon": 1e-5}


@pytest.mark.backends("torch")
def test_three_code_bases_of_siglip_are_one_model(tmp_path):
    case = "big_vision_siglip_img"
    path, golden = golden_data.weights_path(case), golden_data.io(case)
    shape = golden["image"].shape[1:]
    grid = {"grid_size": tuple(size // 8 for size in shape[:2])}
    theirs = tmp_path / "model.safetensors"
    _cli.convert(path, theirs, to="huggingface", settings=grid)
    model = load(theirs, num_heads=3, input_shape=shape)
    pooled = next(name for name in ("pooled", "pre_logits") if name in golden)
    error = np.abs(run(model, golden["image"]) - golden[pooled]).max()
    assert error < golden_data.TOLERANCE
    settings = {"num_heads": 3, **grid}
    target = tmp_path / "a.npz"
    _cli.convert(theirs, target, to="big_vision", settings=settings)
    expected = golden_data.normalized(case)
    golden_data.assert_same(read(target), expected)
    # Released files have both towers.
    both = {
        **golden_data.arrays(case),
        "params/txt/head/kernel": np.ones((2, 2), "float32"),
        "params/t": np.ones((1,), "float32"),
        "params/b": np.ones((1,), "float32"),
    }
    write(both, tmp_path / "both.npz")
    with warns(3):
        found = open_checkpoint(tmp_path / "both.npz")
    golden_data.assert_same(found.weights, open_checkpoint(path).weights)


@pytest.mark.backends("torch")
def test_trained_bias_of_a_projection_is_not_dropped(tmp_path):
    build("clip-projection").save_pretrained(tmp_path / "clip")
    model = load(tmp_path / "clip", num_heads=2)
    head = model.get_layer("head")
    assert not run(lambda *_, **__: head.bias, None).any()
    head.bias.assign(head.bias + 0.5)
    with pytest.raises(ValueError, match="largest value is 0.5"):
        save(model, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    save(model, tmp_path / "a.safetensors", "timm")
    assert (read(tmp_path / "a.safetensors")["head.bias"] == 0.5).all()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name,activation",
    [
        ("vit_base_patch16_siglip_224", None),
        ("vit_so400m_patch14_siglip_gap_378", None),
        ("vit_base_patch32_siglip_256", "gelu_tanh"),
        ("vit_large_patch16_siglip_512", "gelu_tanh"),
        ("vit_large_patch16_siglip_384", None),
        ("vit_so400m_patch16_siglip_gap_512", "gelu_tanh"),
        ("vit_giantopt_patch16_siglip_256", "gelu_tanh"),
        ("vit_base_patch32_clip_quickgelu_224", "quick_gelu"),
    ],
)
def test_activation_follows_the_name_of_timms_tower(name, activation):
    from keras_vit.weights.formats.timm import Timm

    found = Timm().read_config({"architecture": name})
    assert found.get("activation") == activation
    if timm := pytest.importorskip("timm"):
        expected = {"gelu_tanh": "GELUTanh", "quick_gelu": "QuickGELU"}
        module = timm.create_model(
            name, depth=1, embed_dim=32, num_heads=2, img_size=64
        )
        kind = type(module.blocks[0].mlp.act).__name__
        assert kind == expected.get(activation, "GELU")
