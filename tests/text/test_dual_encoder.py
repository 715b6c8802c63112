"""Dual encoders compute what the original libraries do, and are written back."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import TextConfig
from keras_vit.weights.files import read, write
from tests import golden_data
from tests.harness import numpy
from tests.small import vit

TOLERANCE = 3e-5
END = 59
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
TEXT = {**SIZES, "vocab_size": 62, "max_position_embeddings": 12}
TEXT |= {"bos_token_id": 58, "pad_token_id": 1}
VISION = {**SIZES, "hidden_size": 32, "num_attention_heads": 4, "patch_size": 4}
SQUARE, FLAT = {**VISION, "image_size": 16}, {**VISION, "num_patches": 16}
SIGLIP = {**TEXT, "eos_token_id": END, "projection_size": 32}
# name: model in transformers, config of its texts, and of its images
CASES = {
    "old end": ("CLIP", {**TEXT, "eos_token_id": 2}, SQUARE),
    "new end": ("CLIP", {**TEXT, "eos_token_id": END}, SQUARE),
    "gelu": ("CLIP", {**TEXT, "eos_token_id": END, "hidden_act": "gelu"}, SQUARE),
    "siglip": ("Siglip", SIGLIP, SQUARE),
    "siglip 2": ("Siglip2", SIGLIP, FLAT),
}


def original(name):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kind, text, vision = CASES[name]
    options = {"projection_dim": 20} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(
        config(text_config=text, vision_config=vision, **options)
    ).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.logit_scale.data.fill_(2.5)
    return model


def inputs():
    """Images, and texts that end at different places; in the first, the end is
    twice, in the second padding of its id follows it, and the last has a higher id."""
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    ids = rng.integers(3, END, (4, 9)).astype("int32")
    for row, end in zip(ids, (3, 5, 8, 6), strict=True):
        row[end] = END
    ids[0, 6] = ids[1, 6:] = END
    ids[3, 1] = END + 2
    return images, ids


def run(model, images, ids):
    """Outputs of a model of transformers."""
    torch = pytest.importorskip("torch")
    given = {"pixel_values": torch.from_numpy(images).permute(0, 3, 1, 2)}
    if type(model).__name__ == "Siglip2Model":
        patches = images.reshape(3, 4, 4, 4, 4, 3).swapaxes(2, 3).reshape(3, 16, 48)
        given = {
            "pixel_values": torch.from_numpy(patches),
            "pixel_attention_mask": torch.ones((3, 16), dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]] * 3),
        }
    with torch.no_grad():
        found = model(input_ids=torch.from_numpy(ids).long(), **given)
    names = ("image_embeds", "text_embeds", "logits_per_image")
    return [found[name].numpy() for name in names]


def outputs(model, images, ids):
    found = model.encode_images(images), model.encode_texts(ids)
    return [numpy(x) for x in (*found, model({"images": images, "texts": ids}))]


def assert_equal(found, expected, tolerance=TOLERANCE):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_outputs_match_transformers(name, tmp_path):
    theirs, (images, ids) = original(name), inputs()
    theirs.save_pretrained(tmp_path)
    model = keras_vit.load(tmp_path)
    expected = run(theirs, images, ids)
    assert_equal(outputs(model, images, ids), expected)
    # Without padding, each alone.
    for i, length in enumerate((4, 6, 9, 7)):
        if name.startswith("siglip"):  # takes the last token
            expected = run(theirs, images, ids[i : i + 1, :length])
            found = outputs(model, images, ids[i : i + 1, :length])
            assert_equal(found, expected)
        else:
            found = numpy(model.encode_texts(ids[i : i + 1, :length]))
            np.testing.assert_allclose(found[0], expected[1][i], atol=TOLERANCE)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", CASES)
def test_folder_is_written_back_bit_for_bit(name, tmp_path):
    theirs, (images, ids) = original(name), inputs()
    theirs.save_pretrained(tmp_path / "theirs")
    model = keras_vit.load(tmp_path / "theirs")
    keras_vit.save(model, tmp_path / "ours")
    found, expected = (read(tmp_path / x) for x in ("ours", "theirs"))
    golden_data.assert_same(found, expected)
    again, report = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values())
    # Its config has all that changes outputs.
    assert_equal(run(again.eval(), images, ids), run(theirs, images, ids), 0)


@pytest.mark.parametrize("case", golden_data.OPEN_CLIP)
def test_outputs_match_open_clip(case, record_error):
    golden = golden_data.io(case)
    model = keras_vit.load(golden_data.folder(case))
    texts, images = model.encode_texts(golden["ids"]), golden["image"]
    logits = model({"images": images, "texts": golden["ids"]})
    for name, array in (("texts", texts), ("logits_per_image", logits)):
        error = np.abs(numpy(array) - golden[name]).max()
        record_error(case, name, error, golden_data.TOLERANCE)


@pytest.mark.parametrize("case", golden_data.OPEN_CLIP)
def test_losses_match_open_clip(case):
    golden = golden_data.io(case)
    logits = golden["logits_per_image"][:, :2]
    losses = keras_vit.text.contrastive_loss, keras_vit.text.sigmoid_loss
    found = [numpy(f(logits - i)) for i, f in enumerate(losses)]
    np.testing.assert_allclose(found, golden["losses"], rtol=0, atol=3e-5)
    # Large logits do not overflow.
    large = np.eye(2, dtype="float32") * 1e4
    found = [float(f(large)) for f in losses]
    np.testing.assert_allclose(found, [0, np.log(2)], atol=1e-6)


@pytest.mark.parametrize("bias", [None, -10.0])
def test_fit_learns_pairs_with_a_frozen_image_tower(bias):
    model = small(logit_bias=bias)  # whose projection is sampled
    model.encoder.trainable = False
    before = [numpy(x).copy() for x in model.encoder.weights]
    images, ids = inputs()
    data = {"images": images, "texts": ids[:3]}
    model.compile(keras.optimizers.Adam(0.01))
    losses = model.fit(data, batch_size=3, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert model.evaluate(data, verbose=0) < losses[0]
    for weight, old in zip(model.encoder.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:.*heads", "ignore:.*does not store")
@pytest.mark.parametrize("case", golden_data.OPEN_CLIP)
def test_file_of_open_clip_is_written_back_bit_for_bit(case, tmp_path):
    source = golden_data.folder(case)
    path = tmp_path / "a.safetensors"
    keras_vit.save(keras_vit.load(source), path, format="open_clip")
    golden_data.assert_same(read(path), read(source / "open_clip_model.safetensors"))


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:.*not part of the image model")
def test_arguments_of_the_image_tower_are_those_of_another_function():
    source = golden_data.folder("open_clip_quick")
    words = "leave other arguments out, or .* `keras_vit.converters.load`"
    with pytest.raises(ValueError, match=f"{words}. Received: preprocessing"):
        keras_vit.load(source, preprocessing=True)
    assert keras_vit.converters.load(source, preprocessing=True)


@pytest.mark.backends("torch")
def test_text_tower_of_its_own_module(tmp_path):
    """open_clip's CustomTextCLIP, with a bias as in SigLIP, and a pool type."""
    source = golden_data.folder("open_clip_quick")
    arrays = read(source / "open_clip_model.safetensors")
    names = ("token_embedding", "positional", "transformer", "ln_final", "text_proj")
    custom = {f"text.{k}" if k.startswith(names) else k: x for k, x in arrays.items()}
    projection = custom.pop("text.text_projection")
    custom["text.text_projection.weight"] = np.ascontiguousarray(projection.T)
    custom["text.text_projection.bias"] = np.arange(7, dtype="float32")
    custom["logit_bias"] = np.array(-3, "float32")
    write(custom, tmp_path / "open_clip_model.safetensors")
    config = json.loads((source / "open_clip_config.json").read_text())
    text = {"proj_bias": True, "pool_type": "last", "no_causal_mask": True}
    config["model_cfg"]["text_cfg"] |= text
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    model = keras_vit.load(tmp_path)
    found = model.text_encoder.config
    assert (found.causal, found.pooling, found.projection_bias) == (False, "last", True)
    assert numpy(model.logit_bias) == -3
    path = tmp_path / "back.safetensors"
    with pytest.warns(UserWarning, match="heads"):
        keras_vit.save(model, path, format="open_clip")
    golden_data.assert_same(read(path), custom)


