"""Every value in transformers' config.json is honored or refused."""

import dataclasses
import json
import warnings

import keras
import numpy as np
import pytest

from keras_vit.converters import load

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.backends("torch")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
DINOV2 = {k: v for k, v in SIZES.items() if k != "intermediate_size"}
# model type: (config, model, its output, sizes)
FAMILIES = {
    "vit": ("ViTConfig", "ViTModel", "pooler_output", SIZES),
    "deit": ("DeiTConfig", "DeiTModel", "pooler_output", SIZES),
    "vit_mae": ("ViTMAEConfig", "ViTMAEModel", "last_hidden_state", SIZES),
    "dinov2": ("Dinov2Config", "Dinov2Model", "last_hidden_state", DINOV2),
    "dinov2_with_registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersForImageClassification",
        "logits",
        DINOV2,
    ),
    "dinov3_vit": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        "last_hidden_state",
        SIZES,
    ),
    "siglip_vision_model": (
        "SiglipVisionConfig",
        "SiglipVisionModel",
        "pooler_output",
        SIZES,
    ),
    "clip_vision_model": (
        "CLIPVisionConfig",
        "CLIPVisionModel",
        "pooler_output",
        SIZES,
    ),
}
# Values of each field that are not the default.
FIELDS = {
    "hidden_size": [48],
    "intermediate_size": [40],
    "num_hidden_layers": [2],
    "num_attention_heads": [4],
    "num_channels": [1],
    "image_size": [24, [8, 24]],
    "patch_size": [8, [8, 4]],
    "mlp_ratio": [2],
    "hidden_act": [
        *("relu", "gelu_new", "gelu_python", "quick_gelu", "silu", "mish"),
        *("leaky_relu", "gelu_10", "hardswish", "relu2", "laplace"),
    ],
    "layer_norm_eps": [0.1],
    "qkv_bias": [False],
    "query_bias": [False],
    "key_bias": [True],
    "value_bias": [False],
    "proj_bias": [False],
    "mlp_bias": [False],
    "pooler_act": ["relu", "gelu", "sigmoid"],
    "pooler_output_size": [12],
    "use_swiglu_ffn": [True],
    "use_gated_mlp": [True],
    "use_mask_token": [False],
    "num_register_tokens": [2, 0],
    "rope_theta": [30.0],
    "vision_use_head": [False],
    "mask_ratio": [0.0, 0.5],
}
# Fields of training, of initial values, of `...Backbone`, of the decoders of
# pre-training, of a projection that the model lacks, and of names and outputs
# do not change this output.
NO_EFFECT = {
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("attention_dropout", "drop_path_rate", "initializer_range"),
    *("initializer_factor", "layerscale_value"),
    *("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"),
    *("apply_layernorm", "reshape_hidden_states"),
    *("_out_features", "_out_indices"),
    *("encoder_stride", "decoder_num_attention_heads", "decoder_hidden_size"),
    *("decoder_num_hidden_layers", "decoder_intermediate_size"),
    *("norm_pix_loss", "projection_dim"),
    *("transformers_version", "architectures", "output_hidden_states"),
    *("return_dict", "dtype", "chunk_size_feed_forward"),
    *("is_encoder_decoder", "id2label", "label2id", "problem_type"),
}
# Sizes that are not square, which transformers itself cannot run.
THEY_FAIL = {
    ("siglip_vision_model", "image_size"),
    ("siglip_vision_model", "patch_size"),
    ("clip_vision_model", "image_size"),
    ("clip_vision_model", "patch_size"),
    ("dinov2", "image_size"),
    ("dinov2_with_registers", "image_size"),
}


def fields_of(family):
    config = getattr(transformers, FAMILIES[family][0])
    return {field.name for field in dataclasses.fields(config)}


def values_of(family, field):
    """Activations are read by one table: the other families take two."""
    if field == "hidden_act" and family != "vit":
        return ["quick_gelu", "laplace"]
    return FIELDS[field]


def build(family, **options):
    """Their model with random weights, none of which is zero."""
    config, model, _, sizes = FAMILIES[family]
    config = getattr(transformers, config)(**{**sizes, **options})
    torch.manual_seed(0)
    with torch.device("cpu"):
        found = getattr(transformers, model)(config)
        for array in found.parameters():
            torch.nn.init.normal_(array, 0.2, 0.3)
    return found.eval()


def theirs(model, family, images):
    batch = torch.tensor(images).cpu().permute(0, 3, 1, 2)
    options = {}
    if family == "vit_mae":  # without shuffling the patches
        model.config.mask_ratio = 0.0
        size = (model.embeddings.patch_embeddings.num_patches,)
        options["noise"] = torch.arange(*size, device="cpu")[None].float()
    with torch.no_grad():
        outputs = model(batch, **options)
    name = FAMILIES[family][2]
    found = outputs[name if name in outputs else "last_hidden_state"]
    return found.numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_has_a_case(family):
    assert fields_of(family) <= {*FIELDS, *NO_EFFECT}


@pytest.mark.parametrize(
    "family, field, value",
    [
        (family, field, value)
        for family in FAMILIES
        for field in sorted(fields_of(family) & FIELDS.keys())
        for value in values_of(family, field)
        if not (isinstance(value, list) and (family, field) in THEY_FAIL)
    ],
)
def test_field_gives_their_numbers_or_is_refused(family, field, value, tmp_path):
    options = {field: value}
    if field == "use_gated_mlp":
        options["hidden_act"] = "silu"
    model = build(family, **options)
    model.save_pretrained(tmp_path)
    config = model.config
    size, channels = config.image_size, config.num_channels
    size = (size, size) if isinstance(size, int) else tuple(size)
    images = np.random.default_rng(1).uniform(-1, 1, (1, *size, channels))
    images = images.astype("float32")
    expected = theirs(model, family, images)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = load(tmp_path, input_shape=images.shape[1:])
    except ValueError as error:
        assert field in str(error), error
        assert str(value) in str(error), error
        return
    found = keras.ops.convert_to_numpy(ours(images))
    limit = 3e-5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


@pytest.mark.parametrize(
    "family, key, value",
    [
        ("vit", "num_hidden_layers", 2),
        ("dinov2", "num_hidden_layers", 0),
        ("vit", "qkv_bias", False),
        ("dinov3_vit", "key_bias", True),
        ("vit", "hidden_act", "leaky_relu"),
        ("vit", "hidden_act", "sigmoid"),
        ("dinov3_vit", "hidden_act", "leaky_relu"),
        ("dinov3_vit", "rope_theta", None),
        ("vit", "pooler_act", "relu"),
    ],
)
def test_config_of_another_model_is_refused(family, key, value, tmp_path):
    build(family).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=f"'{key}'.*Received: {value!r}"):
        load(tmp_path)


def test_early_configs_of_clip_have_another_name_of_their_entries(tmp_path):
    build("clip_vision_model").save_pretrained(tmp_path)
    entries = json.loads((tmp_path / "config.json").read_text())
    config = {
        "model_type": "clip",
        "vision_config": entries,
        "vision_config_dict": {**entries, "hidden_act": "gelu"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert read.vision_config.hidden_act == "gelu"
    block = load(tmp_path).get_layer("block_0")
    assert block.get_config()["activation"] == "gelu"
