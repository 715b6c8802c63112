"""Results of evaluations do not depend on the batch size or on padding."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import pretraining
from tests.pretraining import small

SIZES = {"output_dim": 16, "hidden_dim": 8}
# Their loss of an image depends on the others of its batch.
CONTRASTIVE = {
    "koleo": lambda e: pretraining.DINO(e, koleo_weight=0.1, bottleneck_dim=4, **SIZES),
    "mocov3": lambda e: pretraining.MoCoV3(e, **SIZES),
}
MODELS = {
    "mim": small.MODELS["mim"],
    "mae": small.MODELS["mae"],
    "mpp": small.MODELS["mpp-pixels"],
    "dino": lambda e: pretraining.DINO(e, bottleneck_dim=4, **SIZES),
    **CONTRASTIVE,
}
COUNT = 5
ON_TORCH = pytest.mark.backends("torch")


@pytest.fixture
def model(request, monkeypatch):
    """A compiled model that masks the same patches of all images."""

    def same(shape, *args, **kwargs):
        row = np.random.default_rng(0).random((1, *shape[1:]))
        return ops.broadcast_to(ops.cast(row, "float32"), shape)

    monkeypatch.setattr(keras.random, "uniform", same)
    model = MODELS[request.param](small.encoder())
    model.compile("sgd")
    return model


def padded(model, size, shape=(-1,)):
    """Returns the results of batches of one size, with images of weight 0."""
    missing = -COUNT % size
    images = np.concatenate([small.images(COUNT), small.images(8)[-missing:]])
    images = images[: COUNT + missing]
    weights = np.zeros(len(images))
    weights[:COUNT] = len(images) / COUNT  # as keras_vit.data has them
    return model.evaluate(
        images,
        np.zeros(len(images)),  # Keras ignores weights without labels.
        sample_weight=weights.reshape(shape),
        batch_size=size,
        verbose=0,
        return_dict=True,
    )


def whole(model, size=COUNT):
    return model.evaluate(
        small.images(COUNT), batch_size=size, verbose=0, return_dict=True
    )


def compare(found, expected, names):
    for name in names:
        # The diversity of an untrained MoCo v3 is 7e-8: it is all rounding.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-7)


@ON_TORCH
@pytest.mark.parametrize("model", CONTRASTIVE, indirect=True)
def test_batches_of_one_image_have_no_neighbor_and_no_diversity(model):
    for found in (whole(model, 4), padded(model, 4)):
        assert np.isfinite(list(found.values())).all()
        assert abs(found["loss"]) < 10
    # The last batch has one image.
    images = small.images(COUNT)[:4]
    first = model.evaluate(images, verbose=0, return_dict=True)
    for found in (whole(model, 4), padded(model, 4)):
        compare(found, first, ["teacher_diversity"])


@pytest.mark.parametrize(
    "model",
    [
        "dino",
        *(
            pytest.param(x, marks=ON_TORCH)
            for x in ("mae", "mocov3", "mim", "mpp", "koleo")
        ),
    ],
    indirect=True,
)
def test_batch_size_and_padding_do_not_count(model, request):
    """Losses of DINO with KoLeo and of MoCo v3 depend on the other images of a
    batch; rounding decides which of MoCo v3's equal features is the nearest."""
    expected = whole(model)
    names = expected.keys() - {"contrastive_accuracy"}
    compare(padded(model, 8, (-1, 1)), expected, names)
    if request.node.callspec.params["model"] not in CONTRASTIVE:
        names = names - {"teacher_diversity"}
        compare(whole(model, 3), expected, names)
        compare(padded(model, 3), expected, names)
