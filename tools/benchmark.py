"""Measures keras_vit.

    python tools/benchmark.py models --size S16 --backend torch --threads 2
        inference and training steps, compared with other packages and with
        the matrix products alone
    python tools/benchmark.py models --backend torch --batch 8 1 --before ../old
        compares two clones of the repository, before and after a change
    KERAS_BACKEND=jax python tools/benchmark.py startup
        the times of importing, building, loading and compiling
    python tools/benchmark.py cost --table paper
        the computation of models, without running them, and the paper's

`benchmark.py KIND --help` describes what a kind measures, and its options.
"""

import argparse
import os

from benchmarks import chart
from benchmarks import converting
from benchmarks import cost
from benchmarks import dense
from benchmarks import memory
from benchmarks import models
from benchmarks import pipeline
from benchmarks import quantized
from benchmarks import self_supervised
from benchmarks import startup
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders import NAMES
from benchmarks.contenders import SIZES

# Kind: its module, whose `main` gets the options, and their names.
KINDS = {
    "models": (
        models,
        "rounds size what backend only before compile export batch image-size "
        "threads verbose output",
    ),
    "startup": (startup, "rounds"),
    "convert": (converting, "rounds"),
    "pipeline": (pipeline, "rounds"),
    "chart": (chart, ""),
    "self-supervised": (self_supervised, "steps seeds methods"),
    "dense": (dense, "encoder images image-size"),
    "quantized": (quantized, "encoder images image-size rounds"),
    "memory": (memory, ""),
    "cost": (cost, "table model"),
}


def number(default, what):
    """Returns an option that is an integer."""
    return {
        "type": int,
        "default": default,
        "help": f"{what}; {default} by default",
    }


def some_of(choices, default, what):
    """Returns an option that is one or more of some names."""
    shown = "all" if len(default) > 1 else default[0]
    return {
        "nargs": "+",
        "choices": choices,
        "default": list(default),
        "help": f"{what}; {shown} by default",
    }


def flag(what):
    return {"action": "store_true", "help": what}


def path(metavar, what, **more):
    return {"metavar": metavar, "help": what, **more}


METHODS = self_supervised.METHODS
WHAT = ("inference", "step")
OPTIONS = {
    "rounds": number(7, "number of rounds"),
    "steps": number(1000, "steps of pre-training"),
    "seeds": number(3, "number of seeds"),
    "methods": some_of(METHODS, METHODS, "methods of pre-training"),
    "size": some_of(SIZES, ["S16"], "model size"),
    "what": some_of(WHAT, WHAT, "a forward pass, a training step"),
    "backend": some_of(CONTENDERS, CONTENDERS, "Keras backend"),
    "only": {
        "nargs": "+",
        "choices": NAMES,
        "metavar": "NAME",
        "help": f"only measure these: {', '.join(map(repr, NAMES))}",
    },
    "before": path(
        "FOLDER", "also measure keras_vit of this other clone of the repository"
    ),
    "compile": flag("also measure PyTorch's packages with torch.compile"),
    "export": flag("also measure keras_vit's model in every export format"),
    "batch": {**number(8, "batch size"), "nargs": "+", "default": [8]},
    "image-size": {
        "nargs": "+",
        "type": int,
        "help": "height and width; 224, or 112 for an encoder, by default",
    },
    "threads": number(os.cpu_count(), "CPU threads of each process"),
    "verbose": flag("show the output of the processes and why one was skipped"),
    "output": path(
        "FOLDER", "also write results.json and results.md to a new folder"
    ),
    "table": {
        "choices": tuple(cost.TABLES),
        "default": "paper",
        "help": "what to print; the paper's by default",
    },
    "encoder": path(
        "FILE",
        "a checkpoint, such as tools/trained_encoder.py writes",
        required=True,
    ),
    "images": path("FOLDER", "folder of images", required=True),
    "model": {
        "default": "ViTB16",
        "help": "model function of keras_vit; ViTB16 by default",
    },
}


def main(argv=None):
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (module, names) in KINDS.items():
        line = module.__doc__.partition("\n")[0]
        one = kinds.add_parser(
            kind, help=line, description=module.__doc__, formatter_class=form
        )
        for name in names.split():
            one.add_argument(f"--{name}", **OPTIONS[name])
    arguments = parser.parse_args(argv)
    # Hide TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    KINDS[arguments.kind][0].main(arguments)


if __name__ == "__main__":
    main()
