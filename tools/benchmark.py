"""Measures keras_vit.

    python tools/benchmark.py models --size S16 --backend torch --threads 2
        inference and training steps against other packages, and against the
        bare matrix products
    python tools/benchmark.py models --backend torch --batch 8 1 --before ../old
        the same of two clones of the repository, before a change and after
    python tools/benchmark.py scaling --size B16 --backend jax --output runs/b16
        images a second and memory, by batch and by image size
    KERAS_BACKEND=jax python tools/benchmark.py startup
        what importing, building, loading and compiling take

`benchmark.py KIND --help` says what exactly a kind measures, and its options.
Each figure is of runs that alternate: the best, or the best and the median.
"""

import argparse
import sys

from benchmarks import converting
from benchmarks import importing
from benchmarks import inference
from benchmarks import masked
from benchmarks import memory
from benchmarks import models
from benchmarks import pipeline
from benchmarks import scaling
from benchmarks import startup
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders import NAMES
from benchmarks.sizes import SIZES

# Of each kind: what measures it, its module, a line of help, and its options.
KINDS = {
    "models": (
        models.main,
        models,
        "speed and memory against other packages",
        "rounds size what backend only before compile export batch image-size "
        "dtype "
        "threads times verbose output overwrite",
    ),
    "scaling": (
        scaling.main,
        scaling,
        "speed and memory by batch and by image size",
        "rounds size=1 what=1 backend=1 batches image-sizes batch=1 image-size "
        "dtype threads times verbose output overwrite",
    ),
    "startup": (
        lambda a: startup.main(a.rounds),
        startup,
        "seconds to import, build, load and compile",
        "rounds",
    ),
    "import": (
        lambda a: importing.main(a.rounds),
        importing,
        "what importing the package costs",
        "rounds",
    ),
    "convert": (
        lambda a: converting.convert(a.rounds),
        converting,
        "seconds and memory of converting B/16 and L/16",
        "rounds",
    ),
    "inference": (
        lambda a: inference.against_timm(a.model, a.timm, a.batch, a.rounds),
        inference,
        "any model, such as R50ViTB16, against timm's",
        "rounds model timm batch=1",
    ),
    "pipeline": (
        lambda a: pipeline.main(a.rounds),
        pipeline,
        "images a second from JPEG, with RandAugment and without",
        "rounds",
    ),
    "masked-step": (
        lambda a: masked.step(a.rounds, a.batch),
        masked,
        "MAE's step against one of the encoder on all patches",
        "rounds batch=1",
    ),
    "masked-digits": (
        lambda a: masked.digits(),
        masked,
        "digits with 10 labels a class, after pre-training and without",
        "",
    ),
    "memory": (
        lambda a: memory.print_memory(),
        memory,
        "what each of several devices holds; gradient checkpointing",
        "",
    ),
}


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


positive.__name__ = "positive integer"  # argparse names it where it refuses


def options():
    """Returns the arguments of every option, by its name."""
    counts = {
        "type": positive,
        "nargs": "+",
    }
    return {
        "rounds": dict(type=positive, default=7, help="runs of each"),
        "size": dict(
            nargs="+", choices=SIZES, default=["S16"], help="of the model"
        ),
        "what": dict(
            nargs="+",
            choices=("inference", "step"),
            default=["inference", "step"],
            help="a forward pass, a step of training",
        ),
        "backend": dict(
            nargs="+",
            choices=CONTENDERS,
            default=list(CONTENDERS),
            help="of Keras",
        ),
        "only": dict(
            nargs="+",
            choices=NAMES,
            help="leave out all others",
        ),
        "before": dict(
            metavar="FOLDER",
            help="also keras_vit of this other clone of the repository",
        ),
        "compile": dict(
            action="store_true",
            help="also PyTorch's packages through torch.compile",
        ),
        "export": dict(
            action="store_true",
            help="also keras_vit's model in every format it is exported to",
        ),
        "batch": {**counts, "default": [8], "help": "images at once"},
        "batches": {
            **counts,
            "default": [1, 2, 4, 8, 16, 32],
            "help": "to measure",
        },
        "image-size": dict(
            type=positive, help="height and width (default: the model's, 224)"
        ),
        "image-sizes": {
            **counts,
            "default": [224, 384, 512, 768, 1024],
            "help": "measured with --batch",
        },
        "dtype": dict(
            choices=("float32", "bfloat16", "float16"),
            default="float32",
            help="of all in inference; steps keep weights in float32",
        ),
        "threads": dict(
            type=positive, help="processor cores of each (default: all)"
        ),
        "times": dict(
            type=positive,
            default=1,
            help="runs that are timed as one: more where one takes little",
        ),
        "verbose": dict(
            action="store_true",
            help="show what the processes say, and why one was skipped",
        ),
        "output": dict(
            metavar="FOLDER",
            help="also write results.json, results.md and results.png",
        ),
        "overwrite": dict(
            action="store_true", help="replace what an earlier run wrote there"
        ),
        "model": dict(default="ViTB16", help="of keras_vit"),
        "timm": dict(default="vit_base_patch16_224", help="its like in timm"),
    }


def parser():
    form = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        description=__doc__, formatter_class=form, allow_abbrev=False
    )
    kinds = whole.add_subparsers(dest="kind", required=True, metavar="KIND")
    known = options()
    for kind, (_, module, line, names) in KINDS.items():
        one = kinds.add_parser(
            kind,
            help=line,
            description=module.__doc__,
            formatter_class=form,
            allow_abbrev=False,
        )
        for name in names.split():
            name, single, _ = name.partition("=")
            _add(one, name, dict(known[name]), bool(single))
    return whole


def _add(one, name, arguments, single):
    """Adds an option, of one value if it is `single`, and says its default."""
    default = arguments.get("default")
    if "choices" in arguments and "nargs" in arguments:
        arguments["metavar"] = name.upper()
        names = ", ".join(map(repr, arguments["choices"]))
        arguments["help"] += f": {names}"
    if arguments.get("type") is positive:
        arguments["metavar"] = "N"
    if single and isinstance(default, list):
        del arguments["nargs"]
        arguments["default"] = default = default[0]
    if default is not None:
        shown = default if isinstance(default, list) else [default]
        said = f"(default {' '.join(map(str, shown))})"
        arguments["help"] = f"{arguments['help']} {said}".lstrip()
    one.add_argument(f"--{name}", **arguments)


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0].startswith("--") and argv[0] != "--help":
        argv = ["import", *argv]  # the one kind there once was
    arguments = parser().parse_args(argv)
    KINDS[arguments.kind][0](arguments)


if __name__ == "__main__":
    main()
