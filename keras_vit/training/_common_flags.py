"""The flags that every training recipe has."""

import dataclasses

from keras_vit.training._find_data import share_of
from keras_vit.training._flags import check_names
from keras_vit.training._flags import check_numbers
from keras_vit.training._flags import flag
from keras_vit.training._protocols import PROTOCOLS
from keras_vit.training._randaugment import AUGREG


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
    """What recipes that train share; theirs are fields of a subclass.

    A field that the subclass has too takes its default and its text. None
    stands for what the recipe decides when it has seen the data.
    """

    dataset: str = flag(
        "digits",
        "'digits' (in scikit-learn), a name in TFDS such as cifar10 or "
        "cifar100, or a folder: FOLDER/train/CLASS/* with "
        "FOLDER/test/CLASS/*, or FOLDER/CLASS/*, of which 20% is the test set",
        "NAME|FOLDER",
    )
    image_size: int | None = flag(None, "images are resized to N x N")
    patch_size: int | None = flag(None, "pixels a side of a patch")
    batch_size: int = flag(64, "images a step")
    steps: int | None = flag(None, "training steps")
    epochs: int | None = flag(
        None, "passes over the images, instead of --steps"
    )
    learning_rate: float | None = flag(None, "peak", "X")
    accumulate: int = flag(
        1, "parts in which a batch is computed, for less memory"
    )
    average: float = flag(
        0.0,
        "decay of a moving average of the weights, which is then evaluated "
        "and saved: 0.9999 in the paper's Table 2",
        "X",
    )
    keep: str = flag(
        "last",
        "which weights to save in the end: last, or best, those of the "
        "evaluation with the highest accuracy; with --holdout it is of "
        "held-out images, without it of the test images, whose accuracy is "
        "then optimistic",
        "last|best",
    )
    mode: str | None = flag(
        None,
        "pixels: tf for [-1, 1], torch for ImageNet's mean and deviation",
        "NAME",
    )
    protocol: str = flag(
        "simple",
        f"how images are cut and resized: {', '.join(PROTOCOLS)}; "
        "simple moves whole images a little, vit_jax is the paper's code",
        "NAME",
    )
    augment: str = flag(
        "none",
        f"RandAugment as in 'How to train your ViT?': {', '.join(AUGREG)}",
        "LEVEL",
    )
    mixup: float | None = flag(
        None, "p of mixup's Beta(p, p), such as 0.2; none without it", "P"
    )
    cutmix: float | None = flag(
        None,
        "p of cutmix's Beta(p, p), such as 1; with --mixup, each batch gets "
        "one of them",
        "P",
    )
    holdout: float | str | None = flag(
        None,
        "evaluate on a share of the training images, such as 0.1, which are "
        "then not trained on, and not on the test set; 'paper' for 1% of "
        "ImageNet, 2% of CIFAR and 10% of others; 0 trains on all images and "
        "evaluates on the test set, also where a preset leaves some out",
        "X|paper",
    )
    test_split: str | None = flag(
        None,
        "for a name in TFDS, the split to evaluate on; default: test, or "
        "validation where test has no labels",
        "NAME",
    )
    no_flip: bool = flag(
        False, "do not mirror images (text, left and right hands)"
    )
    skip_bad_images: bool = flag(
        False,
        "read every image of a folder first, and leave out with a warning "
        "what cannot be read; otherwise that is an error",
    )
    strategy: str = flag(
        "auto",
        "how several devices share a batch: mirrored or tpu (TensorFlow), "
        "data-parallel or model-parallel (JAX), none, or auto, which says "
        "what it takes",
        "NAME",
    )
    remat: bool = flag(
        False, "compute blocks twice instead of keeping them: less memory"
    )
    mixed_precision: bool = flag(
        False, "compute in bfloat16 (TPUs and newer GPUs)"
    )
    seed: int = flag(0, "of weights, order and augmentation, not of the split")
    checkpoint_every: int | None = flag(
        None, "steps between two checkpoints; default: between evaluations"
    )
    output: str | None = flag(
        None,
        "default: runs/ and the dataset's name; several hosts must share it",
        "DIR",
    )
    tensorboard: bool = flag(
        False, "write event files for TensorBoard into --output"
    )
    overwrite: bool = flag(False, "replace an earlier run's files in --output")

    def __post_init__(self):
        sizes = ("image_size", "patch_size", "batch_size", "steps", "epochs")
        counts = (*sizes, "accumulate", "checkpoint_every")
        check_numbers(self, *counts, minimum=1)
        check_numbers(self, "average", minimum=0, below=1)
        check_numbers(self, "learning_rate", above=0)
        for name in ("mixup", "cutmix"):
            check_numbers(self, name, minimum=0)
        check_names(self, keep=("last", "best"))
        share_of("", self.holdout)
        if self.holdout not in (None, "paper"):
            # A number, also where it was given as text.
            object.__setattr__(self, "holdout", float(self.holdout))
        check_numbers(self, "seed", minimum=0, below=2**32)
        if self.steps and self.epochs:
            raise ValueError("Give --steps or --epochs, not both.")
        # None is a size that the recipe chooses when it has seen the data.
        if self.batch_size and self.batch_size % self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} must divide --batch-size "
                f"{self.batch_size}."
            )

    def published_holdout(self):
        """Returns the share of the training images that a preset leaves out.

        They are not trained on. Unlike with `--holdout`, the test set is
        evaluated all the same, as the published code does.
        """
        return 0.0

    def optimizer_options(self):
        """Returns the arguments of `SGD` and `AdamW` that all recipes share:
        the published conventions, and what these flags decide."""
        return {
            "convention": "optax",
            "decay_kernels_only": True,
            "gradient_accumulation_steps": (
                self.accumulate if self.accumulate > 1 else None
            ),
            "use_ema": self.average > 0,
            "ema_momentum": self.average or 0.99,
        }

    def batches(self, one_hot=False):
        """Returns how images become batches, as `Job.batches`."""
        return {
            "image_size": self.image_size,
            "protocol": self.protocol,
            "mode": self.mode,
            # Mixed labels are no integers.
            "one_hot": one_hot or bool(self.mixup or self.cutmix),
        }

    def augmentation(self, channels):
        """Returns what changes images of training, as `Job.augment`."""
        return {
            "augment": self.augment,
            "mixup": self.mixup or 0.0,
            "cutmix": self.cutmix or 0.0,
            # Grey images are mostly signs, whose mirror images mean nothing.
            "flip": channels == 3 and not self.no_flip,
        }

    def whole_batch(self, wanted, count):
        """Returns the batch of whole parts that `count` images allow.

        Raises:
            ValueError: if there are fewer images than parts.
        """
        if count < self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} is more than the {count} "
                "training images."
            )
        return min(wanted, count) // self.accumulate * self.accumulate
