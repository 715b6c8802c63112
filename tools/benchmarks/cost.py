"""Computation and memory of models, from the sizes of their layers.

Nothing is run, except for the table "memory", which runs training steps of the
PyTorch backend in new processes.

paper: exaFLOPs of pre-training, next to the paper's Table 6
(arXiv 2010.11929). They are 6 x multiply-adds x epochs x 303 million images of
224 pixels: a gradient takes two products for each one of the forward pass, and
a multiply-add is two operations.
models: all named models. patches: a model with patches of other sizes.
memory: predicted and measured peak memory of training steps.
"""

import math

from benchmarks import step_memory

IMAGES = 303e6  # of JFT-300M

R50, R200 = (3, 4, 6, 3), (3, 24, 36, 3)
# The last stage of an R50 with stride 16: Section 4.1, "extended stage 3".
R50_16 = (3, 4, 9)
# Rows of Table 6: name, epochs, exaFLOPs as published, a model function and
# other arguments than its own.
PAPER = (
    ("ViT-B/32", 7, 55, "ViTB32", {}),
    ("ViT-B/16", 7, 224, "ViTB16", {}),
    ("ViT-L/32", 7, 196, "ViTL32", {}),
    ("ViT-L/16", 7, 783, "ViTL16", {}),
    ("ViT-L/16", 14, 1567, "ViTL16", {}),
    ("ViT-H/14", 14, 4262, "ViTH14", {}),
    ("ResNet50x1", 7, 50, "BiT_R50x1", {}),
    ("ResNet50x2", 7, 199, "BiT_R50x1", {"width_factor": 2}),
    ("ResNet101x1", 7, 96, "BiT_R101x1", {}),
    ("ResNet152x1", 7, 141, "BiT_R152x2", {"width_factor": 1}),
    ("ResNet152x2", 7, 563, "BiT_R152x2", {}),
    ("ResNet152x2", 14, 1126, "BiT_R152x2", {}),
    ("ResNet200x3", 14, 3306, "BiT_R50x3", {"resnet_layers": R200}),
    ("R50x1+ViT-B/32", 7, 106, "R50ViTB16", {"resnet_layers": R50}),
    ("R50x1+ViT-B/16", 7, 274, "R50ViTB16", {}),
    ("R50x1+ViT-L/32", 7, 246, "R50ViTL32", {}),
    ("R50x1+ViT-L/16", 7, 859, "R50ViTL32", {"resnet_layers": R50_16}),
    ("R50x1+ViT-L/16", 14, 1668, "R50ViTL32", {"resnet_layers": R50_16}),
)


def paper_ratios():
    """Returns a dict for each row of Table 6, with computed values."""
    import keras_vit

    found = []
    for name, epochs, published, model, arguments in PAPER:
        cost = keras_vit.cost(model, **arguments)
        exaflops = cost.training(IMAGES, epochs)["exaflops"]
        found.append(
            {
                "model": name,
                "epochs": epochs,
                "macs": cost.macs,
                "published": published,
                "exaflops": exaflops,
                "ratio": exaflops / published,
            }
        )
    return found


def paper():
    print(
        "| model | epochs | GMACs | exaFLOPs | paper | ratio |\n"
        "|---|---|---|---|---|---|"
    )
    for row in paper_ratios():
        print(
            f"| {row['model']} | {row['epochs']} | {row['macs'] / 1e9:.2f} | "
            f"{row['exaflops']:.1f} | {row['published']} | {row['ratio']:.3f} |"
        )


def models():
    import keras_vit

    print(
        "| model | parameters | GMACs | M activations | "
        "MB, inference of 1 | MB, step of 8 |\n|---|---|---|---|---|---|"
    )
    for name in (*keras_vit.models.VARIANTS, *keras_vit.models.BIT_VARIANTS):
        cost = keras_vit.cost(name)
        step = keras_vit.cost(name, batch=8)
        print(
            f"| `{name}` | {cost.parameters:,} | {cost.macs / 1e9:.2f} | "
            f"{cost.activations / 1e6:.2f} | "
            f"{cost.inference_bytes / 1e6:,.0f} | "
            f"{step.step_bytes / 1e6:,.0f} |"
        )


def patches(model):
    import keras_vit

    print(
        f"`{model}`\n\n| patch | image | tokens | parameters | GMACs | of "
        "which attention between tokens | MB, step of 8 |\n"
        "|---|---|---|---|---|---|---|"
    )
    for size in (224, 384):
        for patch in (32, 28, 16, 14, 8):
            if size % patch:
                continue
            cost = keras_vit.cost(model, size, 8, patch_size=patch)
            rows = [r for r in cost.layers if r.kind == "MultiHeadAttention"]
            tokens = math.prod(rows[0].output_shape[:1])
            width = rows[0].output_shape[1]
            # The rest are the projections of all layers.
            between = sum(2 * tokens * r.output_shape[0] * width for r in rows)
            print(
                f"| {patch} | {size} | {tokens} | {cost.parameters:,} | "
                f"{cost.macs / 1e9:.2f} | {between / cost.macs:.1%} | "
                f"{cost.step_bytes / 1e6:,.0f} |"
            )


TABLES = {
    "paper": lambda model: paper(),
    "models": lambda model: models(),
    "patches": patches,
    "memory": lambda model: step_memory.main(),
}


def main(a):
    TABLES[a.table](a.model)
