"""What a ResNet is, alone (BiT) or before a Vision Transformer (hybrid)."""

import re

# What the arrays of a ResNet cannot say and its code always does. Four codes
# run like-named arrays with four different sets of constants.
RULES = {
    # google-research/vision_transformer, models_resnet.py; big_vision, bit.py
    "vit_jax": {
        "group_norm_epsilon": 1e-6,
        "std_epsilon": 1e-5,
        "std_epsilon_place": "std",
        "conv_padding": "same",
        "pool_padding": "same",
    },
    # timm, vision_transformer_hybrid.py; its `padding_same=False` is
    # "symmetric" twice
    "timm": {
        "group_norm_epsilon": 1e-5,
        "std_epsilon": 1e-8,
        "std_epsilon_place": "variance",
        "conv_padding": "same",
        "pool_padding": "same",
    },
    # google-research/big_transfer
    "bit": {
        "group_norm_epsilon": 1e-5,
        "std_epsilon": 1e-10,
        "std_epsilon_place": "variance",
        "conv_padding": "symmetric",
        "pool_padding": "zeros",
    },
    # timm, resnetv2.py
    "timm_bit": {
        "group_norm_epsilon": 1e-5,
        "std_epsilon": 1e-8,
        "std_epsilon_place": "variance",
        "conv_padding": "symmetric",
        "pool_padding": "zeros",
    },
    # big_vision, bit_paper.py: BiT but for the pooling
    "bit_paper": {
        "group_norm_epsilon": 1e-5,
        "std_epsilon": 1e-10,
        "std_epsilon_place": "variance",
        "conv_padding": "symmetric",
        "pool_padding": "symmetric",
    },
}
_ROOT = "root_conv/kernel"
_UNIT = re.compile(r"stage_(\d+)_unit_(\d+)/conv_1/kernel")


def family(paths):
    """Returns "vit", "hybrid" or "bit" from our paths of a model's weights."""
    if _ROOT not in paths:
        return "vit"
    encoder = ("patch_embedding/", "block_")
    return "hybrid" if any(p.startswith(encoder) for p in paths) else "bit"


def layers_of(paths):
    """Returns the number of units of each stage, `(3, 4, 9)`."""
    numbers = [
        tuple(map(int, match.groups()))
        for match in map(_UNIT.fullmatch, paths)
        if match
    ]
    # As many as are there: the loader names those with higher numbers.
    stages = {stage for stage, _ in numbers}
    return tuple(
        max(1, sum(other == stage for other, _ in numbers))
        for stage in range(1, len(stages) + 1)
    )


def stride(layers):
    """Returns how many pixels a side become one of the feature map."""
    return 4 * 2 ** max(len(layers) - 1, 0)


def facts(shapes):
    """Returns the arguments that a ResNet's weights tell, and `channels`.

    Args:
        shapes: Dict of our paths to shapes.

    Raises:
        ValueError: if the root's kernel is none of a convolution.
    """
    root = shapes[_ROOT]
    if len(root) != 4:
        raise ValueError(
            f"The kernel of a ResNet's root has 4 axes. Received: {root}"
        )
    return {
        "resnet_layers": layers_of(shapes),
        "width_factor": root[3] / 64,
        "preactivation": "root_norm/gamma" not in shapes,
        "channels": root[2],
    }


def bit_facts(shapes):
    """Returns the arguments of `BiT` that weights tell, and two that are
    none: `channels`, and `num_heads`, of which it has none."""
    return {
        **facts(shapes),
        "classes": shapes.get("head/bias", (None,))[0],
        "num_heads": None,
    }


def rules_of(configs):
    """Returns the rules that a model's layers follow.

    Args:
        configs: Dict of layers' names to their configs.
    """
    root = configs["root_conv"]
    norm = configs.get("root_norm")
    unit = configs.get("stage_1_unit_1")
    epsilon = norm["epsilon"] if norm else unit["group_norm_epsilon"]
    return {
        "group_norm_epsilon": epsilon,
        "std_epsilon": root["epsilon"],
        "std_epsilon_place": root["epsilon_place"],
        "conv_padding": root["padding"],
        "pool_padding": configs["root"]["padding"],
    }
