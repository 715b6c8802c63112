from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.labels import decode_predictions

__all__ = ["decode_predictions", "preprocess_input"]
