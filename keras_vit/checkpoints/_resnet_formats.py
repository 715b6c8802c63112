"""The tables of ResNets: those of the hybrids and BiT."""

import re

from keras_vit.checkpoints._convert import Format
from keras_vit.checkpoints._kinds import FLAX
from keras_vit.checkpoints._kinds import TENSORFLOW
from keras_vit.checkpoints._kinds import TORCH

_OURS = "stage_{s}_unit_{u}"


def postactivation_rows(group="group"):
    """vit_jax's hybrids and big_vision's bit.py; `group` is the kind that the
    group norms are."""
    unit = "block{s}/unit{u}"
    return (
        ("root_conv/*", "conv_root/*", "conv"),
        ("root_norm/*", "gn_root/*", group),
        *(
            row
            for part in ("1", "2", "3", "proj")
            for row in (
                (
                    f"{_OURS}/conv_{part}/*",
                    f"{unit}/conv{part.replace('proj', '_proj')}/*",
                    "conv",
                ),
                (
                    f"{_OURS}/norm_{part}/*",
                    f"{unit}/gn{part.replace('proj', '_proj')}/*",
                    group,
                ),
            )
        ),
    )


def timm_rows(prefix, root="stem.", stages=True):
    """timm's ResNetV2, of both kinds. Its numbers begin at 0."""
    unit = f"{prefix}stages.{{s-1}}.blocks.{{u-1}}"
    rows = [
        ("root_conv/*", f"{prefix}{root}conv.*", "conv"),
        ("root_norm/*", f"{prefix}{root}norm.*", "norm"),
    ]
    if stages:
        for part in "123":
            rows += [
                (f"{_OURS}/conv_{part}/*", f"{unit}.conv{part}.*", "conv"),
                (f"{_OURS}/norm_{part}/*", f"{unit}.norm{part}.*", "norm"),
            ]
        rows += [
            (f"{_OURS}/conv_proj/*", f"{unit}.downsample.conv.*", "conv"),
            (f"{_OURS}/norm_proj/*", f"{unit}.downsample.norm.*", "norm"),
        ]
    return tuple(rows)


def _big_transfer():
    """The released files, dumped from TensorFlow."""
    unit = "block{s}/unit{u:02}"
    conv = "standardized_conv2d/*"
    return Format(
        "",
        TENSORFLOW,
        (
            ("root_conv/*", f"root_block/{conv}", "conv"),
            *(
                row
                for part, letter in zip("123", "abc", strict=True)
                for row in (
                    (
                        f"{_OURS}/norm_{part}/*",
                        f"{unit}/{letter}/group_norm/*",
                        "norm",
                    ),
                    (
                        f"{_OURS}/conv_{part}/*",
                        f"{unit}/{letter}/{conv}",
                        "conv",
                    ),
                )
            ),
            (f"{_OURS}/conv_proj/*", f"{unit}/a/proj/{conv}", "conv"),
            ("final_norm/*", "group_norm/*", "norm"),
            ("head/*", "head/conv2d/*", "pointwise"),
        ),
        prefix="resnet/",
    )


def _bit_paper(name, prefix, group):
    """big_vision's bit_paper.py, which reads and then renames the above."""
    unit = "block{s}/unit{u:02}"
    return Format(
        name,
        FLAX,
        (
            ("root_conv/*", "root_block/conv_root/*", "conv"),
            *(
                row
                for part in "123"
                for row in (
                    (f"{_OURS}/norm_{part}/*", f"{unit}/gn{part}/*", group),
                    (f"{_OURS}/conv_{part}/*", f"{unit}/conv{part}/*", "conv"),
                )
            ),
            (f"{_OURS}/conv_proj/*", f"{unit}/conv_proj/*", "conv"),
            ("final_norm/*", "norm-pre-head/*", group),
            ("head/*", "head/*", "linear"),
        ),
        prefix,
        signs=(f"{prefix}root_block/conv_root/kernel",),
    )


def _bit_v1(name, prefix, group):
    rows = postactivation_rows(group)
    return Format(
        name,
        FLAX,
        (*rows, ("head/*", "head/*", "linear")),
        prefix,
        signs=(f"{prefix}conv_root/kernel",),
    )


# The released one is written for ResNet v2, big_vision's bit.py for v1.
BIT = (
    _big_transfer(),
    _bit_v1("v1", "params/", "flat_group"),
    _bit_v1("v1,bare", "", "flat_group"),
    _bit_v1("v1,old", "params/", "group"),
    _bit_v1("v1,bare,old", "", "group"),
    _bit_paper("bit_paper", "params/", "group"),
    _bit_paper("bit_paper,bare", "", "group"),
)
TIMM_BIT = Format(
    "bit",
    TORCH,
    (
        *timm_rows(""),
        ("final_norm/*", "norm.*", "norm"),
        ("head/*", "head.fc.*", "pointwise"),
    ),
)


def without_counts(arrays):
    """Returns a checkpoint's arrays without what TensorFlow added to names.

    Some of the released BiT files say `standardized_conv2d_7` where others
    say `standardized_conv2d`; the numbers mean nothing.

    Raises:
        ValueError: if two arrays then have one name.
    """
    names = {
        key: re.sub(r"(^resnet/.*/standardized_conv2d)_\d+(?=/)", r"\1", key)
        for key in arrays
    }
    if len(set(names.values())) < len(names):
        found = list(names.values())
        twice = sorted({name for name in found if found.count(name) > 1})
        raise ValueError(
            "Without the numbers that TensorFlow adds, several arrays are "
            f"called {', '.join(twice)}."
        )
    return {names[key]: array for key, array in arrays.items()}
