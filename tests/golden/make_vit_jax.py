"""Makes the cases `vit_jax_hybrid_small` and `vit_jax_hybrid_small_stem`.

    python tests/golden/make_vit_jax.py SOURCE

SOURCE is a checkout of google-research/vision_transformer, whose code computes
every number; this script samples the weights and writes the files. Flax is no
dependency of the tests. Filters, the first norm and the second image have the
scales described in README.md, so that every constant affects the logits.

Names, and the shape of group norms, are those of the released files, which an
older Flax wrote.
"""

import json
import pathlib
import re
import sys
import types

import jax
import numpy as np
from flax import linen, traverse_util

FOLDER = pathlib.Path(__file__).parent
RELEASED = (
    (r"MlpBlock_0", "MlpBlock_3"),
    (r"LayerNorm_1", "LayerNorm_2"),
    (r"MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"),
)


def sample(name, shape, rng):
    value = rng.normal(size=shape)
    if name.endswith("scale"):
        value = 1 + 0.2 * value
    elif len(shape) == 1 or name.endswith("bias"):
        value *= 0.2
    elif "conv" in name:
        if "conv3" in name or "conv_proj" in name:
            value *= np.exp2(-12 * np.arange(shape[-1]) / (shape[-1] - 1))
        if "conv2" in name:  # few distinct values: a smaller file
            value = np.round(value * 8) / 8
    else:
        value /= shape[0] ** 0.5
    if name.startswith("block1/unit1/gn1/"):
        value *= 2e-3
    if name == "cls" or "embedding" in name:
        value *= 0.02
    return value.astype("float32")


def make(case, seed, size, layers, patch):
    from vit_jax import models_vit

    rng = np.random.default_rng(seed)
    model = models_vit.VisionTransformer(
        num_classes=7,
        patches=types.SimpleNamespace(size=(patch, patch)),
        transformer={
            "num_layers": 1,
            "mlp_dim": 48,
            "num_heads": 3,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        },
        hidden_size=24,
        resnet=types.SimpleNamespace(num_layers=layers, width_factor=0.5),
    )
    image = rng.uniform(-1, 1, size=(2, *size, 3)).astype("float32")
    image[1] /= 512
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), image, train=False))[
        "params"
    ]
    flat = traverse_util.flatten_dict(shapes, sep="/")
    flat = {name: sample(name, a.shape, rng) for name, a in flat.items()}
    with jax.default_matmul_precision("highest"):
        logits, kept = model.apply(
            {"params": traverse_util.unflatten_dict(flat, sep="/")},
            image,
            train=False,
            capture_intermediates=lambda module, method: (
                isinstance(module, linen.Module) and method == "__call__"
            ),
        )
    found = traverse_util.flatten_dict(kept["intermediates"], sep="/")
    names = {
        "embedding": "embedding",
        "block_0": "Transformer/encoderblock_0",
        "encoded": "Transformer/encoder_norm",
        "pre_logits": "pre_logits",
        **{f"stage_{i}": f"block{i}" for i in range(1, len(layers) + 1)},
    }
    arrays = {
        name: np.asarray(found[f"{path}/__call__"][0]) for name, path in names.items()
    }
    folder = FOLDER / case
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "weights.npz", **as_released(flat))
    np.savez_compressed(
        folder / "io.npz", image=image, logits=np.asarray(logits), **arrays
    )
    config = {
        "case": case,
        "source": "google-research/vision_transformer",
        "naming": "released",
        "resnet": {"num_layers": layers, "width_factor": 0.5},
        "patch_size": [patch, patch],
        "seed": seed,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def as_released(flat):
    released = {}
    for name, array in flat.items():
        for ours, theirs in RELEASED:
            name = re.sub(ours, theirs, name)
        is_group = re.search(r"\bgn\w*/", name)
        released[name] = array.reshape(1, 1, 1, -1) if is_group else array
    return released


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    make("vit_jax_hybrid_small", 1, (32, 24), (2, 1), 1)
    make("vit_jax_hybrid_small_stem", 2, (32, 32), (), 2)
