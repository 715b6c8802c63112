"""Common Keras workflows on small models."""

import keras
import numpy as np
import pytest

from tests.small import images, tiny


def vit(**options):
    return tiny(**{"num_layers": 1, "classes": 3, **options})


def data(count=8):
    return images(count, 8, 12, 3), np.arange(count) % 3


def compiled(model, **arguments):
    model.compile(
        arguments.pop("optimizer", None) or keras.optimizers.Adam(0.001),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **arguments,
    )
    return model


def fit(model, *data, **arguments):
    """Trains the model and returns the history."""
    head = model.layers[-1]  # the first step changes no other layer
    before = head.get_weights()
    history = model.fit(*data, verbose=0, **{"batch_size": 4, **arguments}).history
    assert all(np.isfinite(values).all() for values in history.values())
    for new, old in zip(head.get_weights(), before, strict=True):
        assert not np.array_equal(new, old)
    return history


def assert_equal(model, other):
    images, _ = data()
    np.testing.assert_allclose(
        model.predict(images, verbose=0),
        other.predict(images, verbose=0),
        atol=1e-6,
    )


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        images, labels = data()
        part = slice(4 * index, 4 * index + 4)
        return images[part], labels[part]


def generator():
    while True:
        yield data(4)


@pytest.mark.backends("torch")
def test_data_of_python_generators_and_pytorch():
    torch = pytest.importorskip("torch")
    model = compiled(vit())
    fit(model, Batches(), batch_size=None)
    fit(model, generator(), batch_size=None, steps_per_epoch=2)
    dataset = torch.utils.data.TensorDataset(*map(torch.as_tensor, data()))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    fit(model, loader, batch_size=None)


@pytest.mark.backends("torch")
@pytest.mark.usefixtures("eager")
def test_sample_and_class_weights():
    """Zero weights leave the model unchanged; other weights scale the loss."""
    images, labels = data(6)
    for weights in (
        {"sample_weight": np.zeros(6)},
        {"class_weight": {0: 0.0, 1: 0.0, 2: 0.0}},
    ):
        model = compiled(vit())
        before = model.get_weights()
        model.fit(images, labels, verbose=0, **weights)
        for new, old in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(new, old)
    # The head is zero: the loss of each image is log(3).
    weights = {0: 1.0, 1: 2.0, 2: 0.0}
    (loss,) = fit(compiled(vit()), images, labels, batch_size=6, class_weight=weights)[
        "loss"
    ]
    assert loss == pytest.approx(np.log(3) * (1 + 2 + 0) / 3, rel=1e-5)


ON_TWO = pytest.mark.backends("tensorflow", "torch")


# With JAX on a CPU, a training step fails in XLA: "The precision
# 'F16_F16_F32' is not supported by dot_general on CPU". It fails in the same
# way with `keras.layers.MultiHeadAttention`, whatever
# JAX_DEFAULT_MATMUL_PRECISION is.
@pytest.mark.parametrize(
    "policy",
    [
        "mixed_bfloat16",
        pytest.param("bfloat16", marks=pytest.mark.backends("jax", "torch")),
        pytest.param("float64", marks=ON_TWO),
        pytest.param("mixed_float16", marks=ON_TWO),
        pytest.param("float16", marks=ON_TWO),
    ],
)
@pytest.mark.usefixtures("eager")
def test_dtype_policies(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1}
    # In bfloat16, Keras's Adam rounds `beta_2` to 1 and learns nothing.
    model = compiled(vit(**rates), optimizer=keras.optimizers.SGD(0.1))
    fit(model, *data(4))
    path = tmp_path / "model.keras"
    model.save(path)
    keras.config.set_dtype_policy("float32")
    loaded = keras.models.load_model(path)
    assert loaded.get_layer("block_0").dtype_policy.name == policy
    assert_equal(model, loaded)
