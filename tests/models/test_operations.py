"""The operations and bytes of the model do not exceed the recorded ones."""

import json

import keras
import pytest

from tests import operations

BACKEND = keras.config.backend()
MORE = 1.02


def _on_a_cpu():
    """On other devices the layers use other kernels, and compilers fuse
    differently."""
    if BACKEND == "jax":
        import jax

        return jax.default_backend() == "cpu"
    import torch

    return not torch.cuda.is_available()


@pytest.mark.backends("jax", "torch")
@pytest.mark.slow
@pytest.mark.skipif(not _on_a_cpu(), reason="was recorded on a CPU")
@pytest.mark.parametrize("what", operations.WHAT)
def test_cost_does_not_exceed_the_record(what):
    table = json.loads(operations.FILE.read_text())[BACKEND]
    for name, now in operations.counted(what).items():
        then = table[what][name]
        # Much less would be a mistake in counting.
        assert 0.8 * then <= now <= MORE * then, (
            f"{what} of ViT-B/16 on {BACKEND}: {name} are {now:.6g}, "
            f"{100 * (now / then - 1):.1f}% more than {then:.6g}, which was "
            f"recorded with {table['version']}. If this is intended, record "
            "again: python -m tests.operations"
        )
