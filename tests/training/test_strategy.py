"""Which strategy is chosen, and what is refused."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.distribution import sharding
from keras_vit.distribution import strategy

BACKEND = keras.config.backend()
NAMES = dict.fromkeys(sum(strategy.NAMES.values(), ()))
WRONG = [name for name in NAMES if name not in strategy.NAMES[BACKEND]]


@pytest.mark.parametrize("name", WRONG)
def test_another_backends_strategy_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}.*{BACKEND}.*(use|needs)"):
        keras_vit.distribution.get_strategy(name)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'mirored'.*mirrored, multiworker"):
        keras_vit.distribution.get_strategy("mirored")
    with pytest.raises(ValueError, match="model_devices=2"):
        keras_vit.distribution.get_strategy("none", model_devices=2)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", ["tpu", "multiworker"])
def test_what_is_not_there_is_named(name, monkeypatch):
    for variable in ("TF_CONFIG", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match="TPU_NAME|TF_CONFIG"):
        keras_vit.distribution.get_strategy(name)


@pytest.mark.backends("jax")
def test_devices_must_divide():
    with pytest.raises(ValueError, match="model_devices=3 with 1 devices"):
        keras_vit.distribution.get_strategy(
            "model-parallel", devices=["cpu:0"], model_devices=3
        )


def test_auto_says_what_it_chose():
    chosen = keras_vit.distribution.get_strategy("auto")
    assert (chosen.num_devices, chosen.host) == (1, (0, 1))
    assert chosen.name == "none"  # where these tests run
    assert chosen.describe().startswith("none on 1 device: ")
    with chosen.scope():
        batches = [1, 2]
        assert chosen.distribute(batches) is batches


def test_batches_must_divide():
    chosen = keras_vit.distribution.Strategy(
        "mirrored", "for a test", 8, 8, (1, 2)
    )
    assert chosen.host_batch_size(32) == 16
    assert "8 devices, host 2 of 2" in chosen.describe()
    with pytest.raises(ValueError, match="30 images.*over 8.*such as 32"):
        chosen.host_batch_size(30)


class Uneven(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        count = (4, 3)[index]
        x = np.arange(count, dtype="float32")[:, None]
        return x, np.arange(count), np.ones(count, "float32")


def rows(batches):
    return [[np.asarray(part) for part in batch] for batch in batches]


def as_tf(batches):
    tf = pytest.importorskip("tensorflow")
    spec = tuple(
        tf.TensorSpec((None, *part.shape[1:]), part.dtype)
        for part in batches[0]
    )
    return tf.data.Dataset.from_generator(
        lambda: (batches[i] for i in range(2)), output_signature=spec
    )


@pytest.mark.parametrize("source", ["py_dataset", "tf_data", "generator"])
def test_weighted_batches_are_filled_up(source):
    batches = Uneven()
    if source == "tf_data":
        batches = as_tf(batches)
    elif source == "generator":
        batches = (Uneven()[i] for i in range(2))
    found = sharding.divisible(batches, 2)
    if source == "py_dataset":
        found = [found[i] for i in range(len(found))]
    full, filled = rows(found)
    np.testing.assert_array_equal(full[2], [1, 1, 1, 1])
    np.testing.assert_array_equal(filled[0][:, 0], [0, 1, 2, 0])
    np.testing.assert_array_equal(filled[1], [0, 1, 2, 0])
    np.testing.assert_array_equal(filled[2], [1, 1, 1, 0])


def test_others_are_refused():
    with pytest.raises(ValueError, match="3 images.*over 2 devices"):
        sharding.fill((np.zeros((3, 2)), np.zeros(3)), 2)


@pytest.mark.backends("tensorflow")
def test_the_mean_loss_is_that_of_one_device():
    """Past the end TensorFlow gave a batch of nothing, whose loss of 0 counted
    as one of a full batch."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, 1)).astype("float32") for _ in range(2))
    weights = np.ones(8, "float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y, weights))
    batches = batches.batch(4, drop_remainder=True)
    chosen = keras_vit.distribution.get_strategy("mirrored", devices=["CPU:0"])
    with chosen.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    found = model.evaluate(chosen.distribute(batches), verbose=0)
    errors = (model.predict(x, verbose=0) - y) ** 2
    assert found == pytest.approx(np.mean(errors), rel=1e-5)
