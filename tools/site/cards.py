"""Model cards: one for each name of released weights.

What a card says about files, sizes and arguments is read from
keras_vit/weights/released.toml, and what the publishers say from
released.toml in this folder. The templates here have the text.
"""

import pathlib
import re
import tomllib
import urllib.parse
from typing import Any

import jinja2

from keras_vit.weights.released import ALIASES, RELEASED

HERE = pathlib.Path(__file__).parent
FACTS = tomllib.loads((HERE / "released.toml").read_text())
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    undefined=jinja2.ChainableUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
# Numbers of parameters by model, from the page of sizes, which tests check.
PARAMETERS = {
    name: int(count.replace(",", ""))
    for line in (HERE.parents[1] / "docs/sizes.md").read_text().splitlines()
    for name, count in zip(
        re.findall(r"`(\w+)`", line),
        re.findall(r"\d[\d,]{6,}", line),
        strict=False,
    )
}


def pages() -> dict[str, str]:
    """Returns `{path on the site: Markdown}`."""
    found = [
        {**page, "cards": [card(page, tag) for tag in page["cards"]]}
        for page in FACTS["pages"]
    ]
    sources = {"sources": FACTS["sources"]}
    overview = TEMPLATES.get_template("overview.md.jinja")
    one = TEMPLATES.get_template("cards.md.jinja")
    return {
        "models/index.md": overview.render(pages=found, aliases=ALIASES, **sources),
        **{
            f"models/{page['name']}.md": one.render(**page, **sources) for page in found
        },
    }


def released_on(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns `{name of weights: {model function: ReleasedWeights}}`."""
    is_bit = page.get("models") == "BiT_"
    return {
        tag: {
            model: released
            for (model, name), released in RELEASED.items()
            if name == tag and model.startswith("BiT_") == is_bit
        }
        for tag in page["cards"]
    }


def card(page: dict[str, Any], tag: str) -> dict[str, Any]:
    """Returns what the templates show of a name of weights."""
    facts, models = page["cards"][tag], released_on(page)[tag]
    has_resnet = any(name.startswith(("R", "BiT_")) for name in models)
    layers = {}
    if not page.get("models"):
        layers["norm_epsilon"] = "layer norm"
    if has_resnet:
        layers["group_norm_epsilon"] = "group norm"
    arguments = next(iter(models.values())).arguments
    return {
        "tag": tag,
        "anchor": tag.replace("+", "-").lower(),
        "facts": facts,
        "epsilons": [
            f"{arguments[name]:g} ({layer})"
            for name, layer in layers.items()
            if name in arguments
        ],
        "models": [
            {
                "name": name,
                "released": released,
                "accuracy": facts.get("accuracy", {}).get(name),
                "parameters": PARAMETERS.get(name),
                "classes": classes(released),
                "files": [link(file.address) for file, *_ in released.files],
            }
            for name, released in models.items()
        ],
    }


def classes(released: Any) -> str:
    if released.classes is None:
        return "no head"
    zero = " (zeros)" if released.zero_init_head else ""
    return f"{released.classes:,}{zero}"


def link(address: str) -> str:
    """Returns a link to a file, with its host as text."""
    if address.startswith("hf://"):
        owner, name, path = address.removeprefix("hf://").split("/", 2)
        address = f"https://huggingface.co/{owner}/{name}/blob/main/{path}"
    return f"[{urllib.parse.urlparse(address).netloc}]({address})"
