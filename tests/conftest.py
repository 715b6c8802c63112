import gc
import os
import pathlib

# A test process has one backend: PyTorch, which compiles nothing, unless the
# environment names another. `python -m tests` runs all three.
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Two workers that each use all cores would slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# float32 products in full precision, whatever the machine.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
# Under JAX most of the time is compiling. It optimizes less, and what a test
# has compiled is read from disk by other tests, workers, processes and runs.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"),
)

# The same for what `torch.compile` compiles.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "inductor"),
)
# XLA's older code generator compiles small functions in half the time. The
# recipes compile with XLA under TensorFlow too.
if os.environ["KERAS_BACKEND"] == "jax":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
elif os.environ["KERAS_BACKEND"] == "tensorflow":
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import contextlib

import hypothesis
import pytest

from tests import server as web
from tests.markers import (
    pytest_collection_modifyitems,  # noqa: F401
    pytest_itemcollected,  # noqa: F401
)

# Keras makes many objects that live as long as their model. By default, looking
# for garbage among them takes a seventh of the time.
gc.set_threshold(100_000, 50, 100)

# The same examples in every run, and no limits of time: a slow machine is no
# failure. `python -m tests.nightly` takes other examples.
_EXAMPLES = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("same", derandomize=True, **_EXAMPLES)
hypothesis.settings.register_profile("random", **_EXAMPLES)
hypothesis.settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Imports the frameworks before any test does.

    TensorFlow before PyTorch crashes some builds. With `-n 2`, the process that
    only distributes the tests needs none of them, and starts its workers some
    seconds sooner.
    """
    if session.config.getoption("numprocesses", None):
        return
    with contextlib.suppress(ImportError):
        import torch

        _import_torchvision(torch)
    import keras  # noqa: F401


def _import_torchvision(torch):
    """Imports torchvision, which timm and transformers need. PyPI's wheel
    lacks two operators of detectors with PyTorch's CPU builds: classifiers do
    not call them, and declaring them lets the import succeed."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
        import torchvision  # noqa: F401

        torchvision.declared = operators  # they go when this goes


@pytest.fixture(autouse=True)
def _fresh_state():
    import keras

    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    floatx = keras.config.floatx()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def eager():
    """Runs the test within `tests.harness.eager`."""
    from tests import harness

    with harness.eager():
        yield


@pytest.fixture(autouse=True, scope="module")
def _little_memory():
    """Frees the memory of one file's tests.

    What JAX has compiled for them is kept on disk. What then is left, mostly
    modules, Python's garbage collection need not look at again: Keras starts
    one for each layer that it quantizes.
    """
    yield
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        jax.clear_caches()
    gc.collect()
    gc.freeze()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder for what is downloaded."""
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server(monkeypatch):
    """A web server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with web.running() as running:
        yield running


@pytest.fixture
def hub(server, home, monkeypatch):
    """A hub of Hugging Face on this server; see `tests.server.publish`."""
    constants = pytest.importorskip("huggingface_hub.constants")
    url = server.url.rstrip("/")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    from huggingface_hub import file_download

    for module in (constants, file_download):  # the second before 1.0
        monkeypatch.setattr(
            module,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
            raising=False,
        )
    return server


@pytest.fixture
def record_error(record_property):
    """Records a largest error, which `python -m tests` lists in a table."""

    def record(case, name, error, tolerance):
        error, tolerance = float(error), float(tolerance)
        record_property(f"error: {case}", f"{error} {tolerance}")
        assert error <= tolerance, f"{case} {name}: {error} > {tolerance}"

    return record
