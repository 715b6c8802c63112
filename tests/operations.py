"""Operations and bytes of ViT-B/16, counted: they are the same on every run.

    python -m tests.operations        # records them again, on both backends

The image is 224 px, the batch 2, the precision float32, and the model has two
of its twelve blocks.

What is counted is what each backend lets be counted, so figures of two
backends do not compare:

- JAX: XLA's analysis of the compiled program, which is the same with
  optimization and without (`JAX_DISABLE_MOST_OPTIMIZATIONS`), on one core and
  two, and for processors without AVX-512. What fuses costs nothing.
- PyTorch: matrix products as its FlopCounterMode has them, and the bytes that
  operators read and write, views left out.

Under TensorFlow, this model calls Keras's operations only: the package's own
attention begins at 1,025 tokens.
"""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np

FILE = pathlib.Path(__file__).with_name("operations.json")
WHAT = ("inference", "step")
BATCH, SIZE = 2, 224


def counted(what):
    """Returns floating-point operations, and bytes read and written."""
    flops, total = {"jax": _jax, "torch": _torch}[keras.config.backend()](what)
    return {"flops": flops, "bytes": total}


def _model():
    import keras_vit

    return keras_vit.ViTB16(input_shape=(SIZE, SIZE, 3), num_layers=2)


def _data():
    images = np.random.default_rng(0).uniform(-1, 1, (BATCH, SIZE, SIZE, 3))
    return images.astype("float32"), np.arange(BATCH)


def _loss(labels, logits):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss(labels, logits)


def _jax(what):
    import jax

    model = _model()
    images, labels = _data()
    learnt = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]

    def infer(learnt, images):
        return model.stateless_call(learnt, others, images, training=False)[0]

    def loss(learnt, images):
        logits, _ = model.stateless_call(learnt, others, images, training=True)
        return _loss(labels, logits)

    function = infer if what == "inference" else jax.grad(loss)
    compiled = jax.jit(function).lower(learnt, images).compile()
    found = compiled.cost_analysis()
    return found["flops"], found["bytes accessed"]


def flop_counter():
    """PyTorch's counter, in whose own table the CPU's attention is missing."""
    import torch
    from torch.utils import flop_counter as counter

    aten = torch.ops.aten
    table = {
        aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda q, k, v, *_, **__: counter.sdpa_flop_count(q, k, v)
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda dx, q, k, v, *_, **__: counter.sdpa_backward_flop_count(dx, q, k, v)
        ),
    }
    return counter.FlopCounterMode(display=False, custom_mapping=table)


def _torch(what):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Bytes(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            results = operator(*args, **(kwargs or {}))
            if not operator.is_view:
                kwargs = {**(kwargs or {}), "out": None}  # is a result
                for x in tree_leaves((args, kwargs, results)):
                    if isinstance(x, torch.Tensor):
                        self.total += x.numel() * x.element_size()
            return results

    model = _model()
    images, labels = map(torch.tensor, _data())
    with Bytes() as read_and_written, flop_counter() as counter:
        if what == "inference":
            with torch.no_grad():
                model(images, training=False)
        else:
            _loss(labels, model(images, training=True)).backward()
    return counter.get_total_flops(), read_and_written.total


def _print():
    backend = keras.config.backend()
    found = importlib.metadata.version(backend)
    table = {"version": f"keras {keras.__version__}, {backend} {found}"}
    print(json.dumps(table | {what: counted(what) for what in WHAT}))


def main():
    table = {}
    for backend in ("jax", "torch"):
        code = "from tests import operations; operations._print()"
        printed = subprocess.check_output(
            [sys.executable, "-c", code],
            env={**os.environ, "KERAS_BACKEND": backend},
            text=True,
        )
        table[backend] = json.loads(printed.splitlines()[-1])
    FILE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
