from keras_vit.weights._load import load_into as load_into
