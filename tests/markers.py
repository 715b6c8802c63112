"""Which tests run on a backend: hooks of pytest for `conftest.py`."""

import os

import pytest

BACKENDS = {"jax", "tensorflow", "torch"}


def on_all(cases, chosen):
    """Returns parameters, of which those not `chosen` run under PyTorch alone,
    which compiles nothing."""
    return [
        case
        if case in chosen
        else pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.backends("torch"),
        )
        for case in cases
    ]


def runs_on(item, backend, name="backends"):
    """Whether a test runs on a backend.

    The nearest `backends` marker decides: that of the test's parameters, then
    of its function, its class, its module. Without one it runs on all. The
    marker `suite` is read in the same way.
    """
    for marker in item.iter_markers(name):
        if not marker.args or set(marker.args) - BACKENDS:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker `{name}` takes names out of "
                f"{sorted(BACKENDS)}. Received: {marker.args}"
            )
    for node in reversed(item.listchain()):
        # pytest puts the markers of the parameters after the function's.
        for marker in reversed(node.own_markers):
            if marker.name == name:
                return backend in marker.args
    return True


def pytest_itemcollected(item):
    """Makes a test nightly on the backends that its marker `suite` omits."""
    if not runs_on(item, os.environ["KERAS_BACKEND"], "suite"):
        item.add_marker("nightly")


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests of other backends."""
    chosen, others = [], []
    for item in items:
        here = runs_on(item, os.environ["KERAS_BACKEND"])
        (chosen if here else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
