"""What batches are asked for: one dataclass, checked in one place."""

import dataclasses

from keras_vit.training._protocols import PROTOCOLS
from keras_vit.training._randaugment import AUGREG

MODES = ("tf", "torch")


@dataclasses.dataclass(frozen=True)
class Batches:
    """The arguments of `Data.train`, `Data.dev` and `Data.test`."""

    image_size: int
    batch_size: int
    protocol: str = "simple"
    mode: str = "tf"
    one_hot: bool = False
    shard: tuple = (0, 1)
    # For training alone.
    seed: int = 0
    augment: str = "none"
    mixup: float = 0.0
    cutmix: float = 0.0
    flip: bool = True
    start: int = 0
    # In how many micro-batches each batch comes. Images, augmentation and
    # mixing are those of the whole batch, which `start` counts.
    micro_batches: int = 1

    def __post_init__(self):
        _raise_unless_in("protocol", self.protocol, PROTOCOLS)
        _raise_unless_in("augment", self.augment, AUGREG)
        _raise_unless_in("mode", self.mode, MODES)
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if not 0 <= value <= 1:  # also not NaN
                raise ValueError(
                    f"--{name} must be 0 (none) to 1. Received: {value}"
                )
        for name, least in (("image_size", 1), ("batch_size", 1), ("start", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be {least} or more. Received: "
                    f"{getattr(self, name)}"
                )
        index, count = self.shard
        if not 0 <= index < count:
            raise ValueError(
                "`shard` must be (index, count) with 0 <= index < count. "
                f"Received: {self.shard}"
            )
        if self.batch_size % count:
            raise ValueError(
                f"A batch of {self.batch_size} images, that of all hosts "
                f"together, cannot be shared by {count} hosts. Use a multiple "
                f"of {count}."
            )
        if self.micro_batches < 1 or len(self.own) % self.micro_batches:
            raise ValueError(
                f"{len(self.own)} images of a batch on each host cannot be "
                "split into micro-batches of the same size. Use a divisor. "
                f"Received: micro_batches={self.micro_batches}"
            )

    @property
    def micro_batch_size(self):
        """The rows of a micro-batch that are this host's."""
        return len(self.own) // self.micro_batches

    @property
    def own(self):
        """The rows of the whole batch that are this host's, as a range."""
        index, count = self.shard
        rows = self.batch_size // count
        return range(index * rows, (index + 1) * rows)

    @property
    def mixed(self):
        return self.mixup > 0 or self.cutmix > 0


def own_part(total, rules):
    """This host's part of a test set, and how many batches every host gives.

    Hosts give as many batches as each other, as they evaluate in step; the
    images that some of them lack are padding of weight 0. Keras divides a
    loss by the number of rows, padding included, so the weights of the images
    are a little over 1: all weights together have a mean of 1.

    Returns:
        A range of the images, the number of batches, and an image's weight.
    """
    index, count = rules.shard
    most = -(-total // count)
    part = range(min(index * most, total), min((index + 1) * most, total))
    batches = -(-most // len(rules.own))
    return part, batches, batches * rules.batch_size / total


def _raise_unless_in(name, value, known):
    if value not in known:
        raise ValueError(
            f"There is no {name} {value!r}. --{name} takes: {', '.join(known)}."
        )
