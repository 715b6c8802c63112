"""Wrong arguments of public functions: each error has the value received.

The layers have a table of their own in `tests/layers/test_contract.py`, and
names of arguments in `tests/test_common_mistakes.py`.
"""

import functools

import keras
import ml_dtypes  # noqa: F401  (in the calls below)
import numpy as np
import pytest
from keras.optimizers import SGD

import keras_vit
from keras_vit.data import load_detection
from keras_vit.detection import FCOS, set_loss
from keras_vit.distillation import Distillation  # noqa: F401
from keras_vit.layers import TransformerBlock
from keras_vit.optimizers import PublishedAdamW, PublishedSGD  # noqa: F401
from keras_vit.pretraining import DINO, MoCoV3
from tests import small
from tests.pretraining.small import encoder
from tests.small import tiny

pytestmark = pytest.mark.backends("torch")

dense = keras_vit.dense_features
maps = keras_vit.inspection.attention_maps
rollout = keras_vit.inspection.attention_rollout
pca = keras_vit.inspection.feature_pca
decode = keras_vit.decode_predictions
scale = keras_vit.preprocess_input
slide = keras_vit.segmentation.sliding_window
neighbors = keras_vit.evaluation.nearest_neighbors
MAE = keras_vit.pretraining.MaskedAutoencoder
PatchPrediction = keras_vit.pretraining.MaskedPatchPrediction
MIM = keras_vit.pretraining.MaskedImageModeling
HEADS = {"output_dim": 6, "hidden_dim": 10}
DECODER = {"decoder_num_layers": 1, "decoder_num_heads": 2}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 12)), np.arange(10) % 2
SCORES, LABELS = RNG.normal(size=(200, 7)), RNG.integers(0, 7, 200)
NAMES = ["cat", "dog", "owl"]
MAPS = np.ones((2, 2, 3, 7, 7), "float32")
ONE = np.array([[0.25, 0.5, 0.125]])
FRACTIONS = np.full((2, 2, 4), 0.5, "float32")
OUTPUTS = {"classes": np.zeros((2, 6, 5), "float32")}
OUTPUTS |= {"boxes": np.full((2, 6, 4), 0.5, "float32")}


@functools.cache
def model():
    return tiny()


def softmax_of_int8():
    found = tiny(classifier_activation="softmax")
    found.quantize("int8")
    return found


def late_norm(**options):
    return tiny(pooling="gap", final_norm="after_pooling", **options)


def dino(**options):
    return DINO(encoder(num_layers=1), bottleneck_dim=5, **HEADS | options)


def moco(**options):
    return MoCoV3(encoder(num_layers=1, **options), **HEADS)


def accumulating():
    return SGD(0.1, gradient_accumulation_steps=2)


def wrapped():
    """As Keras wraps it under "mixed_float16"."""
    return keras.optimizers.LossScaleOptimizer(accumulating())


def fcos(**options):
    return FCOS(model(), **{"classes": 2, "filters": 8, "depth": 1, **options})


def nested():
    inner = tiny(name="inner")
    return keras.Sequential([keras.Input((8, 12, 3)), inner])


def boxes(classes=((0, 1), (1, 0)), boxes=FRACTIONS):
    return set_loss(OUTPUTS, {"classes": np.array(classes), "boxes": boxes})


def batches():
    return load_detection("digits").train(image_size=32, batch_size=2)


def identity(*args, **kwargs):
    return keras.layers.Identity(name=kwargs["name"])


def unnamed(*args, name, **kwargs):
    return TransformerBlock(*args, **kwargs)


def array(*values, dtype=None):
    return np.array(values, dtype)


