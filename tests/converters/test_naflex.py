"""Models of sequences of patches: timm's NaFlexVit and SigLIP 2's NaFlex."""

import functools
import json

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, open_checkpoint, save
from keras_vit.models import with_any_size
from keras_vit.weights.files import read, write
from tests import golden_data, originals
from tests.harness import numpy
from tests.small import tiny

GRIDS = ((1, 1), (1, 7), (9, 2), (2, 3), (5, 4), (4, 5), (6, 6), (13, 1))
GRIDS += ((3, 8), (2, 2))
SIZES = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
# Options of timm's `NaFlexVit`, of which those in config.json are needed to
# read it.
TIMM = {
    "map": {"patch_size": 4, "pos_embed_grid_size": (4, 4)},
    "gap": {
        "global_pool": "avg",
        "reg_tokens": 4,
        "init_values": 0.1,
        "fc_norm": True,
        "pos_embed_grid_size": (5, 4),
        "patch_size": 8,
        "qkv_bias": False,
    },
    "token": {
        "global_pool": "token",
        "class_token": True,
        "reg_tokens": 1,
        "patch_size": [4, 6],
        "pos_embed_interp_mode": "bilinear",
        "act_layer": "gelu_tanh",
    },
    "no-antialias": {"pos_embed_antialias": False, "patch_size": 4},
    "gray": {"in_chans": 1, "patch_size": 5, "pos_embed_grid_size": (6, 2)},
    "pre-norm": {"pre_norm": True, "qk_norm": True, "patch_size": 4},
    "no-positions": {"pos_embed": "none", "patch_size": 4},
    # The architectures of published files, whose config.json has their name.
    "naflexvit_base_patch16_par_gap": {"pos_embed_grid_size": (5, 4)},
    "naflexvit_base_patch16_parfac_gap": {"pos_embed_grid_size": (5, 5)},
    "naflexvit_base_patch16_radio_v3": {"pos_embed_grid_size": (8, 8)},
    "naflexvit_large_patch16_radio_v3": {"pos_embed_grid_size": (4, 4)},
    "factorized": {
        "pos_embed": "factorized",
        "pos_embed_grid_size": (5, 4),
        "patch_size": 4,
    },
}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_patches": 25,
    "patch_size": 4,
}
# class of transformers: options, output, number of arrays that are left out
SIGLIP_CASES = {
    "Siglip2VisionModel": ({}, "pooler_output", 0),
    "Siglip2VisionModel tokens": (
        {"vision_use_head": False, "patch_size": 14},
        "last_hidden_state",
        0,
    ),
    "Siglip2ForImageClassification": (
        {"vision_use_head": False},
        "logits",
        0,
    ),
    "Siglip2Model": ({}, "pooler_output", 40),
}
ON_ALL = ("map", "Siglip2VisionModel", "naflexvit_base_patch16_par_gap")
ON_ALL += ("naflexvit_base_patch16_parfac_gap",)


def cases(names):
    return [
        name
        if name in ON_ALL
        else pytest.param(name, marks=pytest.mark.backends("torch"))
        for name in names
    ]


def batch(patch_size, channels=3):
    rows, columns = np.broadcast_to(patch_size, 2)
    sample = np.random.default_rng(0).normal
    images = [
        sample(size=(h * rows, w * columns, channels)).astype("float32")
        for h, w in GRIDS
    ]
    return keras_vit.data.pack_images(images, (int(rows), int(columns)), 40)


def build(cls, **options):
    import torch

    with torch.device("cpu"):
        model = cls(**options)
        originals.shake(model)
        return model.cpu().eval()


def run(function, *arrays, **named):
    import torch

    with torch.no_grad(), torch.device("cpu"):
        arrays = [torch.tensor(x) for x in arrays]
        return function(*arrays, **{k: torch.tensor(x) for k, x in named.items()})


