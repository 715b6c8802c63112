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

R50, R101, R152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)
R200 = (3, 24, 36, 3)
# The last stage of an R50 with stride 16: Section 4.1, "extended stage 3".
R50_16 = (3, 4, 9)


def _bit(units, width):
    return "BiT", {"resnet_layers": units, "width_factor": width}


def _hybrid(name, units):
    import keras_vit

    sizes = keras_vit.models.VARIANTS[name].sizes()
    sizes |= {"resnet_layers": units, "patch_size": 1}
    return "HybridVisionTransformer", sizes


def _vit(name):
    return name, {}


def paper_rows():
    """Returns the rows of Table 6: the name, epochs, exaFLOPs as published, and
    the arguments of `keras_vit.cost`."""
    return [
        ("ViT-B/32", 7, 55, *_vit("ViTB32")),
        ("ViT-B/16", 7, 224, *_vit("ViTB16")),
        ("ViT-L/32", 7, 196, *_vit("ViTL32")),
        ("ViT-L/16", 7, 783, *_vit("ViTL16")),
        ("ViT-L/16", 14, 1567, *_vit("ViTL16")),
        ("ViT-H/14", 14, 4262, *_vit("ViTH14")),
        ("ResNet50x1", 7, 50, *_bit(R50, 1)),
        ("ResNet50x2", 7, 199, *_bit(R50, 2)),
        ("ResNet101x1", 7, 96, *_bit(R101, 1)),
        ("ResNet152x1", 7, 141, *_bit(R152, 1)),
        ("ResNet152x2", 7, 563, *_bit(R152, 2)),
        ("ResNet152x2", 14, 1126, *_bit(R152, 2)),
        ("ResNet200x3", 14, 3306, *_bit(R200, 3)),
        ("R50x1+ViT-B/32", 7, 106, *_hybrid("ViTB32", R50)),
        ("R50x1+ViT-B/16", 7, 274, *_hybrid("ViTB16", R50_16)),
        ("R50x1+ViT-L/32", 7, 246, *_hybrid("ViTL32", R50)),
        ("R50x1+ViT-L/16", 7, 859, *_hybrid("ViTL16", R50_16)),
        ("R50x1+ViT-L/16", 14, 1668, *_hybrid("ViTL16", R50_16)),
    ]


def paper_ratios():
    """Returns a dict for each row of Table 6, with computed values."""
    import keras_vit

    found = []
    for name, epochs, published, model, arguments in paper_rows():
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
    rows = paper_ratios()
    for row in rows:
        print(
            f"| {row['model']} | {row['epochs']} | {row['macs'] / 1e9:.2f} | "
            f"{row['exaflops']:.1f} | {row['published']} | {row['ratio']:.3f} |"
        )
    short, long = rows[-2], rows[-1]
    print(
        f"\n{short['model']}, {short['epochs']} epochs: the paper contradicts "
        f"itself. Half of its {long['published']} exaFLOPs of "
        f"{long['epochs']} epochs is {long['published'] / 2:.0f}, not "
        f"{short['published']}."
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


def main(table, model):
    TABLES[table](model)
