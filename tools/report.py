"""Writes a report about what a model attends to; see `--help`."""

import os
import sys


def draw_boxes(weights, images, mode=None):
    """Returns a detector, the size of its images and their `mode`, and a figure
    of the objects that it finds in images."""
    from keras_vit import detection
    from keras_vit import evaluation

    trained = evaluation.load_classifier(weights, mode=mode)
    model, size, mode = trained.model, trained.image_size, trained.mode
    images = images[:8]
    found = evaluation.find_boxes(model, images, size, mode, least_score=0.4)
    names = trained.class_names or detection.class_names(model)
    count = model.output["classes"].shape[-1]
    names = names or [f"class {i}" for i in range(count)]
    pictures = [image / 255 for image in images]
    figure = images and evaluation.plot_boxes(pictures, None, found, names)
    return model, size, mode, figure or None


if __name__ == "__main__":
    # Hide TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from keras_vit.inspection.command_line import main

    sys.exit(main(draw_boxes=draw_boxes))