@pytest.mark.parametrize("name", cases(TIMM))
def test_timm(name, tmp_path, record_error):
    timm = pytest.importorskip("timm")
    from timm.layers import get_act_layer

    options = TIMM[name]
    channels = options.get("in_chans", 3)
    config = {"architecture": "naflexvit_x", "model_args": options}
    if name.startswith("naflexvit_"):
        config = {"architecture": name}
        make = functools.partial(timm.create_model, name)
    else:
        make = timm.models.naflexvit.NaFlexVit
        if "act_layer" in options:  # the class takes it from the config
            assert get_act_layer(options["act_layer"])
    original = build(make, **SIZES, **options)
    patch_size = np.broadcast_to(options.get("patch_size", 16), 2)
    x = batch(patch_size, channels)
    expected = run(original, x[0], patch_coord=x[1], patch_valid=x[2]).numpy()
    state = {k: v.numpy() for k, v in original.state_dict().items()}
    write(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load(tmp_path / "model.safetensors", num_heads=2)
    keras_vit.mixed_sizes(model).save(tmp_path / "mixed.keras")
    for mixed in (keras_vit.mixed_sizes(model), load(tmp_path / "mixed.keras")):
        error = np.abs(numpy(mixed(x)) - expected).max()
        record_error(f"timm_naflex_{name}", "ten sizes", error, 3e-5)
    shape = (*(patch_size * (7, 3)).tolist(), channels)
    alone = load(tmp_path / "model.safetensors", num_heads=2, input_shape=shape)
    # Both aspects are parts of the square that preserves them.
    grid = (3, 7) if name.startswith("naflexvit_") else (7, 3)
    image = np.random.default_rng(1).normal(size=(*patch_size * grid, channels))
    image = image.astype("float32")
    expected = run(original, image.transpose(2, 0, 1)[None]).numpy()
    error = np.abs(numpy(with_any_size(alone)(image[None])) - expected).max()
    record_error(f"timm_naflex_{name}", "another size", error, 3e-5)
    save(model, tmp_path / "back.safetensors", format="timm:naflex")
    golden_data.assert_same(read(tmp_path / "back.safetensors"), state)


@pytest.mark.parametrize("name", cases(SIGLIP_CASES))
def test_siglip_2(name, tmp_path, record_error):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name.split()[0])
    options, output, left_out = SIGLIP_CASES[name]
    vision = {**SIGLIP, **options}
    config = kind.config_class(**vision)
    if kind.config_class is transformers.Siglip2Config:
        text = {k: v for k, v in SIGLIP.items() if "patch" not in k}
        text |= {"vocab_size": 10, "max_position_embeddings": 8}
        config = kind.config_class(vision_config=vision, text_config=text, num_labels=5)
    original = build(kind, config=config)
    x = batch(vision["patch_size"])
    tower = original.vision_model if left_out else original
    found = run(
        tower,
        pixel_values=x[0],
        pixel_attention_mask=x[2].astype("int64"),
        spatial_shapes=np.array(GRIDS),
    )
    # On a CPU, PyTorch 2.13 resamples contiguous positions wrongly to a grid of
    # one column and another number of rows: it is not symmetric.
    kept = [i for i, grid in enumerate(GRIDS) if grid != (13, 1)]
    x = [array[kept] for array in x]
    expected = getattr(found, output).numpy()[kept]
    original.save_pretrained(tmp_path / "theirs")
    checkpoint = open_checkpoint(tmp_path / "theirs", num_heads=2)
    model = load(checkpoint)
    found = numpy(keras_vit.mixed_sizes(model)(x))
    if output == "last_hidden_state":
        found, expected = found[x[2]], expected[x[2]]
    record_error(f"hf_{name}", "ten sizes", np.abs(found - expected).max(), 3e-5)
    save(model, tmp_path / "back")
    arrays, back = read(tmp_path / "theirs"), read(tmp_path / "back")
    assert len(back) == len(arrays) - left_out
    again = transformers.Siglip2VisionModel if left_out else kind
    again = again.from_pretrained(tmp_path / "back")
    if not left_out:
        golden_data.assert_same(back, arrays)
        assert type(again.config) is type(original.config)
    processor = json.loads((tmp_path / "back/preprocessor_config.json").read_text())
    assert processor["image_processor_type"] == "Siglip2ImageProcessor"


@pytest.mark.backends("torch")
def test_what_files_cannot_hold(tmp_path):
    arrays = {"embeds.proj.weight": np.zeros((32, 7 * 3), "float32")}
    with pytest.raises(ValueError, match="patches of 21 values"):
        write(arrays, tmp_path / "a.safetensors")
        open_checkpoint(tmp_path / "a.safetensors", num_heads=2)
    for options, found in (
        ({"rope_type": "axial"}, "rope_type.*'axial'"),
        ({"patchify_channels_last": False}, "channels_last.*True.*False"),
        ({"attn_pool_num_heads": 4}, "attn_pool_num_heads.*None.*4"),
        ({"norm_layer": "rmsnorm"}, "norm_layer.*None.*'rmsnorm'"),
    ):
        config = {"architecture": "naflexvit_x", "model_args": options}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=found):
            open_checkpoint(tmp_path / "a.safetensors", num_heads=2)
    how = {"input_shape": (20, 16, 3), "resampling": "bicubic"}
    for position_embedding, found in (
        ("learned", "position_prefix='all'"),
        ("factorized", "resampling='bicubic'"),
    ):
        model = tiny(**how, position_embedding=position_embedding)
        with pytest.raises(ValueError, match=found):
            save(model, tmp_path / "b.safetensors", format="timm:naflex")
    how |= {"position_prefix": "none", "resampling": "bilinear"}
    for kind, option, value, found in (
        ("learned", "interp_mode", "nearest", "one of.*nearest_antialias"),
        ("learned", "interp_mode", ["bicubic"], r"one of.*\['bicubic'\]"),
        ("learned", "align_corners", True, "one of.*corners_antialias"),
        ("factorized", "ar_preserving", True, "square. Received: 5 x 4"),
    ):
        model = tiny(**how, position_embedding=kind)
        file = tmp_path / "c.safetensors"
        save(model, file, overwrite=True, format="timm:naflex")
        args = {f"pos_embed_{option}": value}
        config = {"architecture": "naflexvit_x", "model_args": args}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=found):
            load(file, num_heads=3)
