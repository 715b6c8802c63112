"""Vision Transformers of PyTorch packages."""

import torch
from benchmarks.contenders import CLASSES
from benchmarks.keras_models import DINO_ARGUMENTS
from benchmarks.keras_models import dino_crops
from torch import nn


def timm(size, **arguments):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        patch_size=size.patch_size,
        num_classes=CLASSES,
        embed_dim=size.hidden_size,
        depth=size.num_layers,
        num_heads=size.num_heads,
        mlp_ratio=size.mlp_dim / size.hidden_size,
        **{"img_size": size.image_size, **arguments},
    )


def transformers(size):
    from transformers import ViTConfig
    from transformers import ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            intermediate_size=size.mlp_dim,
            image_size=size.image_size,
            patch_size=size.patch_size,
            num_labels=CLASSES,
        )
    )


def dino(size):
    """DINO, made of lightly's and timm's parts: its student and teacher.

    It needs `pip install --no-deps lightly==1.6.0`.
    """
    from lightly.models.modules import DINOProjectionHead

    outputs, hidden, bottleneck = DINO_ARGUMENTS.values()

    def build():
        encoder = timm(size, num_classes=0, dynamic_img_size=True)
        head = DINOProjectionHead(size.hidden_size, hidden, bottleneck, outputs)
        return nn.Sequential(encoder, head)

    student, teacher = build(), build().requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    return nn.ModuleList([student, teacher])


def runs(build, size, images, what, jit_compile=False):
    """Returns a function that runs the model once."""
    model = build(size)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    if build is dino:
        return _dino_step(*model, len(images))
    inputs = torch.tensor(images).permute(0, 3, 1, 2).contiguous()
    if jit_compile:
        model = torch.compile(model)
    if what == "inference":
        model.eval()
        return torch.inference_mode()(lambda: model(inputs))
    labels = torch.arange(len(images)) % CLASSES

    def step():
        optimizer.zero_grad()
        logits = model(inputs)
        logits = getattr(logits, "logits", logits)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()

    return step


def _dino_step(student, teacher, batch):
    from lightly.loss import DINOLoss
    from lightly.models.utils import update_momentum

    loss = DINOLoss(DINO_ARGUMENTS["output_dim"])
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4)
    large, small = (
        torch.from_numpy(x).permute(1, 0, 4, 2, 3).flatten(0, 1).contiguous()
        for x in dino_crops(batch).values()
    )

    def step():
        update_momentum(student, teacher, 0.996)
        targets = teacher(large).split(batch)
        outputs = student(large).split(batch) + student(small).split(batch)
        optimizer.zero_grad()
        loss(targets, outputs).backward()
        optimizer.step()

    return step
