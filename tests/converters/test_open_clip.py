"""Image towers of open_clip and OpenAI's CLIP: golden outputs, and back."""

import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, open_checkpoint, save
from keras_vit.weights.files import read, write
from tests import golden_data, originals
from tests.harness import numpy

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
QUICK, CLIPA = golden_data.OPEN_CLIP
on_torch = pytest.mark.backends("torch")


def outputs(model, images):
    return numpy(model(images, training=False))


@pytest.mark.parametrize("case", golden_data.OPEN_CLIP)
@pytest.mark.usefixtures("eager")
def test_outputs_match_open_clip(case, record_error):
    golden, folder = golden_data.io(case), golden_data.folder(case)
    with pytest.warns(UserWarning, match="18 arrays that are not part"):
        model = load(folder)
        resized = load(folder, input_shape=golden["resized_image"].shape[1:])
    extract = keras_vit.feature_extractor(model, ["block_0", "block_1", "head"])
    found = {name: numpy(x) for name, x in extract(golden["image"]).items()}
    found["logits"] = found.pop("head")
    found["resized_logits"] = outputs(resized, golden["resized_image"])
    for name, array in found.items():
        error = np.abs(array - golden[name]).max()
        record_error(case, name, error, golden_data.TOLERANCE)


@on_torch
@pytest.mark.filterwarnings("ignore:.*(not part of|heads)")
@pytest.mark.parametrize("case", golden_data.OPEN_CLIP)
@pytest.mark.parametrize("variant", ["", "tower"])
def test_tower_is_written_back_bit_for_bit(case, variant, tmp_path):
    source, path = golden_data.folder(case), tmp_path / "a.safetensors"
    save(load(source), path, f"open_clip:{variant}")
    prefix, found = "visual.", read(path)
    if variant:
        found = {prefix + key: array for key, array in found.items()}
    expected = {k: a for k, a in read(source).items() if k.startswith(prefix)}
    golden_data.assert_same(found, expected)
    # Without a config, the pooling follows from the norms before the blocks.
    golden = golden_data.io(case)
    given = {"num_heads": 3, "activation": {QUICK: "quick_gelu"}.get(case, "gelu")}
    again = outputs(load(path, **given), golden["image"])
    np.testing.assert_allclose(again, golden["logits"], rtol=0, atol=3e-5)


@pytest.fixture
def quick(tmp_path):
    folder = tmp_path / "quick"
    shutil.copytree(golden_data.folder(QUICK), folder)
    return folder


def edit(folder, **changes):
    """Changes the entries about the image tower in a config."""
    config = json.loads((folder / CONFIG).read_text())
    config["model_cfg"]["vision_cfg"] |= changes
    (folder / CONFIG).write_text(json.dumps(config))


def module_of(torch, arrays):
    """A module with the given parameters under their keys."""
    root = torch.nn.Module()
    for key, array in arrays.items():
        *path, name = key.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        tensor = torch.tensor(array, device="cpu")
        module.register_parameter(name, torch.nn.Parameter(tensor))
    return root


@on_torch
@pytest.mark.filterwarnings("ignore:.*(not part of|heads)")
@pytest.mark.parametrize("kind", ["script", "state.pt", "state.safetensors"])
def test_openais_files_are_known_by_a_size_that_they_hold(kind, tmp_path):
    """OpenAI's files are TorchScript programs, whose attributes are tensors of
    all kinds; their activation is the quick GELU."""
    torch = pytest.importorskip("torch")
    golden, path = golden_data.io(QUICK), tmp_path / kind
    module = module_of(torch, read(golden_data.folder(QUICK)))
    for name in ("input_resolution", "context_length", "vocab_size"):
        module.register_buffer(name, torch.tensor(32, device="cpu"))
    mask = torch.full((2, 2), -np.inf, device="cpu")
    if kind == "script":
        path = path.with_suffix(".pt")
        module.register_buffer("attn_mask", mask)
        torch.jit.script(module).save(path)
    elif kind == "state.pt":
        torch.save(module.state_dict(), path)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(module.state_dict(), path)
    found = outputs(load(path, num_heads=3), golden["image"])
    np.testing.assert_allclose(found, golden["logits"], rtol=0, atol=3e-5)


