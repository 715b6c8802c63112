"""Results of a position embedding ablation, as text, JSON and a bar chart."""

import dataclasses

from keras_vit._program import require
from keras_vit.training.run_folder import replacing
from keras_vit.training.run_folder import save_json
from keras_vit.training.run_folder import versions

PLACES = {
    "stem": "stem",
    "every_layer": "every layer",
    "every_layer_shared": "every layer, shared",
}


def _table(rows, shots, column="few_shot"):
    """Returns the table in the layout of the paper's Table 8.

    Args:
        rows: List of dicts with the keys `positions`, `placement` and `column`.
        shots: Integer. Number of training images per class.
        column: String. Key of the accuracy: "few_shot" or "test_accuracy".

    Returns:
        String. Combinations without a row have "-".
    """
    found = {(r["positions"], r["placement"]): r[column] for r in rows}
    what = f"{shots}-shot" if column == "few_shot" else "test"
    lines = [f"{what:14}" + "".join(f"{PLACES[p]:>21}" for p in PLACES)]
    for kind in dict.fromkeys(row["positions"] for row in rows):
        cells = (found.get((kind, place)) for place in PLACES)
        cells = ("-" if c is None else f"{c:.4f}" for c in cells)
        lines.append(f"{kind:14}" + "".join(f"{c:>21}" for c in cells))
    return "\n".join(lines) + "\n"


def write_ablation(rows, config, data, output):
    """Writes `table.txt`, `results.json` and `table.png`, replacing older ones.

    It is called after each trained setting, so that an interrupted ablation
    leaves the results so far.

    Args:
        rows: List of dicts, one per trained setting, with the keys
            `positions`, `placement`, `few_shot`, `few_shot_std` and
            `test_accuracy`.
        config: Dataclass instance with the fields `shots` and `steps`.
        data: `keras_vit.data.ImageDataset`.
        output: Path of the output folder.
    """
    text = _table(rows, config.shots)
    text += "\n" + _table(rows, config.shots, "test_accuracy")
    with replacing(output / "table.txt") as temporary:
        temporary.write_text(text)
    facts = {
        "rows": rows,
        "config": dataclasses.asdict(config),
        "data": data.metadata(),
        "versions": versions(),
    }
    save_json(facts, output / "results.json")
    _draw(rows, config, data, output / "table.png")


def _draw(rows, config, data, path):
    """Plots the few-shot accuracy of each setting as a bar.

    Error bars show the standard deviation over samples of training images.
    """
    figure = require("matplotlib.figure").Figure(
        figsize=(8, 0.4 * len(rows) + 1.2), layout="constrained"
    )
    axes = figure.subplots()
    names = [f"{r['positions']}, {PLACES[r['placement']]}" for r in rows]
    kinds = dict.fromkeys(row["positions"] for row in rows)
    colours = {kind: f"C{i}" for i, kind in enumerate(kinds)}
    axes.barh(
        names,
        [row["few_shot"] for row in rows],
        xerr=[row["few_shot_std"] for row in rows],
        color=[colours[row["positions"]] for row in rows],
    )
    for i, row in enumerate(rows):
        axes.text(0.01, i, f"{row['few_shot']:.4f}", va="center", color="white")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(
        f"{config.shots}-shot accuracy on {data.name}, {config.steps} steps"
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
