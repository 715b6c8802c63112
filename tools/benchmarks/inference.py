"""Inference compared with timm, interleaved, under the PyTorch backend.

Both models have random weights and the exact GELU, as in timm.
"""

import statistics
import time


def against_timm(name, timm_name, batch, rounds):
    import numpy as np
    import timm
    import torch

    import keras_vit

    ours = getattr(keras_vit, name)(activation="gelu")
    theirs = timm.create_model(timm_name).eval()
    height, width, channels = ours.input_shape[1:]
    images = np.random.default_rng(0).uniform(
        -1, 1, (batch, height, width, channels)
    )
    images = torch.tensor(images, dtype=torch.float32)
    turned = images.permute(0, 3, 1, 2).contiguous()
    calls = {
        name: lambda: ours(images, training=False),
        timm_name: lambda: theirs(turned),
    }
    times = {model: [] for model in calls}
    with torch.no_grad():
        for _ in range(rounds + 1):
            for model, call in calls.items():
                start = time.perf_counter()
                call()
                times[model].append(time.perf_counter() - start)
    best = {}
    for model, measured in times.items():
        measured = measured[1:]  # the first warms up
        best[model] = min(measured)
        print(
            f"{model:24} best {1e3 * min(measured):.0f} ms, "
            f"median {1e3 * statistics.median(measured):.0f} ms"
        )
    print(f"keras_vit takes {best[name] / best[timm_name]:.2f} of timm (best)")
