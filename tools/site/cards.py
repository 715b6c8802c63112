"""Model cards: one for each name of released weights.

What a card says about files, sizes and arguments is read from
keras_vit/weights/released.toml, and what the publishers say from
released.toml in this folder.
"""

import pathlib
import re
import tomllib
import urllib.parse

from keras_vit.weights.released import ALIASES
from keras_vit.weights.released import RELEASED

FACTS = tomllib.loads(
    (pathlib.Path(__file__).parent / "released.toml").read_text()
)
OVERVIEW = """# Released weights

`keras_vit.ViTB16(weights=NAME)` downloads the weights that a publisher
released, once, and loads them exactly. Each name has a card.

!!! warning "Not run here"

    The released files could not be downloaded where this package was developed.
    Loading is tested with files of the same names, shapes and layouts, and with
    the original implementations run on random weights ([numerical
    equivalence](../numbers.md)). The accuracies on these cards are those of the
    publishers, not measurements of this package.

The box above the table finds names, models and data, such as *dinov2* or *B16*.
Top-1 is the accuracy on ImageNet's validation images that the publisher states,
of a linear classifier for DINO and DINOv2; each card has its source.

<div class="filtered" markdown>

| model | top-1, % | million parameters | pixels | `weights=` | trained on |
|---|---|---|---|---|---|"""
# The epsilons of the norms, with the layers that have them.
EPSILONS = {
    "norm_epsilon": "layer norm",
    "group_norm_epsilon": "group norm",
}
# Numbers of parameters by model, from the page of sizes, which tests check.
PARAMETERS = {
    name: int(count.replace(",", ""))
    for line in (pathlib.Path(__file__).parents[2] / "docs" / "sizes.md")
    .read_text()
    .splitlines()
    for name, count in zip(
        re.findall(r"`(\w+)`", line),
        re.findall(r"\d[\d,]{6,}", line),
        strict=False,
    )
}
MODES = {
    "tf": "[-1, 1]: `preprocess_input(images)`",
    "torch": "ImageNet's mean and standard deviation: "
    '`preprocess_input(images, mode="torch")`',
}
GELU = {"gelu_tanh": "tanh approximation", "gelu": "exact"}


def pages():
    """Returns `{path on the site: Markdown}`."""
    found = {"models/index.md": _overview()}
    for page in FACTS["pages"]:
        found[f"models/{page['name']}.md"] = _page(page)
    return found


def released_on(page):
    """Returns `{name of weights: {model function: ReleasedWeights}}`."""
    prefix = page.get("models", "")
    found = {}
    for tag in page["cards"]:
        found[tag] = {
            model: released
            for (model, name), released in RELEASED.items()
            if name == tag and model.startswith("BiT_") == (prefix == "BiT_")
        }
    return found


def anchor(tag):
    """Returns the anchor of a card."""
    return tag.replace("+", "-").lower()


def _overview():
    lines = [OVERVIEW]
    for page in FACTS["pages"]:
        for tag, models in released_on(page).items():
            link = f"[`{tag}`]({page['name']}.md#{anchor(tag)})"
            facts = page["cards"][tag]
            for model, released in models.items():
                size = PARAMETERS.get(model)
                accuracy = facts.get("accuracy", {}).get(model)
                cells = (
                    f"[`{model}`](../api/models.md#keras_vit.{model})",
                    "" if accuracy is None else f"{accuracy:.1f}",
                    f"{size / 1e6:.1f}" if size else "",
                    f"{released.image_size}",
                    link,
                    facts["data"],
                )
                lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "</div>", "", ""]
    for alias, tag in ALIASES.items():
        lines += [f"`{alias}` is short for `{tag}`.", ""]
    lines.append(
        "`weights=` also takes the path or the URL of a checkpoint "
        "([convert](../convert.md)). How many parameters each model has: "
        "[model sizes](../sizes.md)."
    )
    return "\n".join(lines) + "\n"


def _page(page):
    lines = [f"# {page['title']}", "", f"[{page['paper']}]({page['url']})", ""]
    for tag, models in released_on(page).items():
        lines += _card(page, tag, models)
    return "\n".join(lines) + "\n"


def _card(page, tag, models):
    facts = page["cards"][tag]
    first, released = next(iter(models.items()))
    arguments = released.arguments
    has_resnet = any(name.startswith(("R", "BiT_")) for name in models)
    rows = {
        "Trained on": facts["data"],
        "License": page["license"],
        "Pixels": MODES[released.preprocess_mode],
        "GELU": GELU.get(arguments.get("activation"), "none: ReLU"),
        "Epsilon": ", ".join(
            f"{arguments[name]:g} ({layers})"
            for name, layers in EPSILONS.items()
            if name in arguments
            and not (name == "norm_epsilon" and page.get("models"))
            and not (name == "group_norm_epsilon" and not has_resnet)
        ),
    }
    if "resampling" in arguments:
        rows["Positions at another size"] = f"`{arguments['resampling']}`"
    if "url" in facts:
        rows["Paper"] = f"[{facts['paper']}]({facts['url']})"
    rows["Run here"] = "no: accuracies are the publisher's"
    lines = [
        f"## `{tag}` {{ #{anchor(tag)} }}",
        "",
        "```python",
        f'model = keras_vit.{first}(weights="{tag}")',
        "```",
        "",
    ]
    if "note" in facts:
        lines += [facts["note"], ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += [
        "",
        "| model | image size | classes | ImageNet top-1 | files |",
        "|---|---|---|---|---|",
    ]
    for model, released in models.items():
        accuracy = facts.get("accuracy", {}).get(model)
        cells = (
            f"[`{model}`](../api/models.md#keras_vit.{model})",
            f"{released.image_size}",
            _classes(released),
            "not stated" if accuracy is None else f"{accuracy:.1f} %",
            ", ".join(map(_file, released.files)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if "source" in facts:
        source = FACTS["sources"][facts["source"]]
        lines += ["", f"Accuracy: [{source['text']}]({source['url']})."]
    return [*lines, ""]


def _classes(released):
    if released.classes is None:
        return "no head"
    zero = " (zeros)" if released.zero_init_head else ""
    return f"{released.classes:,}{zero}"


def _file(file):
    """Returns a link to a file, with its host as text."""
    address = file[0].address
    if address.startswith("hf://"):
        owner, name, path = address.removeprefix("hf://").split("/", 2)
        address = f"https://huggingface.co/{owner}/{name}/blob/main/{path}"
    return f"[{urllib.parse.urlparse(address).netloc}]({address})"
