"""Measures keras_vit.

    python tools/benchmark.py models --size S16 --backend torch --threads 2
        inference and training steps, compared with other packages and with
        the matrix products alone
    python tools/benchmark.py models --backend torch --batch-size 8 1 --before ../old
        compares two clones of the repository, before and after a change
    KERAS_BACKEND=jax python tools/benchmark.py startup
        the times of importing, building, loading and compiling
    python tools/benchmark.py cost --table paper
        the computation of models, without running them, and the paper's
    python tools/benchmark.py training sets/mnist dinov2_s14 --no-flip
        what weights are worth for fine-tuning

`benchmark.py KIND --help` describes what a kind measures, and its options.
"""

import argparse
import inspect
import os

from benchmarks import (
    contenders,
    cost,
    encoders,
    models,
    programs,
    recipes,
    relevance,
    waits,
)

# Parameters of these functions are the options of a kind, and those without a
# default are its arguments. One with `*flags` takes the flags of a recipe.
KINDS = {
    "models": models.models,
    "startup": programs.startup,
    "convert": programs.convert,
    "pipeline": programs.pipeline,
    "memory": programs.memory,
    "cost": cost.cost,
    "self-supervised": recipes.self_supervised,
    "training": recipes.training,
    "distillation": recipes.distillation,
    "probes": encoders.probes,
    "dense": encoders.dense,
    "quantized": encoders.quantized,
    "relevance": relevance.relevance,
    "waits": waits.waits,
    "inputs": waits.inputs,
}
CHOICES = {
    "backend": contenders.BACKENDS,
    "methods": recipes.METHODS,
    "only": contenders.CONTENDERS,
    "size": contenders.SIZES,
    "table": cost.TABLES,
    "what": contenders.WHAT,
}


def add_argument(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    """Adds a parameter of a function to its command line."""
    name, default = parameter.name, parameter.default
    if parameter.kind is parameter.VAR_POSITIONAL:
        return
    if default is parameter.empty:
        parser.add_argument(name)
        return
    options = {"default": default, "help": f"default: {default}"}
    if isinstance(default, bool):
        options["action"] = "store_true"
    else:
        one = default
        if isinstance(default, tuple):
            options["nargs"] = "+"
            one = default[0] if default else ""
        options["type"] = type(one)
        options["metavar"] = "N" if isinstance(one, int) else "NAME"
    if name in CHOICES:
        names = tuple(CHOICES[name])
        options["choices"] = names
        options["help"] += f"; one of {', '.join(map(repr, names))}"
    parser.add_argument(f"--{name.replace('_', '-')}", **options)


def main(argv: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, function in KINDS.items():
        text = inspect.getdoc(function) or ""
        one = kinds.add_parser(
            kind,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=form,
            allow_abbrev=False,
        )
        for parameter in inspect.signature(function).parameters.values():
            add_argument(one, parameter)
    arguments, flags = parser.parse_known_args(argv)
    given = vars(arguments)
    function = KINDS[given.pop("kind")]
    # Hide TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "flags" in inspect.signature(function).parameters:
        function(*given.values(), *flags)
    elif flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    else:
        function(**given)


if __name__ == "__main__":
    main()
