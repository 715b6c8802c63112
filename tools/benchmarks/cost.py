"""Computation of models, from the sizes of their layers."""

TABLES = ("paper", "patches")
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


def cost(table: str = "paper", model: str = "ViTB16") -> None:
    """Computation of models, from the sizes of their layers. Nothing is run.

    paper: exaFLOPs of pre-training, next to the paper's Table 6
    (arXiv 2010.11929). They are 6 x multiply-adds x epochs x 303 million images
    of 224 pixels: a gradient takes two products for each one of the forward
    pass, and a multiply-add is two operations.
    patches: a model with patches of other sizes.
    """
    if table == "paper":
        print("| model | epochs | GMACs | exaFLOPs | paper | ratio |")
        print("|---|---|---|---|---|---|")
        for name, epochs, macs, exaflops, published in paper():
            print(
                f"| {name} | {epochs} | {macs / 1e9:.2f} | {exaflops:.1f} | "
                f"{published} | {exaflops / published:.3f} |"
            )
    else:
        patches(model)


def paper() -> list[tuple[str, int, int, float, int]]:
    """Returns the rows of Table 6: a name, epochs, multiply-adds, exaFLOPs as
    computed, and as published."""
    import keras_vit

    rows = []
    for name, epochs, published, model, arguments in PAPER:
        found = keras_vit.cost(model, **arguments)
        exaflops = found.training(IMAGES, epochs)["exaflops"]
        rows.append((name, epochs, found.macs, exaflops, published))
    return rows


def patches(model: str) -> None:
    import keras_vit

    print(f"`{model}`\n\n| patch | image | tokens | parameters | GMACs", end="")
    print(" | of which attention between tokens |")
    print("|---|---|---|---|---|---|")
    for size in (224, 384):
        for patch in (32, 28, 16, 14, 8):
            if size % patch:
                continue
            found = keras_vit.cost(model, size, patch_size=patch)
            rows = [r for r in found.layers if r.kind == "MultiHeadAttention"]
            tokens, width = rows[0].output_shape
            # The rest are the projections of all layers.
            between = len(rows) * 2 * tokens**2 * width
            print(
                f"| {patch} | {size} | {tokens} | {found.parameters:,} | "
                f"{found.macs / 1e9:.2f} | {between / found.macs:.1%} |"
            )
