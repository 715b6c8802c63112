"""The operations and bytes of the model do not exceed the recorded ones."""

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
    table = operations.recorded()[BACKEND]
    least = operations.least(what)
    for part, cost in operations.counted(what).items():
        # Less than the products themselves would be a mistake in counting.
        assert cost.flops >= least[part], f"{part}: less than its products"
        for name in ("flops", "bytes"):
            now, then = getattr(cost, name), table[what][part][name]
            assert now <= MORE * then, (
                f"{what} of ViT-B/16 on {BACKEND}: {name} of "
                f"{'a block' if part == 'block' else 'a model of one block'} "
                f"are {now:.6g}, {100 * (now / then - 1):.1f}% more than "
                f"{then:.6g}, which was recorded with {table['version']} "
                f"(here: keras {keras.__version__}, {operations.version()}). "
                f"If this is intended, record again: {operations.COMMAND}"
            )
