from keras_vit.evaluation._calibration import (
    calibration_error as calibration_error,
)
from keras_vit.evaluation._calibration import reliability as reliability
from keras_vit.evaluation._classes import confusion_matrix as confusion_matrix
from keras_vit.evaluation._classes import per_class as per_class
from keras_vit.evaluation._few_shot import few_shot as few_shot
from keras_vit.evaluation._linear import Linear as Linear
from keras_vit.evaluation._linear import linear_probe as linear_probe
from keras_vit.evaluation._linear import ridge as ridge
from keras_vit.evaluation._metrics import accuracy as accuracy
from keras_vit.evaluation._metrics import softmax as softmax
from keras_vit.evaluation._neighbours import (
    nearest_neighbours as nearest_neighbours,
)
from keras_vit.evaluation._pictures import draw_confusion as draw_confusion
from keras_vit.evaluation._pictures import draw_reliability as draw_reliability
from keras_vit.evaluation._pictures import draw_top as draw_top
from keras_vit.evaluation._real import read_real as read_real
from keras_vit.evaluation._real import real_accuracy as real_accuracy
