"""Vision Transformers of PyTorch packages, and their matrix products alone.

In half precision on a GPU, the weights have this precision in inference, and
training steps use autocast. This has not been tested on a GPU.
"""

import contextlib

import numpy as np
import torch
from benchmarks import limits
from torch import nn


def timm(size):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=size.image_size,
        patch_size=size.patch_size,
        num_classes=size.classes,
        embed_dim=size.hidden_size,
        depth=size.num_layers,
        num_heads=size.num_heads,
        mlp_ratio=size.mlp_dim / size.hidden_size,
    )


def transformers(size):
    from transformers import ViTConfig
    from transformers import ViTForImageClassification

    config = ViTConfig(
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.mlp_dim,
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_labels=size.classes,
    )

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = ViTForImageClassification(config)

        def forward(self, images):
            return self.model(images).logits

    return Logits()


def products(size):
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = nn.ParameterList()
            self.weights = limits.weights(size, self.hold)

        def hold(self, matrix):
            self.held.append(nn.Parameter(torch.tensor(matrix)))
            return self.held[-1]

        def forward(self, images):
            return limits.forward(
                self.weights,
                images,
                size,
                torch.reshape,
                lambda x, axes: x.permute(*axes),
                fused=False,
            )

    return Products()


def runs(build, size, batch, what, dtype, compiled=False):
    """Returns a function that runs the model a number of times and waits."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = getattr(torch, dtype) if dtype != "float32" else None
    shape = (batch, 3, size.image_size, size.image_size)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    images = torch.tensor(images, device=device)
    model = build(size).to(device)
    if what == "inference":
        model = model.eval()
        if half is not None:
            model, images = model.to(half), images.to(half)
    if compiled:
        model = torch.compile(model)

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def infer(times):
        with torch.inference_mode():
            for _ in range(times):
                model(images)
        wait()

    if what == "inference":
        return infer

    labels = torch.arange(batch, device=device) % size.classes
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    cast = contextlib.nullcontext
    if half is not None:
        cast = lambda: torch.autocast(device, half)  # noqa: E731

    def step(times):
        for _ in range(times):
            optimizer.zero_grad()
            with cast():
                logits = model(images)
            nn.functional.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
        wait()

    def gradients(times):
        for _ in range(times):
            optimizer.zero_grad()
            with cast():
                total = model(images).sum()
            total.backward()
        wait()

    return gradients if build is products else step
