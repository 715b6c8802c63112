"""Learning rates that fall from the head to the patches."""

import re

_BLOCK = re.compile(r"block_(\d+)")
# What comes before the blocks, a hybrid's ResNet among it.
_FIRST = re.compile(
    r"(patch_embedding|class_token|distillation_token|register_tokens"
    r"|mask_token|position_embedding|pre_norm|root_.*|stage_.*)"
)


def layer_scales(paths, decay):
    """Returns the share of the learning rate that each variable has.

    As in the fine-tuning of "Masked Autoencoders Are Scalable Vision
    Learners" (https://arxiv.org/abs/2111.06377, Appendix A.1) and of BEiT:
    `decay` to the power of the layers above. The head and the last norm have
    1, the last block `decay`, what comes before the first block the least.

    Args:
        paths: List of variables' paths.
        decay: Float in (0, 1].

    Returns:
        List of floats.

    Raises:
        ValueError: if `decay` is out of range, or there are no blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(
            f"`layer_decay` must be in (0, 1]. Received: layer_decay={decay}"
        )
    blocks = [_block(path) for path in paths]
    known = [number for number in blocks if number is not None]
    if not known:
        raise ValueError(
            "`layer_decay` counts the blocks of a Vision Transformer, and "
            "this model has none. Leave it out."
        )
    top = max(known) + 2
    return [
        decay ** (top - _depth(path, block, top))
        for path, block in zip(paths, blocks, strict=True)
    ]


def _block(path):
    for part in path.split("/"):
        match = _BLOCK.fullmatch(part)
        if match:
            return int(match[1])
    return None


def _depth(path, block, top):
    if block is not None:
        return block + 1
    first = any(_FIRST.fullmatch(part) for part in path.split("/"))
    return 0 if first else top
