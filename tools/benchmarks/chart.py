"""Draws docs/images/speed.png from the first table of docs/speed.md.

Cells of the table are milliseconds for a batch of 8 and for one image, such as
"398 / 106".
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "images" / "speed.png"
# Row of the table: name and color in the chart.
ROWS = {
    "keras_vit, tanh GELU, as Google's weights": ("keras_vit", "#2a6fbb"),
    "keras-hub": ("keras-hub", "#7b8794"),
    "timm": ("timm", "#b0b9c2"),
    "transformers": ("transformers", "#d5dade"),
}


def table():
    """Returns `(columns, {row: {column: (batch of 8, batch of 1)}})`."""
    lines = PAGE.read_text().split("\n\n| ")[1].split("\n\n")[0].splitlines()
    (_, *columns), _, *rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in lines
    ]
    found = {}
    for name, *cells in rows:
        found[name] = {
            column: tuple(float(x) for x in cell.split("/"))
            for column, cell in zip(columns, cells, strict=False)
            if cell
        }
    return columns, found


def main(a):
    from matplotlib.figure import Figure

    columns, found = table()
    figure = Figure((8, 5), layout="constrained")
    for axes, index, title in zip(
        figure.subplots(2, 1), (0, 1), ("8 images", "1 image"), strict=True
    ):
        names = {}
        for place, column in enumerate(columns):
            rows = [row for row in ROWS if column in found[row]]
            for i, row in enumerate(rows):
                name, color = ROWS[row]
                at = place + (i - (len(rows) - 1) / 2) / (len(ROWS) + 1)
                bars = axes.bar(
                    at,
                    found[row][column][index],
                    width=1 / (len(ROWS) + 1.5),
                    color=color,
                )
                axes.bar_label(bars, fmt="%.0f", fontsize=8)
                names[name] = bars
        axes.set_xticks(range(len(columns)), columns)
        axes.set_ylabel("ms")
        axes.set_title(f"ViT-S/16, inference, {title}", fontsize=10)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        if not index:
            axes.legend(names.values(), names, ncols=len(names), fontsize=8)
            axes.margins(y=0.3)
    figure.savefig(PICTURE, dpi=110)
    print(f"wrote {PICTURE}")
