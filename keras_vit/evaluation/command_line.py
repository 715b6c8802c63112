"""The flags that every recipe for a trained model has."""

import dataclasses

from keras_vit.data.protocols import PROTOCOLS
from keras_vit.evaluation.trained import load_trained
from keras_vit.training.command_line import check_numbers
from keras_vit.training.command_line import flag


@dataclasses.dataclass(frozen=True)
class TrainedFlags:
    """Which model, how it sees images, and where results go.

    Theirs are fields of a subclass. A field that the subclass has too takes
    its default and its text.
    """

    weights: str | None = flag(
        None,
        "the folder of a recipe's run, its model.keras, any checkpoint or its "
        "address, or with --model a name such as imagenet21k",
        "FILE|NAME",
    )
    model: str | None = flag(
        None, "the model that --weights are for, if they are a name", "NAME"
    )
    image_size: int | None = flag(
        None, "without it, what the model was trained with"
    )
    mode: str | None = flag(
        None, "pixels: tf or torch; without it, as in training", "NAME"
    )
    protocol: str | None = flag(
        None,
        f"how images are resized: {', '.join(PROTOCOLS)}; without it, as in "
        "training, or vit_jax",
        "NAME",
    )
    batch_size: int = flag(64, "images at a time")
    skip_bad_images: bool = flag(
        False, "leave out, with a warning, what cannot be read in a folder"
    )
    overwrite: bool = flag(False, "replace an earlier run's files in --output")

    def __post_init__(self):
        check_numbers(self, "image_size", "batch_size", minimum=1)
        if self.weights is None:
            raise ValueError(
                "Give --weights: the model to use, such as runs/digits."
            )

    def trained(self):
        """Returns the `Trained` that these flags name."""
        return load_trained(
            self.weights,
            self.model,
            self.image_size,
            self.mode,
            self.protocol,
        )
