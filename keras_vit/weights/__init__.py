from keras_vit.weights._list import list_weights as list_weights
from keras_vit.weights._load import load_into as load_into
from keras_vit.weights._load import variables_of as variables_of
from keras_vit.weights._named import named as named
