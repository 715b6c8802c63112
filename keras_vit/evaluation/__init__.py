from keras_vit.evaluation.command_line import TrainedFlags as TrainedFlags
from keras_vit.evaluation.metrics import accuracy as accuracy
from keras_vit.evaluation.metrics import (
    average_precisions as average_precisions,
)
from keras_vit.evaluation.metrics import calibration_error as calibration_error
from keras_vit.evaluation.metrics import confusion_matrix as confusion_matrix
from keras_vit.evaluation.metrics import (
    mean_average_precision as mean_average_precision,
)
from keras_vit.evaluation.metrics import per_class as per_class
from keras_vit.evaluation.metrics import read_real as read_real
from keras_vit.evaluation.metrics import real_accuracy as real_accuracy
from keras_vit.evaluation.metrics import reliability as reliability
from keras_vit.evaluation.metrics import sigmoid as sigmoid
from keras_vit.evaluation.metrics import softmax as softmax
from keras_vit.evaluation.plots import draw_confusion as draw_confusion
from keras_vit.evaluation.plots import draw_reliability as draw_reliability
from keras_vit.evaluation.plots import draw_top as draw_top
from keras_vit.evaluation.predict import predict_dataset as predict_dataset
from keras_vit.evaluation.probes import Linear as Linear
from keras_vit.evaluation.probes import few_shot as few_shot
from keras_vit.evaluation.probes import linear_probe as linear_probe
from keras_vit.evaluation.probes import nearest_neighbours as nearest_neighbours
from keras_vit.evaluation.probes import ridge as ridge
from keras_vit.evaluation.trained import Trained as Trained
from keras_vit.evaluation.trained import feature_model as feature_model
from keras_vit.evaluation.trained import fitted as fitted
from keras_vit.evaluation.trained import load_trained as load_trained
from keras_vit.evaluation.trained import match_class_names as match_class_names
from keras_vit.evaluation.trained import num_classes_of as num_classes_of
from keras_vit.evaluation.trained import probabilities as probabilities
