import os

# A test process has one backend; `python -m tests` runs all three.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# float32 products in full precision, whatever the machine.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

import contextlib

with contextlib.suppress(ImportError):
    import torch  # noqa: F401  (TensorFlow before torch crashes some builds)

import keras
import pytest


@pytest.fixture(autouse=True)
def _fresh_state():
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    floatx = keras.config.floatx()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def record_error(record_property):
    """Records a largest error, which the run lists in a table at its end."""

    def record(case, name, error, tolerance):
        record_property("error", (case, name, float(error), tolerance))
        assert error <= tolerance, f"{case} {name}: {error} > {tolerance}"

    return record


def pytest_terminal_summary(terminalreporter):
    rows = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == "error"
    ]
    if not rows:
        return
    backend = keras.config.backend()
    terminalreporter.section(f"largest errors against golden data, {backend}")
    for case in sorted({row[0] for row in rows}):
        of_case = [row for row in rows if row[0] == case]
        _, name, error, tolerance = max(of_case, key=lambda row: row[2])
        terminalreporter.write_line(
            f"{case:28} {error:9.1e} in {name:22} tolerance {tolerance:.0e}, "
            f"{len(of_case)} arrays"
        )
