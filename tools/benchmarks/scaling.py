"""Images per second and memory of keras_vit, by batch size and by image size.

Every point is measured in its own process on one backend, as by `models`. Image
sizes are measured with `--batch`, batch sizes with `--image-size`.
"""

import argparse

from benchmarks import models
from benchmarks import report
from benchmarks.contenders import OURS

COLUMNS = "images_per_second", "own_megabytes"


def main(a):
    writer = report.Writer(a, a.backend)
    for axis, values in (("batch", a.batches), ("image_size", a.image_sizes)):
        rows = []
        for value in values:
            point = argparse.Namespace(**{**vars(a), axis: value})
            point.only = [OURS]
            rows += [
                {**row, "axis": axis}
                for row in models.measured(point, a.backend, a.size, a.what)
            ]
        writer.add(rows)
    for rows in writer.groups:
        print(f"\n{_heading(rows)}\n{report.aligned(_lines(rows))}")
    writer.write(_draw, _lines, _heading)


def _heading(rows):
    row = rows[0]
    fixed = {
        "batch": f"{row['image_size']} px",
        "image_size": f"batch {row['batch']}",
    }[row["axis"]]
    return (
        f"{row['model']}, {row['what']}, {fixed}, {row['dtype']}, "
        f"{row['backend']}, {row['device']}"
    )


def _lines(rows):
    axis = rows[0]["axis"]
    return [
        [axis.replace("_", " "), "images/s", "Gflop/s", "MB"],
        *(
            [
                str(row[axis]),
                f"{row['images_per_second']:.2f}",
                f"{row['gigaflops_per_second']:.0f}",
                f"{row['own_megabytes']:.0f}",
            ]
            for row in rows
        ),
    ]


def _draw(groups):
    from matplotlib.figure import Figure

    figure = Figure((8, 3 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False)
    for line, rows in zip(axes, groups, strict=True):
        axis = rows[0]["axis"]
        for ax, column in zip(line, COLUMNS, strict=True):
            ax.plot(
                [row[axis] for row in rows], [row[column] for row in rows], "o-"
            )
            ax.set_ylim(0)
            ax.set_title(_heading(rows), fontsize=7)
            ax.set_xlabel(axis.replace("_", " "), fontsize=8)
            ax.set_ylabel(
                "images/s" if column == COLUMNS[0] else "MB", fontsize=8
            )
            ax.spines[["top", "right"]].set_visible(False)
    return figure
