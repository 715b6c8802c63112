"""Computation and memory of models, from the sizes of their layers."""

from typing import Any

from benchmarks import processes

TABLES = ("paper", "patches", "memory")
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
# Training steps whose memory is measured: a model function, the image size, the
# batch size, other arguments of `keras_vit.cost`, and those of the model.
STEPS = (
    ("ViTS16", 224, 16, {}, {"num_layers": 4}),
    ("ViTB32", 224, 4, {"optimizer": "sgd"}, {"num_layers": 4}),
    ("ViTTi16", 384, 4, {}, {"pooling": "gap"}),
    ("ViTTi16", 224, 16, {}, {"remat": True}),
    ("ViTS16", 224, 16, {"accumulate": 4}, {"num_layers": 4}),
    (
        *("ViTTi16", 224, 8),
        {"optimizer": "sgd", "precision": "mixed_bfloat16"},
        {},
    ),
    ("R26ViTS32", 224, 2, {"optimizer": "sgd"}, {"num_layers": 4}),
    ("BiT_R50x1", 224, 2, {"optimizer": "sgd"}, {}),
)


def cost(table: str = "paper", model: str = "ViTB16") -> None:
    """Computation and memory of models, from the sizes of their layers.

    Nothing is run, except for the table "memory", which runs training steps of
    the PyTorch backend in new processes.

    paper: exaFLOPs of pre-training, next to the paper's Table 6
    (arXiv 2010.11929). They are 6 x multiply-adds x epochs x 303 million images
    of 224 pixels: a gradient takes two products for each one of the forward
    pass, and a multiply-add is two operations.
    patches: a model with patches of other sizes.
    memory: predicted and measured peak memory of training steps. Measured is
    the peak of the resident memory minus that of the process before the model
    is built, after a step of a tiny model has loaded the libraries. So that
    memory that is freed is returned to the system, malloc maps every array of
    64 KiB or more.
    """
    if table == "paper":
        print("| model | epochs | GMACs | exaFLOPs | paper | ratio |")
        print("|---|---|---|---|---|---|")
        for name, epochs, macs, exaflops, published in paper():
            print(
                f"| {name} | {epochs} | {macs / 1e9:.2f} | {exaflops:.1f} | "
                f"{published} | {exaflops / published:.3f} |"
            )
    elif table == "patches":
        patches(model)
    else:
        memory()


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
    print(" | of which attention between tokens | MB, step of 8 |")
    print("|---|---|---|---|---|---|---|")
    for size in (224, 384):
        for patch in (32, 28, 16, 14, 8):
            if size % patch:
                continue
            found = keras_vit.cost(model, size, 8, patch_size=patch)
            rows = [r for r in found.layers if r.kind == "MultiHeadAttention"]
            tokens, width = rows[0].output_shape
            # The rest are the projections of all layers.
            between = len(rows) * 2 * tokens**2 * width
            print(
                f"| {patch} | {size} | {tokens} | {found.parameters:,} | "
                f"{found.macs / 1e9:.2f} | {between / found.macs:.1%} | "
                f"{found.step_bytes / 1e6:,.0f} |"
            )


def memory() -> None:
    print("| step | batch | predicted MB | measured MB | ratio | peak |")
    print("|---|---|---|---|---|---|")
    for step in STEPS:
        name, size, batch, options, arguments = step
        predicted, moment = predicted_memory(step)
        measured = measured_memory(step)
        settings = {**options, **arguments}
        parts = [f"`{name}`", f"{size} px"]
        parts += [f"{key}={value!r}" for key, value in settings.items()]
        print(
            f"| {', '.join(parts)} | {batch} | {predicted / 1e6:.0f} | "
            f"{measured / 1e6:.0f} | {predicted / measured:.3f} | {moment} |",
            flush=True,
        )


def predicted_memory(step: tuple) -> tuple[int, str]:
    """Returns the predicted peak of a step in bytes, and its moment."""
    import keras_vit

    name, size, batch, options, arguments = step
    parts = keras_vit.cost(name, size, batch, **options, **arguments).step_parts()
    moment = max(parts, key=lambda part: parts[part])
    return parts[moment], moment


def measured_memory(step: tuple) -> int:
    """Returns the measured peak of a step in bytes."""
    return processes.run(
        _peak_of_step,
        *step,
        KERAS_BACKEND="torch",
        MALLOC_MMAP_THRESHOLD_="65536",
        MALLOC_ARENA_MAX="1",
    ).value


def _peak_of_step(
    name: str, size: int, batch: int, options: dict, arguments: dict
) -> int:
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import optimizers

    accumulate = options.get("accumulate", 1)
    clipped: dict[str, Any] = {"global_clipnorm": 1.0}

    def step(model: keras.Model, size: int, batch: int, accumulate: int) -> None:
        if accumulate > 1:
            clipped["gradient_accumulation_steps"] = accumulate
        if options.get("optimizer") == "sgd":
            made = optimizers.PublishedSGD(1e-4, momentum=0.9, **clipped)
        else:
            made = optimizers.PublishedAdamW(1e-4, **clipped)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(made, loss)
        images = np.zeros((batch // accumulate, size, size, 3), "float32")
        for _ in range(accumulate):
            model.train_on_batch(images, np.zeros(len(images), "int32"))

    keras.config.set_dtype_policy(options.get("precision", "float32"))
    tiny = keras_vit.HybridVisionTransformer(
        input_shape=(32, 32, 3),
        resnet_layers=(1,),
        width_factor=0.5,
        patch_size=2,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        classes=2,
    )
    step(tiny, 32, 2, 1)
    before = processes.resident("VmRSS")
    processes.forget_peak()
    build = getattr(keras_vit, name)
    step(build(input_shape=(size, size, 3), **arguments), size, batch, accumulate)
    return processes.resident("VmHWM") - before