@on_torch
@pytest.mark.filterwarnings("ignore:.*(not part of|heads)")
def test_config_decides_else_open_clips_default_with_a_warning(quick):
    image = golden_data.io(QUICK)["image"]
    (quick / CONFIG).rename(quick / "kept")
    with pytest.warns(UserWarning, match="does not store `activation`.*'quick_gelu'"):
        default = outputs(load(quick, num_heads=3), image)
    (quick / "kept").rename(quick / CONFIG)
    exact = outputs(load(quick, activation="gelu"), image)
    np.testing.assert_array_equal(default, exact)
    assert open_checkpoint(quick).preprocess_mode == "clip"
    edit(quick, norm_kwargs={"eps": 1e-3}, head_width=24, pool_type="avg")
    config = json.loads((quick / CONFIG).read_text())
    config["preprocess_cfg"] = {"mean": [0.5] * 3, "std": [0.5] * 3}
    (quick / CONFIG).write_text(json.dumps(config))
    checkpoint = open_checkpoint(quick)
    expected = {"norm_epsilon": 1e-3, "num_heads": 2, "pooling": "gap"}
    assert expected.items() <= checkpoint.arguments().items()
    assert checkpoint.preprocess_mode == "tf"
    edit(quick, act_kwargs={"negative_slope": 0.1})
    with pytest.raises(ValueError, match="'act_kwargs' in its open_clip_config"):
        load(quick)


@on_torch
@pytest.mark.filterwarnings("ignore:.*(not part of|heads)")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["token", "gap", "map", "pre-norm"])
def test_models_of_timm_with_a_projection(name, bias, tmp_path):
    """As in open_clip's `TimmModel`, whose projection follows the pooling."""
    torch = pytest.importorskip("torch")
    case = originals.TIMM[name]
    trunk = originals.build(case, num_classes=0)
    with torch.device("cpu"):
        head = torch.nn.Linear(32, 7, bias=bias)
    arrays = {
        **{f"visual.trunk.{k}": x.numpy() for k, x in trunk.state_dict().items()},
        **{f"visual.head.proj.{k}": x.numpy() for k, x in head.state_dict().items()},
        "text.ln_final.weight": np.ones(3, "float32"),
    }
    write(arrays, tmp_path / "a.safetensors")
    kind = {"gap": "avg"}.get(name, name if name == "map" else "token")
    model = {"timm_model_name": "vit_tiny_patch8_32", "timm_pool": kind}
    config = {"model_cfg": {"vision_cfg": {**model, "image_size": 32}}}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    images = originals.images(32, 32)
    model = load(tmp_path / "a.safetensors", num_heads=2)
    expected = originals.run(torch.nn.Sequential(trunk, head), images)
    found = outputs(model, images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    format = "open_clip" if name == "map" else "open_clip:trunk"
    save(model, tmp_path / "back.safetensors", format)
    del arrays["text.ln_final.weight"]
    golden_data.assert_same(read(tmp_path / "back.safetensors"), arrays)


@on_torch
def test_what_open_clip_cannot_hold_is_refused(tmp_path):
    folder = golden_data.folder(QUICK)
    with pytest.warns(UserWarning, match="not part of"):
        model = load(folder)
    model.get_layer("head").bias.assign(np.ones(7))
    with pytest.raises(ValueError, match="has no bias in open_clip"):
        save(model, tmp_path / "a.npz", "open_clip")
    with pytest.warns(UserWarning, match="not part of"):
        model = load(folder, pooling="gap")
    with pytest.warns(UserWarning, match="does not store pooling='gap'"):
        save(model, tmp_path / "a.npz", "open_clip")
