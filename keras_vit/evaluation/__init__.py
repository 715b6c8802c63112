from keras_vit.evaluation.callbacks import (
    NearestNeighbours as NearestNeighbours,
)
from keras_vit.evaluation.classifiers import LoadedClassifier as LoadedClassifier
from keras_vit.evaluation.classifiers import feature_model as feature_model
from keras_vit.evaluation.classifiers import fitted as fitted
from keras_vit.evaluation.classifiers import load_classifier as load_classifier
from keras_vit.evaluation.classifiers import match_class_names as match_class_names
from keras_vit.evaluation.classifiers import num_classes_of as num_classes_of
from keras_vit.evaluation.classifiers import probabilities as probabilities
from keras_vit.evaluation.coco import CocoMetrics as CocoMetrics
from keras_vit.evaluation.coco import coco_metrics as coco_metrics
from keras_vit.evaluation.coco import evaluate_boxes as evaluate_boxes
from keras_vit.evaluation.coco import find_boxes as find_boxes
from keras_vit.evaluation.coco import plot_boxes as plot_boxes
from keras_vit.evaluation.coco import targets_by_image as targets_by_image
from keras_vit.evaluation.frozen import feature_dataset as feature_dataset
from keras_vit.evaluation.frozen import split_at_head as split_at_head
from keras_vit.evaluation.predict import predict_dataset as predict_dataset
from keras_vit.evaluation.predict import predict_splits as predict_splits
from keras_vit.evaluation.probes import Linear as Linear
from keras_vit.evaluation.probes import few_shot as few_shot
from keras_vit.evaluation.probes import few_shot_of_model as few_shot_of_model
from keras_vit.evaluation.probes import linear_probe as linear_probe
from keras_vit.evaluation.probes import nearest_neighbours as nearest_neighbours
from keras_vit.evaluation.probes import ridge as ridge
from keras_vit.evaluation.scores import accuracy as accuracy
from keras_vit.evaluation.scores import (
    average_precisions as average_precisions,
)
from keras_vit.evaluation.scores import calibration_error as calibration_error
from keras_vit.evaluation.scores import confusion_matrix as confusion_matrix
from keras_vit.evaluation.scores import load_real_labels as load_real_labels
from keras_vit.evaluation.scores import (
    mean_average_precision as mean_average_precision,
)
from keras_vit.evaluation.scores import mean_iou as mean_iou
from keras_vit.evaluation.scores import per_class as per_class
from keras_vit.evaluation.scores import real_accuracy as real_accuracy
from keras_vit.evaluation.scores import reliability as reliability
from keras_vit.evaluation.scores import sigmoid as sigmoid
from keras_vit.evaluation.scores import softmax as softmax
