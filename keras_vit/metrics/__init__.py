"""Metrics of the recipes, as Keras metrics."""

from keras_vit.metrics.average_precision import MeanAveragePrecision, get_metric
from keras_vit.metrics.mean_iou import MeanIoU

__all__ = ["get_metric", "MeanAveragePrecision", "MeanIoU"]
