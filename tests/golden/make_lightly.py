"""Makes `lightly.npz`: losses, heads and updates of DINO and MoCo v3.

    python tests/golden/make_lightly.py

lightly 1.6.0 computes every number, except that MoCo v3's loss is put together
from its `NTXentLoss`. lightly is no dependency of the tests.
"""

import pathlib

import numpy as np
import torch
from lightly.loss import DINOLoss, IBOTPatchLoss, KoLeoLoss, NTXentLoss
from lightly.models.modules import DINOProjectionHead, MoCoProjectionHead
from lightly.models.utils import update_momentum
from torch import nn

BATCH, CROPS, WIDTH = 4, 5, 11
MOCO_TEMPERATURE = 0.2
rng = np.random.default_rng(0)
arrays = {}


def normal(*shape):
    return torch.from_numpy(rng.normal(size=shape).astype("float32"))


def keep(prefix, **tensors):
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            tensor = tensor.detach().numpy()
        arrays[f"{prefix}/{name}"] = np.array(tensor, "float32")


def dino():
    """Two steps, so that the second one has a center that is not zero."""
    loss = DINOLoss(WIDTH, 0.04, 0.07, 30, 0.1, 0.9)
    for step, temperature in enumerate((0.04, 0.06)):
        student = normal(CROPS, BATCH, WIDTH).requires_grad_()
        teacher = normal(2, BATCH, WIDTH)
        before = loss.center.clone().flatten()
        value = loss(list(teacher), list(student), temperature)
        value.backward()
        keep(
            f"dino_{step}",
            student=student,
            teacher=teacher,
            temperature=temperature,
            center=before,
            loss=value,
            gradient=student.grad,
            new_center=loss.center.flatten(),
        )


def ibot():
    loss = IBOTPatchLoss(WIDTH, 0.05, 0.1)
    mask = torch.from_numpy(rng.uniform(size=(BATCH, 2, 3)) < 0.5)
    mask[1] = False
    count = int(mask.sum())
    student = normal(count, WIDTH).requires_grad_()
    teacher = normal(count, WIDTH)
    value = loss(teacher, student, mask)
    value.backward()
    keep(
        "ibot",
        student=student,
        teacher=teacher,
        mask=mask,
        loss=value,
        gradient=student.grad,
        new_center=loss.center.value.flatten(),
    )


def koleo():
    x = normal(BATCH, WIDTH).requires_grad_()
    value = KoLeoLoss()(x)
    value.backward()
    keep("koleo", features=x, loss=value, gradient=x.grad)


def moco():
    """`NTXentLoss` with a memory bank that holds the keys of other images.

    Each query has its own bank. MoCo v3 multiplies the mean over queries by
    twice the temperature.
    """
    queries = normal(BATCH, WIDTH).requires_grad_()
    keys = normal(BATCH, WIDTH)
    losses = []
    for i in range(BATCH):
        loss = NTXentLoss(MOCO_TEMPERATURE, (BATCH - 1, WIDTH))
        others = torch.cat([keys[:i], keys[i + 1 :]])
        loss.memory_bank.bank = nn.functional.normalize(others, dim=1)
        losses.append(loss(queries[i : i + 1], keys[i : i + 1]))
    value = torch.stack(losses).mean() * (2 * MOCO_TEMPERATURE)
    value.backward()
    keep(
        "moco",
        queries=queries,
        keys=keys,
        loss=value,
        gradient=queries.grad,
    )


def heads():
    torch.manual_seed(0)
    head = DINOProjectionHead(6, 10, 5, 9)
    x = normal(BATCH, 6)
    weights = {k.replace(".", "-"): v for k, v in head.state_dict().items()}
    keep("dino_head", inputs=x, outputs=head(x), **weights)
    for name, layers in (("projection", 3), ("prediction", 2)):
        head = MoCoProjectionHead(6, 10, 9, layers, batch_norm=True).train()
        weights = {k.replace(".", "-"): v for k, v in head.state_dict().items()}
        keep(f"moco_{name}", inputs=x, outputs=head(x), **weights)


def momentum():
    student, teacher = nn.Linear(6, 5), nn.Linear(6, 5)
    keep("momentum", student=student.weight, before=teacher.weight)
    update_momentum(student, teacher, 0.996)
    keep("momentum", after=teacher.weight)


if __name__ == "__main__":
    for make in (dino, ibot, koleo, moco, heads, momentum):
        make()
    path = pathlib.Path(__file__).with_name("lightly.npz")
    np.savez_compressed(path, **arrays)
