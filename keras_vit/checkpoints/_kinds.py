"""How each framework stores each kind of layer.

A kind maps our array's name to the framework's and to an einops pattern from
theirs to ours. A pattern is a bijection: read from right to left it is the
way back, so no function exists for either direction.

Letters: i in, o out, h heads, d head size, c channels, y x kernel rows and
columns, n the arrays fused into one.
"""

SAME = "... -> ..."

FLAX = {
    "array": {"": ("", SAME)},
    "norm": {"gamma": ("scale", SAME), "beta": ("bias", SAME)},
    # A group norm; Google's released files have its arrays with four axes.
    "group": {
        "gamma": ("scale", "1 1 1 c -> c"),
        "beta": ("bias", "1 1 1 c -> c"),
    },
    "flat_group": {
        "gamma": ("scale", "c -> c"),
        "beta": ("bias", "c -> c"),
    },
    **dict.fromkeys(
        ("linear", "conv", "heads", "merge"),
        {"kernel": ("kernel", SAME), "bias": ("bias", SAME)},
    ),
}

TENSORFLOW = {
    "norm": {"gamma": ("gamma", SAME), "beta": ("beta", SAME)},
    "conv": {"kernel": ("kernel", SAME)},
    "pointwise": {
        "kernel": ("kernel", "1 1 i o -> i o"),
        "bias": ("bias", SAME),
    },
    "heads": {"kernel": ("kernel", SAME)},
}

TORCH = {
    "array": {"": ("", SAME)},
    "vector": {"": ("", "1 d -> 1 1 d")},
    "gated": {
        "kernel": ("weight", "n o i -> i (n o)"),
        "bias": ("bias", "n o -> (n o)"),
    },
    "norm": {"gamma": ("weight", "c -> c"), "beta": ("bias", "c -> c")},
    "linear": {
        "kernel": ("weight", "o i -> i o"),
        "bias": ("bias", "o -> o"),
    },
    "conv": {
        "kernel": ("weight", "o i y x -> y x i o"),
        "bias": ("bias", "o -> o"),
    },
    "pointwise": {
        "kernel": ("weight", "o i 1 1 -> i o"),
        "bias": ("bias", "o -> o"),
    },
    "heads": {
        "kernel": ("weight", "(h d) i -> i h d"),
        "bias": ("bias", "(h d) -> h d"),
    },
    "fused": {
        "kernel": ("weight", "(n h d) i -> n i h d"),
        "bias": ("bias", "(n h d) -> n h d"),
    },
    "merge": {
        "kernel": ("weight", "o (h d) -> h d o"),
        "bias": ("bias", "o -> o"),
    },
}
