"""The pages of the API reference, one for each public package."""

import inspect
import re
import types
from collections.abc import Callable

from cards import TEMPLATES

import keras_vit
from keras_vit.config import (
    BIT_VARIANTS,
    VARIANTS,
    ResNetConfig,
    ViTConfig,
    variant_sizes,
)
from keras_vit.weights.released import RELEASED

MODELS = ("VisionTransformer", "HybridVisionTransformer", "BiT")
TITLES = {"hub": "Hugging Face hub", "pretraining": "Masked pre-training"}


def pages() -> dict[str, str]:
    """Returns `{path on the site: Markdown}`."""
    named = (*MODELS, *VARIANTS, *BIT_VARIANTS)
    functions = [
        f"keras_vit.{name}"
        for name in public_names(keras_vit)
        if callable(getattr(keras_vit, name)) and name not in named
    ]
    functions += [
        f"{module.__name__}.{name}"
        for module in (keras_vit.models, keras_vit.families, keras_vit.weights)
        for name in public_names(module)
        if not hasattr(keras_vit, name)
    ]
    found = {
        "api/models.md": _models(),
        "api/functions.md": _page(
            "Functions",
            "Functions and classes of `keras_vit`, and others of its models.",
            functions,
        ),
    }
    for name in keras_vit.__all__:
        module = getattr(keras_vit, name)
        if not inspect.ismodule(module):
            continue
        found[f"api/{name}.md"] = _page(
            TITLES.get(name, name.capitalize()),
            f"`keras_vit.{name}`: {inspect.getdoc(module) or ''}",
            [f"keras_vit.{name}.{x}" for x in public_names(module)],
        )
    steps = keras_vit.data.steps
    found["api/steps.md"] = _page(
        "Steps",
        f"`keras_vit.data.steps`: {inspect.getdoc(steps)}",
        [f"keras_vit.data.steps.{name}" for name in public_names(steps)],
    )
    return found


def public_names(module: types.ModuleType) -> list[str]:
    """Returns the public names of a module or package, without those of modules."""
    names = [x for x in module.__all__ if not inspect.ismodule(getattr(module, x))]
    # A constant such as PROTOCOLS comes after functions and classes.
    return sorted(names, key=lambda name: (name.isupper(), name.lower()))


def _models() -> str:
    parameters = inspect.signature(keras_vit.ViTB16).parameters.values()
    first = [x for x in parameters if x.kind is not x.KEYWORD_ONLY]
    lines = "".join(f"    {x.replace(annotation=x.empty)},\n" for x in first)
    return TEMPLATES.get_template("models.md.jinja").render(
        models=MODELS,
        signature=f"(\n{lines})",
        variants={x: variant_sizes(x) for x in (*VARIANTS, *BIT_VARIANTS)},
        weights={
            x: [tag for model, tag in RELEASED if model == x]
            for x in (*VARIANTS, *BIT_VARIANTS)
        },
        fields={
            "ViTConfig": _fields(keras_vit.VisionTransformer, ViTConfig),
            "ResNetConfig": _fields(keras_vit.BiT, ResNetConfig),
        },
    )


def _fields(function: Callable[..., object], config: type) -> list[tuple[str, ...]]:
    """Returns the name, the type, the default and the description of the arguments
    of a function that are fields of a config."""
    text = inspect.getdoc(config).partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.M)
    parameters = inspect.signature(function).parameters
    return [
        (
            name,
            inspect.formatannotation(parameters[name].annotation),
            repr(parameters[name].default),
            " ".join(described.split()),
        )
        for name, described in entries
    ]


def _page(title: str, text: str, names: list[str]) -> str:
    parts = [f"# {title}\n\n{text}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(parts)
