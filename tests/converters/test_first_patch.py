"""big_vision's `pool_type="0"`: the head takes the first patch, which cannot
be inferred from the arrays of a file.

`tests/models/test_vit.py` compares it with the reference,
`test_keras_files.py` stores it, and `test_refusals.py` has the formats that
cannot.
"""

import numpy as np
import pytest

import keras_vit
from keras_vit.converters import load, save
from keras_vit_programs import convert as _cli
from tests.harness import numpy
from tests.small import images, randomize, tiny

pytestmark = pytest.mark.backends("torch")
CONSTANTS = {
    "activation": "gelu_tanh",
    "norm_epsilon": 1e-6,
    "resampling": "bilinear_align_corners",
}


def build(pooling):
    model = tiny(pooling=pooling, input_shape=(8, 8, 3), class_token=False)
    randomize(model)
    return model


def run(model):
    return numpy(model(images(2, 8, 8, 3)))


def saved(model, kind, path):
    """Writes a file that cannot store the pooling: big_vision's, or what
    Keras's own `save_weights` writes."""
    if kind == "big_vision":
        path = path / "a.npz"
        save(model, path, kind)
        return path, {"num_heads": 3}
    model.save_weights(path / "m.weights.h5")
    return path / "m.weights.h5", {"num_heads": 3, **CONSTANTS}


@pytest.mark.filterwarnings("ignore:.*does not store that its head takes")
@pytest.mark.parametrize("kind", ["big_vision", "save_weights"])
def test_file_loads_with_explicit_pooling(kind, tmp_path):
    model = build("first_patch")
    path, given = saved(model, kind, tmp_path)
    given |= {"pooling": "first_patch", "input_shape": (8, 8, 3)}
    for read in (
        load(path, **given),
        keras_vit.VisionTransformer(weights=str(path), **given),
    ):
        np.testing.assert_array_equal(run(read), run(model))
    # A head that was read for another number of classes is new all the same.
    assert not run(load(path, **given, classes=3)).any()


@pytest.mark.parametrize("kind", ["big_vision", "save_weights"])
def test_ambiguous_pooling_warns_when_loading(kind, tmp_path, capsys):
    path, given = saved(build("gap"), kind, tmp_path)
    with pytest.warns(UserWarning, match='Give `pooling="gap"` if') as found:
        model = load(path, **given)
    assert found[0].filename == __file__
    assert model.get_layer("pooling").mode == "gap"
    load(path, **given, pooling="gap")  # without a warning
    assert _cli.main([str(path), "--inspect"]) == 0
    assert "pooling: 'gap', the mean" in capsys.readouterr().out
    options = ["--inspect", "--set", "pooling=first_patch"]
    assert _cli.main([str(path), *options]) == 0
    assert "pooling: 'gap'" not in capsys.readouterr().out


def test_saving_warns_of_the_pooling(tmp_path):
    with pytest.warns(UserWarning, match="does not store that its head takes"):
        save(build("first_patch"), tmp_path / "a.npz", "big_vision")
