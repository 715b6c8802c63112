from keras_vit.preprocessing.inputs import preprocess_input as preprocess_input
from keras_vit.preprocessing.labels import (
    decode_predictions as decode_predictions,
)
