"""The tables of Hugging Face's transformers."""

from dataclasses import replace

from keras_vit.checkpoints._convert import Format
from keras_vit.checkpoints._decoder import decoder_rows
from keras_vit.checkpoints._kinds import TORCH
from keras_vit.checkpoints._torch_formats import QKV


def _huggingface(name, prefix, attention, rest):
    """transformers: `attention` and `rest` hold the names of a block's parts,
    which differ between ViT and DINOv2 and between files and memory."""
    layer = f"{prefix}{rest['layer']}"
    tokens = (
        ("class_token/tokens", "cls_token", "array"),
        *rest.get("tokens", ()),
        ("mask_token/tokens", "mask_token", rest["mask"]),
        ("position_embedding/embedding", "position_embeddings", "array"),
    )
    head = "cls_classifier" if rest.get("teacher") else "classifier"
    return Format(
        name,
        TORCH,
        (
            (
                "patch_embedding/*",
                f"{prefix}embeddings.patch_embeddings.projection.*",
                "conv",
            ),
            *(
                (ours, f"{prefix}embeddings.{theirs}", kind)
                for ours, theirs, kind in tokens
            ),
            ("block_{i}/norm_1/*", f"{layer}.{rest['norms'][0]}.*", "norm"),
            *(
                (
                    f"block_{{i}}/attention/{ours}/*",
                    f"{layer}.{theirs}.*",
                    "merge" if ours == "attention_output" else "heads",
                )
                for ours, theirs in zip(
                    (*QKV, "attention_output"), attention, strict=True
                )
            ),
            (
                "block_{i}/scale_1/gamma",
                f"{layer}.layer_scale1.lambda1",
                "array",
            ),
            ("block_{i}/norm_2/*", f"{layer}.{rest['norms'][1]}.*", "norm"),
            *(
                ("block_{i}/mlp/dense_1/*", gates, "gated")
                if isinstance(gates, tuple)
                else ("block_{i}/mlp/dense_1/*", gates, "linear")
                for gates in (_under(layer, rest["mlp"][0]),)
            ),
            (
                "block_{i}/mlp/dense_2/*",
                _under(layer, rest["mlp"][1]),
                "linear",
            ),
            (
                "block_{i}/scale_2/gamma",
                f"{layer}.layer_scale2.lambda1",
                "array",
            ),
            ("encoder_norm/*", f"{prefix}layernorm.*", "norm"),
            ("pre_logits/*", f"{prefix}pooler.dense.*", "linear"),
            ("head/*", f"{head}.*", "linear"),
            ("distillation_head/*", "distillation_classifier.*", "linear"),
        ),
    )


def _under(layer, names):
    if isinstance(names, tuple):
        return tuple(f"{layer}.{name}.*" for name in names)
    return f"{layer}.{names}.*"


# transformers 5 renames modules in memory, and keeps these names in files.
_IN_FILES = (
    *(f"attention.attention.{name}" for name in QKV),
    "attention.output.dense",
)
_IN_MEMORY = tuple(f"attention.{letter}_proj" for letter in "qkvo")
_VIT = {
    "layer": "encoder.layer.{i}",
    "norms": ("layernorm_before", "layernorm_after"),
    "mlp": ("intermediate.dense", "output.dense"),
    "mask": "array",
}
_DISTILLATION = {
    "tokens": (("distillation_token/tokens", "distillation_token", "array"),)
}
_DINOV2 = {
    "layer": "encoder.layer.{i}",
    "norms": ("norm1", "norm2"),
    "mlp": ("mlp.fc1", "mlp.fc2"),
    "mask": "vector",
    "tokens": (("register_tokens/tokens", "register_tokens", "array"),),
}
_NEW_VIT = {**_VIT, "layer": "layers.{i}", "mlp": ("mlp.fc1", "mlp.fc2")}
_SWIGLU = {**_DINOV2, "mlp": ("mlp.weights_in", "mlp.weights_out")}
_NEW_SWIGLU = {
    **_DINOV2,
    "mlp": (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
}
_TEACHER = {**_VIT, **_DISTILLATION, "teacher": True}
# DeiT with one head, or with the pooler of the class token, does not read its
# distillation token again, which is then what a register is.
_UNREAD = {
    "tokens": (("register_tokens/tokens", "distillation_token", "array"),)
}


def _with_decoder(name, rows):
    return replace(_PLAIN, name=name, rows=(*_PLAIN.rows, *rows))


def _deit_bare(name, attention, rest):
    """`DeiTModel` with its pooler."""
    return replace(
        _huggingface(name, "", attention, {**rest, **_UNREAD}),
        required=("embeddings.distillation_token", "pooler.dense.weight"),
    )


_PLAIN = _huggingface("", "vit.", _IN_FILES, _VIT)

HUGGINGFACE = (
    _PLAIN,
    # transformers 5 writes MAE's decoder under other names, and reads both.
    *(
        _with_decoder(
            name,
            decoder_rows(_PLAIN, "vit.encoder.layer.", blocks, "decoder."),
        )
        for name, blocks in (
            ("mae", "decoder.decoder_layers."),
            ("mae-v5", "decoder.decoder_encoder.layer."),
        )
    ),
    _with_decoder("mim", (("decoder/pixels/*", "decoder.0.*", "pointwise"),)),
    # Without a head a ViT's keys are a DeiT's.
    _deit_bare("deit-bare", _IN_FILES, _VIT),
    _huggingface("vit", "", _IN_FILES, {**_VIT, **_DISTILLATION}),
    _huggingface("deit", "deit.", _IN_FILES, {**_VIT, **_UNREAD}),
    _huggingface("deit-teacher", "deit.", _IN_FILES, _TEACHER),
    *(
        _huggingface(f"{name}{kind}", prefix, names, rest)
        for name, prefix in (
            ("dinov2", "dinov2."),
            ("dinov2-reg", "dinov2_with_registers."),
            ("dinov2-bare", ""),
        )
        for kind, names, rest in (
            ("", _IN_FILES, _DINOV2),
            ("-swiglu", _IN_FILES, _SWIGLU),
            ("-v5", _IN_MEMORY, _DINOV2),
            ("-swiglu-v5", _IN_MEMORY, _NEW_SWIGLU),
        )
    ),
    _huggingface("vit-v5", "vit.", _IN_MEMORY, _NEW_VIT),
    _deit_bare("deit-bare-v5", _IN_MEMORY, _NEW_VIT),
    _huggingface("vit-bare-v5", "", _IN_MEMORY, {**_NEW_VIT, **_DISTILLATION}),
    _huggingface("deit-v5", "deit.", _IN_MEMORY, {**_NEW_VIT, **_UNREAD}),
    _huggingface(
        "deit-teacher-v5",
        "deit.",
        _IN_MEMORY,
        {**_NEW_VIT, **_DISTILLATION, "teacher": True},
    ),
)
