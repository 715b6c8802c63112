"""Makes the cases `open_clip_quick` and `open_clip_clipa`.

    python tests/golden/make_open_clip.py

open_clip-torch 3.3.0 computes every number; this script samples the weights and
writes the files. open_clip is no dependency of the tests.
"""

import json
import pathlib

import numpy as np
import torch
from open_clip.loss import ClipLoss, SigLipLoss
from open_clip.model import CLIP, resize_pos_embed
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent
VISION = {
    "image_size": 32,
    "patch_size": 8,
    "width": 48,
    "head_width": 16,
    "layers": 2,
    "mlp_ratio": 2.0,
}
TEXT = {"context_length": 4, "vocab_size": 10, "width": 8, "heads": 1, "layers": 1}
CLIPA = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
CASES = {
    "open_clip_quick": {"vision_cfg": VISION, "quick_gelu": True},
    "open_clip_clipa": {
        "vision_cfg": {**VISION, **CLIPA, "ls_init_value": 0.1, "qk_norm": True},
    },
}


def sample(model, rng):
    """As in the other cases: a small patch embedding, class token and positions,
    so that a wrong epsilon shows."""
    for name, parameter in model.named_parameters():
        value = 0.2 * rng.normal(size=tuple(parameter.shape))
        if "embedding" in name or "conv1" in name:
            value *= 0.1
        elif parameter.ndim == 1 and name.endswith(("weight", "gamma")):
            value += 1
        parameter.data = torch.tensor(value, dtype=torch.float32)


def batch_of(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@torch.no_grad()
def make(case, options):
    rng = np.random.default_rng(len(case))
    config = {"embed_dim": 7, "text_cfg": TEXT, **options}
    model = CLIP(**config).eval()
    sample(model, rng)
    image = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    found = {"image": image}
    for i, block in enumerate(model.visual.transformer.resblocks):
        block.register_forward_hook(
            lambda _, __, y, i=i: found.update({f"block_{i}": y.numpy()})
        )
    found["logits"] = model.visual(batch_of(image)).numpy()
    # Positions are resampled when a file is loaded into a model of another size.
    resized = {**config, "vision_cfg": {**config["vision_cfg"], "image_size": (24, 48)}}
    state, other = model.state_dict(), CLIP(**resized).eval()
    resize_pos_embed(state, other)
    other.load_state_dict(state)
    found["resized_image"] = rng.uniform(-1, 1, (1, 24, 48, 3)).astype("float32")
    batch = batch_of(found["resized_image"])
    found["resized_logits"] = other.visual(batch).numpy()
    found["ids"] = rng.integers(0, 9, (3, 4)).astype("int32")
    found["ids"][:, 2] = 9  # the end of the text, which has the highest id
    ids = torch.from_numpy(found["ids"])
    found["texts"] = model.encode_text(ids, normalize=True).numpy()
    found["logits_per_image"] = model.get_logits(batch_of(image), ids)[0].numpy()
    pair = (
        model.encode_image(batch_of(image), normalize=True),
        model.encode_text(ids[:2], normalize=True),
    )
    scale, bias = model.logit_scale.exp(), torch.tensor(-1.0)
    losses = ClipLoss()(*pair, scale), SigLipLoss()(*pair, scale, bias)
    found["losses"] = np.array([loss.item() for loss in losses], "float32")
    folder = FOLDER / case
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    np.savez_compressed(folder / "io.npz", **found)
    content = json.dumps({"model_cfg": config, "preprocess_cfg": {}}, indent=1)
    (folder / "open_clip_config.json").write_text(content + "\n")


if __name__ == "__main__":
    for case, options in CASES.items():
        make(case, options)
