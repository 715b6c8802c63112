"""Operations and bytes of ViT-B/16, counted: they are the same on every run.

    python -m tests.operations        # records them again, on both backends

The image is 224 px, the batch 2, the precision float32. Models of one block
and of two are counted: their difference is a block, and the first is patches,
positions, a block, last norm and head. Twelve blocks cost what these give: seen
once, to the last byte, and under XLA, which fuses the first block otherwise, to
2% of the bytes.

What is counted is what each backend lets be counted, so figures of two
backends do not compare:

- JAX: XLA's analysis of the compiled program. It was the same with
  optimization and without (`JAX_DISABLE_MOST_OPTIMIZATIONS` spares LLVM's, not
  the fusing), on one core and two, from a compile cache, and for processors
  without AVX-512. XLA's analysis before it compiles hangs on less, but reads
  and writes all that will be fused: it cannot distinguish a norm that
  fuses from one that does not. What fuses costs nothing: a copy of the tokens
  that the next norm reads anyway is not seen, nor what float64 would cost.
- PyTorch: matrix products as its FlopCounterMode has them, and the bytes that
  operators read and write, views left out.

Under TensorFlow, this model calls Keras's operations only: the package's own
attention begins at 1,025 tokens.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np

FILE = pathlib.Path(__file__).with_name("operations.json")
COMMAND = "python -m tests.operations"
BACKENDS = ("jax", "torch")
WHAT = ("inference", "step")
BATCH, SIZE, PATCH = 2, 224, 16


@dataclasses.dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: float
    bytes: float

    def __sub__(self, other):
        return Cost(self.flops - other.flops, self.bytes - other.bytes)


def counted(what):
    """Returns the costs of a block and of a model of one: `{part: Cost}`."""
    one, two = (_COUNT[keras.config.backend()](what, n) for n in (1, 2))
    return {"block": two - one, "model": one}


def least(what):
    """Returns the operations that the matrix products alone take, by part.

    A gradient takes two products for each of the forward pass, but none of
    the images.
    """
    tokens, hidden, mlp, classes = (SIZE // PATCH) ** 2 + 1, 768, 3072, 1000
    dense = tokens * (4 * hidden**2 + 2 * hidden * mlp)
    attention = 2 * tokens**2 * hidden
    patches = (tokens - 1) * 3 * PATCH**2 * hidden
    head = hidden * classes
    times = {"inference": (1, 1), "step": (3, 2)}[what]
    block = 2 * BATCH * times[0] * (dense + attention)
    others = 2 * BATCH * (times[0] * head + times[1] * patches)
    return {"block": block, "model": block + others}


def _model(layers):
    import keras_vit

    return keras_vit.ViTB16(input_shape=(SIZE, SIZE, 3), num_layers=layers)


def _data():
    images = np.random.default_rng(0).uniform(-1, 1, (BATCH, SIZE, SIZE, 3))
    return images.astype("float32"), np.arange(BATCH)


def _loss(labels, logits):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss(labels, logits)


def _jax(what, layers):
    import jax

    model = _model(layers)
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
    return Cost(found["flops"], found["bytes accessed"])


def _torch(what, layers):
    import torch
    from torch.utils import flop_counter
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

    # The CPU's attention is missing in the counter's own table.
    aten = torch.ops.aten
    table = {
        aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda q, k, v, *_, **__: flop_counter.sdpa_flop_count(q, k, v)
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda dx, q, k, v, *_, **__: flop_counter.sdpa_backward_flop_count(
                dx, q, k, v
            )
        ),
    }
    model = _model(layers)
    images, labels = map(torch.tensor, _data())
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=table)
    with Bytes() as read_and_written, counter:
        if what == "inference":
            with torch.no_grad():
                model(images, training=False)
        else:
            _loss(labels, model(images, training=True)).backward()
    return Cost(counter.get_total_flops(), read_and_written.total)


_COUNT = {"jax": _jax, "torch": _torch}


def recorded():
    """Returns the table, `{backend: {"version": ..., what: {part: ...}}}`."""
    return json.loads(FILE.read_text())


def version():
    import importlib.metadata

    backend = keras.config.backend()
    return f"{backend} {importlib.metadata.version(backend)}"


def _print():
    table = {"version": f"keras {keras.__version__}, {version()}"}
    for what in WHAT:
        table[what] = {
            part: dataclasses.asdict(cost)
            for part, cost in counted(what).items()
        }
    print(json.dumps(table))


def main():
    table = {}
    for backend in BACKENDS:
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