# What is called, and a part of its error.
MODELS = {
    "tiny(block='TransformerBlock')": "`block`",
    "tiny(block=identity)": "`block`",
    "tiny(block=unnamed)": "`block`",
    "VisionTransformer('a')": "a `ViTConfig`. Received: 'a'",
    "tiny(preprocessing='imagenet')": r"`preprocessing` must .*\(mean, std\)",
    "tiny(preprocessing=(0.5, 0))": r"`preprocessing` must .*\(0.5, 0\)",
    "tiny(input_tensor=keras.Input((8, 12, 3)), preprocessing=True)": "combin",
    "tiny(input_tensor=keras.Input((9, 12, 3)))": "must be .9, 12, 3., as `input_t",
    "ImagePreprocessing(None, 'torch')(images(1, 4, 4, 2))": "3 channels, or of one",
    "ImagePreprocessing(mode='caffe')": "Received: mode='caffe'",
    "hybrid(resnet_layers=None)": "resnet_layers=None",
    "hybrid(width_factor=0.7)": "32 groups divide.*44",
    "hybrid(patch_size=2)": "map, of 2 x 3.*2 or 4",
    "bit(resnet_layers=None)": "no `weights`",
    "bit(pooling='token')": "pooling='token'",
    "dense(model(), blocks=(0, 2))": r"from 0 to 1.*blocks=\(0, 2\)",
    "dense(model(), blocks=())": r"blocks=\(\)",
    "dense(model(), stages=1)": "has no stages. Received: stages=1",
    "dense('ViTB16')": "Received: 'ViTB16'",
    "dense(late_norm())": "norm=False.*Received: norm=True",
    "dense(bit(), blocks=0)": "has no blocks",
    "tiny(position_embedding='relative', position_placement='stem')": (
        "'every_layer'.*placement='stem'"
    ),
    "tiny(position_placement='all')": "'every_layer_shared'.*='all'",
    "tiny(position_embedding='rope', position_placement='stem')": (
        "every_layer_shared'.*='stem'"
    ),
    "cost('ViTX16')": "ViTX16",
    "cost('ViTTi16', image_size=225)": "225",
    "cost('ViTTi16', image_size=0)": "image_size=0",
    "cost(model(), pooling='gap')": "pooling",
    "cost(tiny(input_shape=(None, None, 3), grid_size=2))": "image_size",
}
SCHEDULE = "keras_vit.schedules.WarmupMultiStep"
PRETRAINING = {
    f"{SCHEDULE}(1.0, 20, [10, 30])": r"after the warm-up of 20.*\[10, 30\]",
    "PublishedAdamW(0.1, layer_decay=0).build(model().weights)": "layer_decay=0",
    "PublishedSGD(0.1, layer_decay=1.5).build(model().weights)": "layer_decay=1.5",
    "PatchPrediction(encoder(), value_range=(1, 0))": r"\(lowest, h.*\(1, 0\)",
    "Distillation(model(), tiny(), alpha=5)": "from 0 to 1.*alpha=5",
    "MIM(encoder(), mask_patch_size=8, masking='block')": "mask_patch_size=8",
    "MIM(encoder(), mask_patch_size=6)": "mask_patch_size=6",
    "MIM(encoder(), mask_patch_size=2)": "mask_patch_size=2",
    "MIM(encoder(), mask_patch_size=12)": "mask_patch_size=12",
    # Of one unit none would stay.
    "MIM(encoder(), mask_patch_size=16)": "mask_patch_size=16|ratio",
    "MIM(encoder(), mask_ratio=0.0)": "ratio",
    "MIM(encoder(), mask_ratio=1.0)": "ratio",
    "MIM(encoder(), mask_ratio=0.99)": "ratio",
    "MIM(encoder(), mask_ratio=-1)": "ratio",
    "MIM(encoder(), mask_ratio=0.99, masking='block')": "ratio",
    # Fixed positions would keep random values.
    "MAE(encoder(), decoder_hidden_size=6, **DECODER)": "hidden_size=6",
    "MIM(encoder(include_top=True))": "that outputs all tokens",
    "MIM(encoder(pooling='token'))": "that outputs all tokens",
    "MIM(encoder(mask_token=True))": "that outputs all tokens",
    "MIM(encoder(position_placement='every_layer'))": "that outputs all",
    "MIM(encoder(input_shape=(None, None, 3), grid_size=4))": "that outputs",
    "MIM(encoder(position_embedding='rope'))": "positions in the stem",
    "MIM(encoder()).compile('sgd', loss=['mae'])": "Leave out: loss",
    "MIM(encoder()).compile('sgd', metrics=['mae'])": "Leave out: metrics",
    "dino(output_dim=0)": "output_dim=0",
    "moco(position_embedding='sincos2d')": "positions='learned'",
    "dino().compile(accumulating())": "gradient_accumulation_steps=2",
    "dino().compile(wrapped())": "gradient_accumulation_steps=2",
    "dino().compile('sgd', loss='mse')": "computes its own loss",
}
DENSE = {
    "EoMT('ViTB14', 2)": "Received: 'ViTB14'",
    "EoMT(tiny(), 2, blocks=3)": "at most 2.*blocks=3",
    "load_segmentation('digits', ignore=7)": "255 for 'digits'.*ignore=7",
    "EoMT(late_norm(), 2, blocks=1)": "encoder_norm",
    "EoMT(tiny(position_embedding='relative'), 2, blocks=1)": "in the stem",
    "EoMT(tiny(position_embedding='rope'), 2, blocks=1)": "in the stem",
    "LinearSegmenter('ViTB16', 2)": "Received: 'ViTB16'",
    "slide(model(), images(8, 8, 3), 4, 5)": r"=\(5, 5\), window=\(4, 4\)",
    "slide(model(), images(8, 8, 3), 0, 1)": "window=0",
    "slide(model(), images(8, 12, 3), 32, 32)": r"each pixel.*shape \(1, 5\)",
    "fcos(levels=('P6',))": "levels=.*P6",
    "fcos(depth=0)": "depth=0",
    "fcos(classes=0)": "classes=0",
    "fcos(class_names='ab')": "2 names.*Received: class_names='ab'",
    "FCOS(bit(), 2)": "no blocks",
    "YOLOS(tiny(position_embedding='relative'), 2)": "position_embedding_0",
    "YOLOS(tiny(position_placement='every_layer'), 2)": "position_embedding_0",
    "YOLOS(late_norm(), 2)": "encoder_norm",
    "boxes(boxes=FRACTIONS[:, :1])": r"of shape \(batch, objects, 4\)",
    "boxes(classes=(0, 1))": r"of shape \(batch, objects, 4\)",
    "boxes(boxes=FRACTIONS[..., :3])": r"of shape \(batch, objects, 4\)",
    "boxes(classes=((4, 4), (4, 4)))": "from 0 to 3, .*: 4",
    "CocoMetrics([], ['AP', 'map'])": "of 'AP', .*names='map'",
    "CocoMetrics(batches())": "`data.evaluation.*num_batches=None",
}
INSPECTION = {
    "relevance(model(), images(), -1)": "classes=-1",
    "maps(bit(), images(1, 16, 24, 3))": "has no attention",
    "token_layout(bit())": "has no patches",
    "token_layout(tiny(input_shape=(None, None, 3), grid_size=2))": "any size",
    "maps(nested(), images())": r"pass model.get_layer\('inner'\)",
    "maps(model(), np.zeros((8, 12, 3)))": "must be a batch of images",
    "maps(model(), np.zeros((1, 8, 8, 3)))": "must be a batch of images",
    "maps(model(), [[1.0]])": "must be a batch of images",
    "pca(model(), images(1, 4, 4, 3))": "Received: 1 patches of 24",
    "rollout(np.ones((3, 2, 4, 4)))": r"a layer of shape \(2, 4, 4\)",
    "rollout(model(), images())": r"`maps` must be .*attention_heatmap\(model, im",
    "rollout(MAPS, images())": "`residual`",
    "rollout(MAPS, num_prefix=-1)": "num_prefix=-1",
    "rollout([])": r"maps=\[\]",
    **{
        f"{function}(images(), model())": r"`model` must be .*: ndarray of shape \(2"
        for function in (
            *("maps", "token_norms", "attention_distance", "attention_heads"),
            *("attention_heatmap", "pca", "relevance", "token_layout"),
            *("embedding_filters", "position_similarity"),
        )
    },
    "maps(model(), images(), layers=1.5)": "from -2 to 1, .*layers=1.5",
    "maps(model(), images(), layers=(0, 2))": r"layers=\(0, 2\)",
    "maps(model(), images(), layers=[])": r"layers=\[\]",
    "attention_heads(model(), images(), layer=None)": "`layer` must .*layer=None",
    "attention_distance(model(), images(), batch_size=1.5)": "batch_size=1.5",
    "pca(model(), images(), block=[0])": r"block=\[0\]",
    "pca(model(), 'a')": "must be a batch of images",
    "pca(model(), [])": r"images=\[\]",
    "pca(model(), images(), joint='no')": "joint='no'",
    "embedding_filters(model(), images())": "`count`",
    "position_similarity(model(), (2.5, 2))": r"grid_size=\(2.5, 2\)",
    "token_layout(model(), (8, 8))": r"\(8, 12\), as .*image_size=\(8, 8\)",
    "relevance(model(), images(), 99)": "below .*classes=99",
    "relevance(model(), images(), [0] * 9)": r"one for each image.*\[0, 0",
    "outlier_tokens(MAPS, token_layout(model()))": "`norms`.*: ndarray of shape",
    "outlier_tokens(MAPS[0, 0], model())": "`layout` must be the output of `token_la",
    "outlier_tokens(MAPS[0, 0], token_layout(model()), 0)": "ratio=0",
    "plot_attention_maps(MAPS, model())": "`layout` must be",
    "plot_attention_maps(model(), images())": "`maps` must be the output of `att",
    "plot_attention_maps(MAPS, token_layout(model()), 5)": "an index of 2 .*image=5",
    "plot_attention_maps(MAPS, token_layout(model()), 0, 9)": "query=9",
    "plot_token_norms(MAPS[0, 0], model())": "`layout` must be",
    "plot_attention_heatmap(images(), MAPS)": "`heatmaps` must be arrays of 2 axes",
    "plot_attention_heatmap(images(), images()[:1, ..., 0])": "heatmaps=1",
    "plot_attention_heads(images()[0], MAPS)": "`images` must be arrays of 3 axes",
    "plot_attention_heads(images(), images(), 'ab')": "`titles` must be a list",
    "plot_feature_pca(images(), images())": "`found` must be the output of `feature",
    "plot_attention_distance(model(), images())": "`distances` must be",
    "plot_embedding_filters(model())": "`filters` must be",
    "plot_position_similarity(model())": "`similarity` must be",
    "relevance(softmax_of_int8(), images())": "'head' with softmax",
    "relevance(model(), images(), method='grad')": "'legrad'",
}
EVALUATION = {
    "evaluation.accuracy(SCORES, LABELS, 0)": "from 1 to 7.*: k=0",
    "evaluation.accuracy(SCORES, LABELS, 8)": "from 1 to 7.*: k=8",
    "few_shot(X, Y * 0, 1)": "two classes or more.* only class 0",
    "few_shot(X, Y, 1, test_features=X)": "or neither",
    "few_shot(X, Y, (0, 1))": "`shots` must be .*Received: shots=0",
    "few_shot(X, Y, 1, l2=0.0)": "`l2` must be a number above 0",
    "few_shot(X, Y, 1, seeds=0)": "`seeds` must be .*Received: seeds=0",
    "evaluation.linear_probe(X, Y, 2, l2=-1)": "`l2` must be .*: l2=-1",
    "neighbors(X, Y, 2, X, 11)": "n_neighbors = 11",
    "neighbors(X * 0, Y, 2, X, 1)": "rows of zeros",
    "neighbors(X, Y, 2, X, 1, 0)": "`temperature` must be a number above 0",
    "neighbors(X, Y, 2, X[:, :3], 1)": "3 features, but .* expecting 12",
    "evaluation.accuracy(SCORES[0], LABELS)": r"\(images, col.*shape \(7,\)",
    "evaluation.accuracy(SCORES, LABELS[:3])": "must be 200 integers",
    "evaluation.accuracy(SCORES, LABELS + 1)": "from 0 to 6. Received: 1 to 7",
    "evaluation.accuracy(SCORES, LABELS / 2)": "float64",
    "evaluation.accuracy(SCORES / 0, LABELS)": "NaN or infinity for",
    "evaluation.calibration_error(SCORES, LABELS)": "keras_vit.evaluation.soft",
    "evaluation.reliability(evaluation.softmax(SCORES), LABELS, 0)": (
        "`bins` must be .*Received: bins=0"
    ),
    "evaluation.real_accuracy(np.eye(4), [[]] * 4)": "None of the images",
    "evaluation.real_accuracy(np.eye(4), [[4], [], [], []])": "0 to 3;.*: .4",
    "evaluation.real_accuracy(np.eye(4), [[1]])": r"\(4, 4\).*: shape \(1, 4",
    "evaluation.confusion_matrix(Y, Y + 255, 4)": "from 0 to 3.*: .*255",
    "evaluation.confusion_matrix(Y, X, 4)": r"\(10,\) and \(10, 12\)",
    "evaluation.mean_iou(np.zeros((3, 3)))": "confusion",
    "evaluation.mean_iou(np.ones((2, 3)))": "confusion",
    "evaluation.per_class(np.eye(4, dtype=int), list('abc'))": "the 3 classes",
}
PREPROCESSING = {
    "scale(array(-1.0, 1.0))": "not be preprocessed again.*from -1 to 1",
    "scale(array(-0.01, 255.0))": "from -0.01 to 255",
    "scale(array(0.0, 256.0))": "from 0 to 256",
    "scale(array(0.0, np.inf))": "from 0 to inf",
    "scale(array(0.0, np.nan))": "from nan to nan",
    "scale(array(1, np.nan, dtype=ml_dtypes.bfloat16))": "from nan to nan",
    "scale(array(-3, 7, dtype='int8'))": "from -3 to 7",
    "scale(array(0, 65535, dtype='uint16'))": "from 0 to 65535",
    "scale(array('cat.jpg'))": "must be a NumPy array or a tensor",
    "scale(array(True, False))": "must be a NumPy array or a tensor",
    "scale('cat.jpg')": "must be a NumPy array or a tensor",
    "scale([[0, 255]])": "must be a NumPy array or a tensor",
    "decode(ONE[0], 1, NAMES)": r"predictions\[None\].*: shape \(3,\)",
    "decode(None, 1, NAMES)": r"Received: shape \(\)",
    "decode(keras.KerasTensor((1, 3)), 1, NAMES)": "KerasTensor",
    "decode(array([0, 1, 2], [0, np.nan, 1]), 1, NAMES)": "1 values are NaN",
    "decode(ONE, 1, None)": "each of the 3 classes.*Received: 0 labels",
    "decode(ONE, 1, NAMES[:2])": "Received: 2 labels",
    "decode(ONE, 1, [*NAMES, 'cow'])": "Received: 4 labels",
    "decode(ONE, 1, dict(enumerate(NAMES)))": "in the order .*: a dict",
    "pack_images([np.zeros((8, 10, 3))], 4, 40)": "1 to 40 whole patches of 4",
    "pack_images([np.zeros((8, 8, 3))], 4, 3)": "1 to 3 whole patches",
}
ERRORS = MODELS | PRETRAINING | DENSE | INSPECTION | EVALUATION | PREPROCESSING


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("call", ERRORS)
def test_wrong_arguments_raise(call):
    names = {}
    for part in (
        "data",
        "detection",
        "evaluation",
        "inspection",
        "layers",
        "segmentation",
    ):
        names |= vars(getattr(keras_vit, part))
    names |= {**vars(keras_vit), **vars(small), **globals()}
    with pytest.raises(ValueError, match=f"(?s){ERRORS[call]}"):
        eval(call, names)