def small(**options):
    text = {"vocabulary_size": 62, "context_length": 12, "hidden_size": 24}
    text |= {"num_layers": 1, "num_heads": 3, "projection_size": 8}
    return keras_vit.DualEncoder(
        vit(input_shape=(16, 16, 3), classes=8),
        keras_vit.text.TextEncoder(TextConfig(**text)),
        **options,
    )


def test_keras_file_keeps_all(tmp_path):
    model = small(logit_scale=1.5, logit_bias=-2.0)
    model.save(tmp_path / "model.keras")
    again = keras_vit.load(tmp_path / "model.keras")
    assert again.text_encoder.config == model.text_encoder.config
    assert keras_vit.config_of(again) == keras_vit.config_of(model)
    assert_equal(outputs(again, *inputs()), outputs(model, *inputs()), 0)
    tower = keras_vit.converters.load(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        tower.predict(inputs()[0], verbose=0),
        model.encoder.predict(inputs()[0], verbose=0),
    )
    model.text_encoder.save(tmp_path / "text.keras")
    texts = keras.models.load_model(tmp_path / "text.keras")
    found, expected = (numpy(x(inputs()[1])) for x in (texts, model.text_encoder))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
@pytest.mark.parametrize("change", ["int8", "lora"])
def test_int8_and_low_rank_updates_are_saved(change, tmp_path):
    model, (images, ids) = small(), inputs()
    before = numpy(model({"images": images, "texts": ids}))
    if change == "int8":
        model.quantize("int8")
        found = numpy(model({"images": images, "texts": ids}))
        assert 0 < np.abs(found - before).max() < 0.05 * np.ptp(before)
    else:
        for tower in (model.encoder, model.text_encoder):
            keras_vit.training.set_trainable(tower, "lora", 2)
        model.compile(keras.optimizers.Adam(0.01))
        data = {"images": images, "texts": ids[:3]}
        losses = model.fit(data, epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras_vit.load(tmp_path / "model.keras")
    assert_equal(outputs(again, images, ids), outputs(model, images, ids), 0)


@pytest.mark.backends("torch")
def test_what_files_cannot_hold_is_refused(tmp_path):
    model = small()
    with pytest.raises(ValueError, match="timm.* has no text tower.*model.encoder"):
        keras_vit.save(model, tmp_path / "a.safetensors", format="timm")
    with pytest.raises(ValueError, match="a dual encoder .*Write a .keras"):
        keras_vit.save(model, tmp_path / "a.weights.h5")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="image towers of CLIP.*type 'vit'.*.keras"):
        keras_vit.save(model, tmp_path / "folder")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="the same number of channels.*8.*16"):
        keras_vit.DualEncoder(model.encoder, small_tower(projection_size=16))
    with pytest.raises(ValueError, match="at most 12 tokens.*13"):
        model.encode_texts(np.zeros((1, 13), "int32"))
    with pytest.raises(ValueError, match="has no tokenizer"):
        model.encode_texts(["a cat"])
    with pytest.raises(ValueError, match="`end_id` must be"):
        TextConfig(pooling="first_end")


def small_tower(**options):
    sizes = {"vocabulary_size": 9, "hidden_size": 24, "num_layers": 1, "num_heads": 3}
    return keras_vit.text.TextEncoder(TextConfig(**{**sizes, **options}))
