"""The command line of reports, which for detectors draw the objects found."""

from typing import TYPE_CHECKING

import keras

from keras_vit import detection
from keras_vit._types import Array
from keras_vit.evaluation.detection import find_boxes, plot_boxes
from keras_vit.evaluation.loading import load_classifier
from keras_vit.inspection import command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(argv: list[str] | None = None) -> int:
    """Runs the command line of reports and returns its exit status."""
    return command_line.main(argv, draw_boxes=draw_boxes)


def draw_boxes(
    weights: str, images: list[Array], mode: str | None = None
) -> tuple[keras.Model, int | tuple[int, int], str, "Figure | None"]:
    """Returns a detector, the size of its images and their `mode`, and a figure
    of the objects that it finds in images."""
    trained = load_classifier(weights, mode=mode)
    model, size, mode = trained.model, trained.image_size, trained.mode
    images = images[:8]
    found = find_boxes(model, images, size, mode, least_score=0.4)
    names = trained.class_names or detection.class_names(model)
    count = model.output["classes"].shape[-1]
    names = names or [f"class {i}" for i in range(count)]
    pictures = [image / 255 for image in images]
    figure = plot_boxes(pictures, None, found, names) if images else None
    return model, size, mode, figure
