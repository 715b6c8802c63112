"""Measures keras_vit.

    python tools/benchmark.py models --size S16 --backend torch --threads 2
        inference and training steps, compared with other packages and with
        the matrix products alone
    python tools/benchmark.py models --backend torch --batch 8 1 --before ../old
        compares two clones of the repository, before and after a change
    python tools/benchmark.py scaling --size B16 --backend jax --output runs/b16
        images per second and memory, by batch size and by image size
    KERAS_BACKEND=jax python tools/benchmark.py startup
        the times of importing, building, loading and compiling
    python tools/benchmark.py cost --table paper
        the computation of models, without running them, and the paper's

`benchmark.py KIND --help` describes what a kind measures, and its options. Runs
of different contenders alternate. Each figure is the best run, or the best run
and the median.
"""

import argparse
import os

from benchmarks import chart
from benchmarks import converting
from benchmarks import cost
from benchmarks import dense
from benchmarks import masked
from benchmarks import memory
from benchmarks import models
from benchmarks import pipeline
from benchmarks import quantized
from benchmarks import scaling
from benchmarks import self_supervised
from benchmarks import startup
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders import NAMES
from benchmarks.sizes import SIZES

# Kind: (function, module, help, names of the options).
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
    "convert": (
        lambda a: converting.convert(a.rounds),
        converting,
        "seconds and memory of converting B/16 and L/16",
        "rounds",
    ),
    "pipeline": (
        lambda a: pipeline.main(a.rounds),
        pipeline,
        "images per second from JPEG, with and without RandAugment",
        "rounds",
    ),
    "masked-digits": (
        lambda a: masked.digits(),
        masked,
        "digits with 10 labels per class, with and without pre-training",
        "",
    ),
    "chart": (
        lambda a: chart.main(),
        chart,
        "draws the chart of docs/speed.md from its first table",
        "",
    ),
    "self-supervised": (
        lambda a: self_supervised.digits(a.steps, a.seeds, a.methods),
        self_supervised,
        "digits after each method of pre-training, by k-NN and 10 labels",
        "steps seeds methods",
    ),
    "dino-step": (
        lambda a: self_supervised.step(a.rounds, a.batch),
        self_supervised,
        "a training step of DINO, compared with lightly's",
        "rounds batch=8",
    ),
    "dense": (
        lambda a: dense.main(a.encoder, a.images, a.image_size or 112),
        dense,
        "segmentation by a trained and by a random encoder",
        "encoder images image-size",
    ),
    "quantized": (
        lambda a: quantized.main(
            a.encoder, a.images, a.image_size or 112, a.rounds
        ),
        quantized,
        "a trained encoder in int8 and int4, in Keras and in other runtimes",
        "encoder images image-size rounds",
    ),
    "memory": (
        lambda a: memory.print_memory(),
        memory,
        "memory of several devices, gradient checkpointing, sliding windows",
        "",
    ),
    "cost": (
        lambda a: cost.main(a.table, a.model),
        cost,
        "computation and memory, computed; the paper's Table 6",
        "table model",
    ),
}


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


positive.__name__ = "positive integer"  # argparse uses it in errors


def options():
    """Returns the arguments of every option, by its name."""
    counts = {
        "type": positive,
        "nargs": "+",
    }
    return {
        "rounds": dict(type=positive, default=7, help="number of rounds"),
        "steps": dict(
            type=positive, default=1000, help="steps of pre-training"
        ),
        "seeds": dict(type=positive, default=3, help="number of seeds"),
        "methods": dict(
            nargs="+",
            choices=self_supervised.METHODS,
            default=self_supervised.METHODS,
            help="methods of pre-training",
        ),
        "size": dict(
            nargs="+", choices=SIZES, default=["S16"], help="model size"
        ),
        "what": dict(
            nargs="+",
            choices=("inference", "step"),
            default=["inference", "step"],
            help="a forward pass, a training step",
        ),
        "backend": dict(
            nargs="+",
            choices=CONTENDERS,
            default=list(CONTENDERS),
            help="Keras backend",
        ),
        "only": dict(
            nargs="+",
            choices=NAMES,
            help="only measure these contenders",
        ),
        "before": dict(
            metavar="FOLDER",
            help="also measure keras_vit of this other clone of the repository",
        ),
        "compile": dict(
            action="store_true",
            help="also measure PyTorch's packages with torch.compile",
        ),
        "export": dict(
            action="store_true",
            help="also measure keras_vit's model in every export format",
        ),
        "batch": {**counts, "default": [8], "help": "batch size"},
        "batches": {
            **counts,
            "default": [1, 2, 4, 8, 16, 32],
            "help": "batch sizes to measure",
        },
        "image-size": dict(
            type=positive, help="height and width (default: the model's, 224)"
        ),
        "image-sizes": {
            **counts,
            "default": [224, 384, 512, 768, 1024],
            "help": "image sizes to measure, with --batch",
        },
        "dtype": dict(
            choices=("float32", "bfloat16", "float16"),
            default="float32",
            help="of the weights and activations; training steps keep float32 "
            "weights",
        ),
        "threads": dict(
            type=positive, help="CPU threads of each process (default: all)"
        ),
        "times": dict(
            type=positive,
            default=1,
            help="runs per measurement; use more if a run is short",
        ),
        "verbose": dict(
            action="store_true",
            help="show the output of the processes and why one was skipped",
        ),
        "output": dict(
            metavar="FOLDER",
            help="also write results.json, results.md and results.png",
        ),
        "overwrite": dict(
            action="store_true", help="replace the files of an earlier run"
        ),
        "table": dict(
            choices=tuple(cost.TABLES), default="paper", help="what to print"
        ),
        "encoder": dict(
            metavar="FILE",
            required=True,
            help="a checkpoint, such as tools/trained_encoder.py writes",
        ),
        "images": dict(
            metavar="FOLDER", required=True, help="folder of images"
        ),
        "model": dict(default="ViTB16", help="model function of keras_vit"),
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
    """Adds an option, with one value if it is `single`, and its default."""
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
        text = f"(default {' '.join(map(str, shown))})"
        arguments["help"] = f"{arguments['help']} {text}".lstrip()
    one.add_argument(f"--{name}", **arguments)


def main(argv=None):
    arguments = parser().parse_args(argv)
    # Hide TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    KINDS[arguments.kind][0](arguments)


if __name__ == "__main__":
    main()
