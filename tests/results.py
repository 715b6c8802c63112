"""Which tests run on a backend, and a record of those that ran.

The functions named `pytest_*` are hooks of pytest; `conftest.py` imports them.
`python -m tests` runs the suite once on each backend, with `--results`, and
fails if a test ran in none of these runs.
"""

import json
import os

import pytest

BACKENDS = {"jax", "tensorflow", "torch"}
_COLLECTED = pytest.StashKey()
_SKIPPED_MODULES = []


def pytest_addoption(parser):
    parser.addoption(
        "--results",
        metavar="PATH",
        help="JSON file for the ids of the collected tests, of those that "
        "ran, and the largest errors against golden data",
    )


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


# After pytest's own selection by `-k` and `-m`: what these leave is collected.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    config.stash[_COLLECTED] = [item.nodeid for item in items]
    config.stash[_COLLECTED] += _SKIPPED_MODULES
    backend = os.environ["KERAS_BACKEND"]
    selected = [item for item in items if runs_on(item, backend)]
    left_out = [item for item in items if not runs_on(item, backend)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = selected


def pytest_collectreport(report):
    """A module that skips itself while it is imported counts as one test."""
    if report.skipped:
        _SKIPPED_MODULES.append(report.nodeid)


def pytest_sessionfinish(session):
    """Sends the collected ids to the main process, if this is a worker of
    pytest-xdist. All workers collect the same tests."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["collected"] = session.config.stash.get(_COLLECTED, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    collected = getattr(node, "workeroutput", {}).get("collected", [])
    node.config.stash.setdefault(_COLLECTED, []).extend(collected)


def pytest_terminal_summary(terminalreporter, config):
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    largest = {}
    for report in reports:
        for name, value in report.user_properties:
            if name == "error":
                case, name, error, tolerance = value
                if case not in largest or error > largest[case][0]:
                    largest[case] = (error, name, tolerance)
    path = config.getoption("--results")
    if path:
        ran = {report.nodeid for report in reports if not report.skipped}
        results = {
            "collected": sorted(set(config.stash.get(_COLLECTED, []))),
            "ran": sorted(ran),
            "errors": largest,
        }
        with open(path, "w") as file:
            json.dump(results, file)
        return  # `python -m tests` prints one table for all backends
    if not largest:
        return
    backend = os.environ["KERAS_BACKEND"]
    terminalreporter.section(f"largest errors against golden data, {backend}")
    for case, (error, name, tolerance) in sorted(largest.items()):
        terminalreporter.write_line(
            f"{case:28} {error:8.1e}  tolerance {tolerance:.0e}  in {name}"
        )
