from keras_vit.evaluation.callbacks import NearestNeighbors
from keras_vit.evaluation.classifiers import (
    LoadedClassifier,
    feature_model,
    load_classifier,
    match_class_names,
    num_classes_of,
    probabilities,
)
from keras_vit.evaluation.coco import (
    CocoMetrics,
    coco_metrics,
    evaluate_boxes,
    find_boxes,
    plot_boxes,
)
from keras_vit.evaluation.frozen import feature_dataset, split_at_head
from keras_vit.evaluation.predict import predict_dataset, predict_splits
from keras_vit.evaluation.probes import (
    Linear,
    few_shot,
    few_shot_of_model,
    linear_probe,
    nearest_neighbors,
    ridge,
)
from keras_vit.evaluation.scores import (
    accuracy,
    average_precisions,
    calibration_error,
    confusion_matrix,
    load_real_labels,
    mean_average_precision,
    mean_iou,
    per_class,
    real_accuracy,
    reliability,
    sigmoid,
    softmax,
)

__all__ = [
    "accuracy", "average_precisions", "calibration_error", "coco_metrics",
    "CocoMetrics", "confusion_matrix", "evaluate_boxes", "feature_dataset",
    "feature_model", "few_shot", "few_shot_of_model", "find_boxes", "Linear",
    "linear_probe", "load_classifier", "load_real_labels", "LoadedClassifier",
    "match_class_names", "mean_average_precision", "mean_iou", "nearest_neighbors",
    "NearestNeighbors", "num_classes_of", "per_class", "plot_boxes",
    "predict_dataset", "predict_splits", "probabilities", "real_accuracy",
    "reliability", "ridge", "sigmoid", "softmax", "split_at_head",
]  # fmt: skip
