import functools
import json

import keras
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit_programs import sizes
from tests.recipes import programs, runs
from tests.small import vit


@pytest.fixture(scope="session", autouse=True)
def small_model():
    """Makes compact-vit small: most of the time is compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sizes.COMPACT, "compact-vit", programs.SMALL)
        yield


@pytest.fixture(scope="session")
def data_folders(tmp_path_factory):
    return runs.folders(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def finished(data_folders, tmp_path_factory):
    """Returns a function that returns the folder of a run of `runs.RUNS`."""
    root = tmp_path_factory.mktemp("finished")

    @functools.cache
    def folder(name):
        return runs.train(name, data_folders, root / name)

    return folder


@pytest.fixture
def few_files():
    with runs.few_files():
        yield


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """A run's folder with a model of digits: a random body, whose features
    separate them, and a head in closed form. Nothing has to be compiled."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "digits"
    folder.mkdir()
    sizes = {"patch_size": 2, "hidden_size": 64, "mlp_dim": 64}
    model = vit(**sizes, pooling="gap", input_shape=(8, 8, 1), classes=10)
    positions = model.get_layer("position_embedding").embedding
    positions.assign(keras.random.normal(positions.shape, seed=0))
    data = keras_vit.data.load_dataset("digits")
    options = {"image_size": 8, "batch_size": 719}
    features, labels = keras_vit.evaluation.predict_dataset(
        keras_vit.evaluation.feature_model(model),
        data.batches("train", **options),
        1438,
    )
    found = evaluation.ridge(features, labels, 10, 1.0)
    kernel = 5 * found.kernel / found.deviation[:, None]
    bias = 5 * found.bias - found.mean @ kernel
    model.get_layer("head").set_weights([kernel, bias])
    model.save(folder / "model.keras")
    keras_vit.converters.save(model, folder / "model.npz")
    config = {"dataset": "digits", "mode": "tf", "protocol": "simple"}
    metadata = {"config": {**config, "image_size": 8}, "data": data.metadata()}
    (folder / "config.json").write_text(json.dumps(metadata))
    return folder


@pytest.fixture
def three_blocks(monkeypatch):
    """Gives ViT-Ti/16 three blocks instead of twelve."""
    shallow = functools.partial(keras_vit.ViTTi16, num_layers=3)
    monkeypatch.setattr(keras_vit.models, "ViTTi16", shallow)
