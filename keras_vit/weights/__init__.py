from keras_vit.weights._load import load_into as load_into
from keras_vit.weights._load import variables_of as variables_of
