"""Documents the functions that are made when the package is imported.

`ViTB16` and the other variants are made by `variant_builder`, and the arguments
of `VisionTransformer` come from `ViTConfig`. griffe reads sources and sees
neither, so their signatures and docstrings are taken from the functions.
"""

import inspect

import griffe

import keras_vit
from keras_vit.models import BIT_VARIANTS
from keras_vit.models import VARIANTS

# Where griffe finds the functions: `{path of the module: names}`.
FUNCTIONS = {
    "models.variants": (*VARIANTS, *BIT_VARIANTS),
    "models.vit": ("VisionTransformer", "HybridVisionTransformer"),
    "models.resnet": ("BiT",),
}


class RuntimeFunctions(griffe.Extension):
    """Replaces the members in `FUNCTIONS` by what `inspect` finds."""

    def on_package(self, *, pkg, **kwargs):
        if pkg.name != "keras_vit":
            return
        for path, names in FUNCTIONS.items():
            for name in names:
                module = pkg[path]
                module.set_member(name, _describe(module, name))


def _describe(module, name):
    """Returns the `griffe.Function` of a function of the package."""
    function = getattr(keras_vit, name)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = None
        else:
            default = getattr(default, "__name__", None) or repr(default)
        if parameter.kind == inspect.Parameter.VAR_KEYWORD:
            default = "{}"
        kind = griffe.ParameterKind(parameter.kind.description)
        parameters.append(
            griffe.Parameter(parameter.name, kind=kind, default=default)
        )
    old = module.members[name]
    found = griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        lineno=old.lineno,
        endlineno=old.endlineno,
        parent=module,
    )
    found.docstring = griffe.Docstring(
        inspect.getdoc(function),
        parent=found,
        parser="google",
        parser_options={
            "warnings": False,  # arguments have no annotations
            "returns_multiple_items": False,
            "returns_named_value": False,
        },
    )
    return found
