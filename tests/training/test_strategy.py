"""The choice of a strategy, and errors."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.distribution import sharding, strategy
from tests.training.batches import take

BACKEND = keras.config.backend()
OTHERS = {
    name
    for backend, names in strategy.NAMES.items()
    for name in names
    if name not in strategy.NAMES[BACKEND]
}
ELSEWHERE = "jax: none, data-p" if BACKEND == "tensorflow" else "tensorflow: none, m"


def test_auto_describes_its_choice():
    chosen = keras_vit.distribution.get_strategy("auto")
    assert (chosen.num_devices, chosen.process) == (1, (0, 1))
    assert chosen.name == "none"  # where these tests run
    assert chosen.describe().startswith("none on 1 device: ")
    with chosen.scope():
        batches = [1, 2]
        assert chosen.distribute(batches) is batches


def test_devices_must_divide_the_batch_size():
    chosen = keras_vit.distribution.Strategy("mirrored", "for a test", 8, 8, (1, 2))
    assert chosen.process_batch_size(32) == 16
    assert "8 devices, process 2 of 2" in chosen.describe()
    with pytest.raises(ValueError, match="30 images.*over 8.*such as 32"):
        chosen.process_batch_size(30)


class Uneven(keras.utils.PyDataset):
    axes = ()  # of weights, after that of the batch

    def __len__(self):
        return 2

    def __getitem__(self, index):
        count = (4, 3)[index]
        x = np.arange(count, dtype="float32")[:, None]
        return x, np.arange(count), np.ones((count, *self.axes), "float32")


@pytest.mark.parametrize(
    "source, axes",
    [("py_dataset", ()), ("tf_data", (1, 2)), ("generator", (1, 2))],
)
def test_weighted_batches_are_padded(source, axes, monkeypatch):
    monkeypatch.setattr(Uneven, "axes", axes)
    batches = Uneven()
    if source == "tf_data":
        pytest.importorskip("tensorflow")
        batches = sharding.to_tf_dataset(batches)
    elif source == "generator":
        batches = (Uneven()[i] for i in range(2))
    padded = sharding.pad_batches(batches, 2)
    if source == "py_dataset":
        assert padded.num_batches == 2
    x, y, weights = take(padded, 2)
    expected = [[0, 1, 2, 3], [0, 1, 2, 0]]
    np.testing.assert_array_equal(x[..., 0], expected)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(
        weights.reshape(2, 4, -1)[..., -1], [[1, 1, 1, 1], [1, 1, 1, 0]]
    )


def test_batches_without_weights_are_not_padded():
    with pytest.raises(ValueError, match="multiple of 2.*batch of 3 images"):
        sharding.pad_batch((np.zeros((3, 2)), np.zeros(3)), 2)
    tf = pytest.importorskip("tensorflow")
    uneven = tf.data.Dataset.from_tensors((tf.zeros((3, 2)), tf.zeros(3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiple of 2"):
        list(sharding.pad_batches(uneven, 2))


class Numbers(keras.utils.PyDataset):
    """Batch k holds the number k alone."""

    num_batches = None

    def __getitem__(self, index):
        numbers = np.full((2, 1), index, "float32")
        return numbers, numbers


@pytest.fixture
def mirrored():
    return keras_vit.distribution.get_strategy("mirrored", devices=["CPU:0"])


@pytest.mark.backends("tensorflow")
def test_model_fit_reads_every_batch_once(mirrored):
    """`model.fit` reads the first batch for its shapes, and starts again."""
    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
        # The loss is the mean of the labels.
        model.compile(loss=lambda y_true, y_pred: y_true)
    batches = mirrored.distribute(Numbers())
    for _ in range(2):
        fit = model.fit(batches, epochs=3, steps_per_epoch=4, shuffle=False, verbose=0)
        means = [np.mean([4 * k, 4 * k + 3]) for k in range(3)]
        np.testing.assert_allclose(fit.history["loss"], means)


@pytest.mark.backends("tensorflow")
def test_distributed_mean_loss_matches_one_device(mirrored):
    """If Keras does not know the length of a data set whose batches have one
    size, its mean includes an empty batch with a loss of 0."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, 1)).astype("float32") for _ in range(2))
    batches = tf.data.Dataset.from_tensor_slices((x, y, np.ones(8, "float32")))
    batches = batches.batch(4, drop_remainder=True)
    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    found = model.evaluate(mirrored.distribute(batches), verbose=0)
    errors = model.predict(x, verbose=0) - y
    assert found == pytest.approx(np.mean(errors**2), rel=1e-5)


@pytest.mark.parametrize(
    "name, options, words",
    [
        *(
            (
                name,
                {},
                f"{name}.*{BACKEND}.*auto, none.*have: {ELSEWHERE}",
            )
            for name in sorted({*OTHERS, "mirored"})
        ),
        ("auto", {"model_devices": 2}, "None for 'auto'.*model_devices=2"),
        pytest.param(
            *("tpu", {}, "TPU_NAME"), marks=pytest.mark.backends("tensorflow")
        ),
    ],
)
def test_wrong_strategies_are_refused(name, options, words, monkeypatch):
    for variable in ("TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=words):
        keras_vit.distribution.get_strategy(name, **options)


@pytest.mark.backends("jax")
def test_processes_without_an_address_are_refused(monkeypatch):
    def initialize():
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(keras.distribution, "initialize", initialize)
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    words = "2 processes.*set KERAS_DISTRIBUTION_JOB_ADDRESSES.*coordinator_address"
    with pytest.raises(ValueError, match=words):
        keras_vit.distribution.get_strategy("auto")


@pytest.mark.backends("tensorflow")
def test_multi_worker_tf_config_is_refused(monkeypatch):
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="TF_CONFIG.*20585.*data-parallel"):
        keras_vit.distribution.get_strategy("auto")


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("variable", "address", "calls"),
    [
        ("TPU_NAME", "local", ["resolve", "initialize", "strategy"]),
        (
            "COLAB_TPU_ADDR",
            "10.0.0.2",
            ["resolve", "connect", "initialize", "strategy"],
        ),
    ],
)
def test_a_tpu_is_connected_and_initialized_first(
    variable, address, calls, monkeypatch
):
    """No TPU was available: functions of TensorFlow that need one are replaced."""
    import tensorflow as tf

    found = []

    def replace(owner, name, call, value):
        def function(argument):
            assert argument == ("resolver" if found else address)
            found.append(call)
            return value

        monkeypatch.setattr(owner, name, function)

    for other in ("TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, address)
    resolvers = tf.distribute.cluster_resolver
    replace(resolvers, "TPUClusterResolver", "resolve", "resolver")
    replace(tf.config, "experimental_connect_to_cluster", "connect", None)
    replace(tf.tpu.experimental, "initialize_tpu_system", "initialize", None)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    replace(tf.distribute, "TPUStrategy", "strategy", mirrored)
    chosen = keras_vit.distribution.get_strategy("auto")
    assert (chosen.name, chosen.num_devices) == ("tpu", 1)
    assert chosen.reason == "there is a TPU"
    assert found == calls


@pytest.mark.backends("tensorflow")
def test_distributed_datasets(mirrored):
    import tensorflow as tf

    for batches, length in (
        (Uneven(), 2),
        (Numbers(), tf.data.INFINITE_CARDINALITY),
    ):
        dataset = mirrored.distribute(batches)
        assert dataset.cardinality() == length
        options = dataset.options()
        assert options.autotune.enabled is False
        policy = options.experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.DATA
    with pytest.raises(TypeError, match="several times.*generator"):
        mirrored.distribute(batch for batch in [])
