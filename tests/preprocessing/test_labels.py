import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import decode_predictions

pytestmark = pytest.mark.backends("torch")

NAMES = ["cat", "dog", "owl"]
ONE = np.array([[0.25, 0.5, 0.125]])


def test_order_and_scores():
    predictions = np.array([[0.1, 0.7, 0.2], [3, -4, -np.inf]], "float32")
    before = predictions.copy()
    first, second = decode_predictions(predictions, top=3, labels=NAMES)
    np.testing.assert_array_equal(predictions, before)
    assert [name for _, name, _ in first] == ["dog", "owl", "cat"]
    assert second == [
        (None, "cat", 3.0),
        (None, "dog", -4.0),
        (None, "owl", -np.inf),
    ]
    assert [score for *_, score in first] == [
        float(np.float32(value)) for value in (0.7, 0.2, 0.1)
    ]
    assert type(first[0][2]) is float
    assert decode_predictions(np.zeros((0, 3)), 1, NAMES) == []
    # Equal scores keep the order of the classes.
    names = [str(i) for i in range(100)]
    ((*found,),) = decode_predictions(np.zeros((1, 100)), 4, names)
    assert [name for _, name, _ in found] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("library", ["jax", "tensorflow", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_tensors_of_every_library(library, dtype):
    module = pytest.importorskip(library)
    make = {"jax": "array", "tensorflow": "constant", "torch": "tensor"}
    scope = module.numpy if library == "jax" else module
    predictions = getattr(scope, make[library])(
        [[1, 3, 2]], dtype=getattr(scope, dtype)
    )
    if library == "torch" and dtype == "float32":
        predictions.requires_grad_()
    expected = [[(None, "dog", 3.0), (None, "owl", 2.0)]]
    assert decode_predictions(predictions, 2, tuple(NAMES)) == expected


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_a_model_gives_names_and_probabilities(activation):
    model = keras_vit.models.Model(
        inputs := keras.Input((3,)),
        keras.layers.Dense(3, activation=activation, name="head")(inputs),
    )
    model.class_names = NAMES
    scores = [[2.0, 3.0, 1.0]] if activation is None else ONE
    (((_, name, score), *_),) = decode_predictions(np.array(scores), 3, model=model)
    expected = np.e**3 / (np.e + np.e**2 + np.e**3)
    if activation:
        expected = np.max(ONE)
    assert name == NAMES[np.argmax(scores)]
    assert score == pytest.approx(expected)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


JSON = '{"1": ["n1", "dog"], "0": ["n0", "cat"], "2": ["n2", "owl"]}'


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", JSON, ("n1", "dog")),
        ("a.JSON", "\ufeff" + JSON, ("n1", "dog")),
        ("a.txt", "cat\nhot dog, frank\nowl\n", (None, "hot dog, frank")),
        ("a.txt", "cat\r\ndog\r\nowl\r\n\r\n", (None, "dog")),
        ("names", "n0\tcat\nn1\tdog\u2028s\nn2\towl", ("n1", "dog\u2028s")),
        ("a.txt", "cat\n n1 \t dog \nowl", ("n1", "dog")),
        ("a", "cat\ndog\x0bs\nowl\n", (None, "dog\x0bs")),
    ],
)
def test_label_files(tmp_path, name, data, expected):
    path = write(tmp_path / name, data)
    for labels in (path, str(path)):
        result = decode_predictions(ONE, 1, labels)
        assert result == [[(*expected, 0.5)]]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", JSON[:-9], "JSONDecodeError"),
        ("a.json", "[" * 100_000, "RecursionError"),
        ("a.json", '["cat", "dog", "owl"]', "TypeError"),
        ("a.json", JSON.replace('"2"', '"3"'), "KeyError: '2'"),
        ("a.json", JSON.replace('"n1", ', ""), "not enough values"),
        ("a.txt", b"cat\n\xff\nowl", "UnicodeDecodeError"),
        ("a.txt", "", "line 1 is ''"),
        ("a.txt", "cat\n\tdog\nowl", "line 2"),
        ("a.txt", "cat\nn\tdog\tx\nowl", "line 2"),
        ("a.txt", "cat\ndog", "Received: 2 labels in .*a.txt"),
    ],
)
def test_wrong_label_files_raise(tmp_path, name, data, message):
    path = write(tmp_path / name, data)
    with pytest.raises(ValueError, match=message):
        decode_predictions(ONE, 1, str(path))


@pytest.mark.parametrize(
    "rows, warns",
    [
        ([[0.57, 2.3, -0.07]], True),
        ([[0.2, 0.3, -0.07]], True),
        ([[0.2, 0.7, 0.1]], False),
        ([[0.9, 0.8, 0.1]], False),  # of several labels
        ([[1.0005, 0.0, 0.0]], False),  # rounded to float16
    ],
)
def test_values_that_are_no_probabilities_are_said(rows, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = decode_predictions(np.array(rows), top=3, labels=["a", "b", "c"])
    said = [str(w.message) for w in caught]
    assert any("pass `model=`" in text for text in said) == warns
    assert sorted(x for *_, x in found[0]) == sorted(rows[0])
