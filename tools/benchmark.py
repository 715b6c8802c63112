"""Measures keras_vit.

    KERAS_BACKEND=jax python tools/benchmark.py import
        what importing it costs
    python tools/benchmark.py convert
        seconds and memory of converting B/16 and L/16
    KERAS_BACKEND=torch python tools/benchmark.py inference \\
        --model R50ViTB16 --timm vit_base_r50_s16_224 --batch 8
        a model against timm's
    KERAS_BACKEND=jax python tools/benchmark.py pipeline
        images a second at 224 px from JPEG, with and without RandAugment, and
        RandAugment alone against keras-cv's and Keras core's
    KERAS_BACKEND=jax python tools/benchmark.py masked-step
        MAE's step against one of the encoder on all patches
    KERAS_BACKEND=jax python tools/benchmark.py masked-digits
        digits with 10 labels a class, after masked pre-training and without
    KERAS_BACKEND=jax python tools/benchmark.py memory
        what each of several devices holds of ViT-H/14; gradient checkpointing

Each figure is of runs that alternate: the best, or the best and the median.
What exactly is measured stands at the top of benchmarks/*.py.
"""

import argparse

from benchmarks import converting
from benchmarks import importing
from benchmarks import inference
from benchmarks import masked
from benchmarks import memory
from benchmarks import models
from benchmarks import pipeline

KINDS = {
    "import": lambda a: importing.main(a.rounds),
    "convert": lambda a: converting.convert(a.rounds),
    "inference": lambda a: inference.against_timm(
        a.model, a.timm, a.batch, a.rounds
    ),
    "models": models.main,
    "pipeline": lambda a: pipeline.main(a.rounds),
    "masked-step": lambda a: masked.step(a.rounds, a.batch),
    "masked-digits": lambda a: masked.digits(),
    "memory": lambda a: memory.print_memory(),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("kind", choices=KINDS, nargs="?", default="import")
    parser.add_argument(
        "--rounds", type=int, default=7, help="runs of each (default 7)"
    )
    parser.add_argument(
        "--model", default="ViTB16", help="of keras_vit (default ViTB16)"
    )
    parser.add_argument(
        "--timm",
        default="vit_base_patch16_224",
        help="its like in timm (default vit_base_patch16_224)",
    )
    parser.add_argument("--batch", type=int, default=8, help="(default 8)")
    parser.add_argument("--size", nargs="*", default=["S16"])
    parser.add_argument("--what", nargs="*", default=["inference", "step"])
    parser.add_argument(
        "--backend", nargs="*", default=["jax", "tensorflow", "torch"]
    )
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--output")
    arguments = parser.parse_args()
    KINDS[arguments.kind](arguments)


if __name__ == "__main__":
    main()
