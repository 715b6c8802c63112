"""Results as a table, as a folder of files, and as plots."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import statistics
import sys

from benchmarks.contenders import LIMIT
from benchmarks.contenders import OURS
from benchmarks.contenders import RATE

NAMED = "results.json", "results.md", "results.png"
_PACKAGES = """
keras jax tensorflow tensorflow-cpu torch keras-hub timm transformers zeromodels
flax optax numpy
""".split()
_BLUE, _GREY, _RED = "#2a6fbb", "#9aa5b1", "#c0392b"


def cells(rows):
    """Returns the table of contenders that were measured concurrently: a list
    of column names, then a list of strings for each row."""
    found = {row["name"]: row for row in rows}
    ours, limit, rate = (found.get(name) for name in (OURS, LIMIT, RATE))
    titles = (
        "|best ms|median|images/s|Gflop/s|of limit|MFU|MB|libs MB|first s|"
        "ours is|by round"
    ).split("|")
    table = [titles]
    for row in rows:
        speed, model = row["gigaflops_per_second"], row["name"] != RATE
        table.append(
            [
                row["name"],
                f"{1e3 * row['best']:.1f}",
                f"{1e3 * row['median']:.1f}",
                f"{row['images_per_second']:.1f}" if model else "-",
                f"{speed:.0f}",
                f"{limit['best'] / row['best']:.2f}"
                if limit and model
                else "-",
                f"{speed / rate['gigaflops_per_second']:.2f}" if rate else "-",
                f"{row['own_megabytes']:.0f}",
                f"{row['libraries_megabytes']:.0f}",
                f"{row['first_call']:.1f}",
                f"{row['best'] / ours['best']:.2f}x" if ours and model else "-",
                f"{_by_round(row, ours):.2f}x" if ours and model else "-",
            ]
        )
    return table


def _by_round(row, ours):
    """Returns the median over the rounds of the time relative to ours."""
    pairs = zip(row["seconds"], ours["seconds"], strict=True)
    return statistics.median(theirs / own for theirs, own in pairs)


def table(rows):
    """Returns the table for a terminal."""
    return aligned(cells(rows))


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def markdown(lines):
    head, *body = lines
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(x) + " |" for x in (head, rule, *body))


def title(row):
    return (
        f"{row['model']}, {row['image_size']} px, {row['what']}, batch "
        f"{row['batch']}, {row['dtype']}, {row['backend']}, {row['device']}"
    )


class Writer:
    """Collects results, and writes them to the folder `--output`, if given.

    A folder that is not empty is refused before the measurements.
    """

    def __init__(self, a, backend):
        self.folder, self.groups, self.argv = None, [], sys.argv[1:]
        if a.output:
            # The measured packages are installed.
            os.environ.setdefault("KERAS_BACKEND", backend)
            from keras_vit.training import run_folder

            self.folder = run_folder.check_output(a.output, a.overwrite)

    def add(self, rows):
        if rows:
            self.groups.append(rows)

    def write(self, plot, lines=cells, heading=lambda rows: title(rows[0])):
        if self.folder is None or not self.groups:
            return
        from keras_vit.training import run_folder

        run_folder.prepare_output(self.folder, NAMED)
        facts, text, picture = (self.folder / name for name in NAMED)
        run_folder.save_json(
            {
                "command": self.argv,
                **environment_info(),
                "results": [row for rows in self.groups for row in rows],
            },
            facts,
        )
        sections = [
            f"## {heading(rows)}\n\n{markdown(lines(rows))}\n"
            for rows in self.groups
        ]
        with run_folder.atomic_write(text) as path:
            path.write_text("\n".join(sections))
        if plot is not None:
            with run_folder.atomic_write(picture) as path:
                plot(self.groups).savefig(path, dpi=150)
        print(f"wrote {self.folder}")


def environment_info():
    """Returns date, versions and machine."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    from keras_vit.training import run_folder

    others = run_folder.environment_info()
    others["environment"].pop("KERAS_BACKEND", None)  # each row has its own
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "versions": {
            **versions,
            "keras_vit": run_folder.versions()["keras_vit"],
        },
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        },
        **others,
    }


def _processor():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # no Linux
        pass
    return platform.processor()


def bars(groups):
    """Plots images/s of every contender, the limit as a line."""
    from matplotlib.figure import Figure

    heights = [len(rows) + 1.5 for rows in groups]
    figure = Figure((7, 0.3 * sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)
    for ax, rows in zip(axes[:, 0], groups, strict=True):
        found = {r["name"]: r["images_per_second"] for r in rows}
        found.pop(RATE, None)
        limit = found.pop(LIMIT, None)
        if limit:
            ax.axvline(limit, color=_RED)
        colors = [_BLUE if name == OURS else _GREY for name in found]
        patches = ax.barh(list(found), list(found.values()), color=colors)
        ax.bar_label(patches, fmt="%.1f", fontsize=7, padding=2)
        ax.invert_yaxis()
        ax.set_title(title(rows[0]), fontsize=8)
        ax.set_xlabel(f"images/s; the line: {LIMIT}", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    return figure
