from keras_vit.preprocessing._inputs import preprocess_input as preprocess_input
from keras_vit.preprocessing._labels import (
    decode_predictions as decode_predictions,
)
