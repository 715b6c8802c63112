"""LoRA adapters of PEFT, merged with the weights that they change."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.files import read, write
from keras_vit_programs import convert as _cli
from keras_vit_programs.verification import verify
from tests import golden_data, originals
from tests.harness import numpy

pytestmark = pytest.mark.backends("torch")
CASE = "hf_vit"
RANK, ALPHA, OTHER_ALPHA = 2, 6, 5
# Layers in the memory of transformers 4 and 5, and in files of both.
NAMES = {
    "v4": (
        "encoder.layer.{}.attention.attention.query",
        "encoder.layer.{}.output.dense",
    ),
    "v5": ("layers.{}.attention.q_proj", "layers.{}.mlp.fc2"),
}
CONFIG = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": ALPHA,
    "alpha_pattern": {NAMES["v4"][1].format(1): OTHER_ALPHA, "1.mlp.fc2": OTHER_ALPHA},
    "target_modules": ["query", "dense"],
    "modules_to_save": ["classifier"],
    "use_rslora": False,
    "use_dora": False,
    "loftq_config": {},
    "init_lora_weights": True,
    "base_model_name_or_path": "google/vit-base-patch16-224",
}


def adapter(folder, version="v4", rslora=False):
    """Writes an adapter of the golden ViT and its base; returns the arrays that
    PEFT's formula gives."""
    folder.mkdir()
    rng, merged, changes = np.random.default_rng(0), {}, {}
    arrays = golden_data.arrays(CASE)
    for i in range(2):
        for old, new in zip(NAMES["v4"], NAMES[version], strict=True):
            key = f"vit.{old.format(i)}.weight"
            out, inside = arrays[key].shape
            a, b = rng.normal(size=(RANK, inside)), rng.normal(size=(out, RANK))
            a, b = a.astype("float32"), b.astype("float32")
            last = (i, old) == (1, NAMES["v4"][1])
            alpha = OTHER_ALPHA if last else ALPHA
            scale = alpha / (RANK**0.5 if rslora else RANK)
            merged[key] = arrays[key] + scale * (b @ a)
            name = f"base_model.model.vit.{new.format(i)}"
            changes |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    for name in ("weight", "bias"):
        head = arrays[f"classifier.{name}"][:3] + 1
        changes[f"base_model.model.classifier.{name}"] = head
        merged[f"classifier.{name}"] = head
    write(changes, folder / "adapter_model.safetensors")
    config = {**CONFIG, "use_rslora": rslora}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return {**arrays, **merged}


@pytest.mark.parametrize("version", NAMES)
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("headless", [False, True])
def test_adapter_is_merged_with_its_base(version, rslora, headless, tmp_path):
    expected = adapter(tmp_path / "adapter", version, rslora)
    write(expected, tmp_path / "expected.safetensors")
    base = golden_data.load_path(CASE)
    if headless:  # as in a file of `ViTModel`, which has a pooler
        arrays = read(base)
        arrays = {
            key.removeprefix("vit."): array
            for key, array in arrays.items()
            if "classifier" not in key
        }
        arrays["pooler.dense.weight"] = np.ones((48, 48), "float32")
        arrays["pooler.dense.bias"] = np.ones(48, "float32")
        base = tmp_path / "base.safetensors"
        write(arrays, base)
    given = {"num_heads": 3}
    model = keras_vit.load(tmp_path / "adapter", base=base, **given)
    other = keras_vit.load(tmp_path / "expected.safetensors", **given)
    weights, others = ([numpy(x) for x in m.weights] for m in (model, other))
    for found, array in zip(weights, others, strict=True):
        np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)
    assert model.output_shape == (None, 3)


def test_program_takes_the_base_as_a_setting(tmp_path):
    expected = adapter(tmp_path / "adapter")
    settings = {"base": str(golden_data.load_path(CASE))}
    target = tmp_path / "merged.safetensors"
    _cli.convert(tmp_path / "adapter", target, settings=settings)
    found = read(target)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=0, atol=1e-6)
    same = verify(tmp_path / "adapter", target, settings=settings)[1]
    assert same


def change(folder, **options):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))


def test_base_in_the_config_is_used_if_it_is_a_local_path(tmp_path):
    folder = tmp_path / "adapter"
    adapter(folder)
    with pytest.raises(
        ValueError, match="for the weights 'google/.*base='hf://google/"
    ):
        keras_vit.load(folder)
    change(folder, base_model_name_or_path=str(golden_data.load_path(CASE)))
    model = keras_vit.load(folder)
    for again in (
        keras_vit.load(folder / "adapter_model.safetensors"),
        keras_vit.VisionTransformer(weights=folder, input_shape=model.input_shape[1:]),
    ):
        assert all(
            np.array_equal(numpy(x), numpy(y))
            for x, y in zip(again.weights, model.weights, strict=True)
        )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"use_dora": True}, "use_dora=True, and only plain LoRA"),
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"corda_config": {"a": 1}}, "corda_config="),
        ({"alpha_pattern": {".*query": 3}}, "not regular expressions"),
        ({"lora_alpha": "8"}, "must be a number"),
    ],
)
def test_other_adapters_are_refused(options, words, tmp_path):
    folder, base = tmp_path / "adapter", golden_data.load_path(CASE)
    adapter(folder)
    change(folder, **options)
    with pytest.raises(ValueError, match=words):
        keras_vit.load(folder, base=base)


def test_adapter_and_base_must_fit(tmp_path):
    folder, base = tmp_path / "adapter", golden_data.load_path(CASE)
    adapter(folder)
    with pytest.raises(ValueError, match="It has no such kernels:\n  vit.encoder"):
        keras_vit.load(folder, base=golden_data.load_path("timm_base"))
    with pytest.raises(ValueError, match="is not a PEFT adapter"):
        keras_vit.load(base, base=base)
    arrays = read(folder / "adapter_model.safetensors")
    write(
        {k: a for k, a in arrays.items() if "lora_A" not in k},
        folder / "adapter_model.safetensors",
        overwrite=True,
    )
    with pytest.raises(ValueError, match="has no two matrices that fit"):
        keras_vit.load(folder, base=base)


@pytest.mark.nightly  # peft is not among the packages of the suite
@pytest.mark.parametrize(
    "name, layers",
    [
        ("vit", ["q_proj", "projection"]),
        ("dinov2-swiglu", ["gate_proj", "up_proj"]),
        ("clip-projection", ["v_proj", "fc1", "visual_projection"]),
        ("ijepa", ["o_proj"]),
    ],
)
def test_outputs_are_those_of_peft(name, layers, tmp_path):
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    case = originals.HUGGINGFACE[name]
    original, folder = originals.build(case), tmp_path / "adapter"
    original.save_pretrained(tmp_path / "base")
    options = {"bias": "all", "rank_pattern": {layers[0]: 2}, "lora_alpha": 3}
    with torch.device("cpu"):
        config = peft.LoraConfig(r=4, target_modules=layers, **options)
        model = peft.get_peft_model(original, config)
        originals.shake(model)
        model.save_pretrained(folder)
        base = type(original).from_pretrained(tmp_path / "base")
        merged = peft.PeftModel.from_pretrained(base, folder).merge_and_unload()
    images = originals.images(32, 32)
    expected = originals.output(case, merged.eval(), images)
    model = keras_vit.load(folder, base=tmp_path / "base", **case.given)
    found = numpy(model(images, training=False))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
