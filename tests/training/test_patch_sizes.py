"""Training with random patch sizes equals resizing the kernel: FlexiViT."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import RandomPatchSizes
from keras_vit.layers.resampling import resample_embedding, resample_patch_kernel
from keras_vit.models.loading import weights_by_path
from tests.markers import on_all
from tests.small import vit

BASE, IMAGE = 6, 24
SIZES = RandomPatchSizes((4, 6, 8, 12), patch_size=BASE)


def _images(count=4):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, IMAGE, IMAGE, 3)).astype("float32")


def with_size(images, size):
    return SIZES.resize(images, SIZES.matrix(size))


def _gradients(model, images):
    """Returns the gradients of all weights by path: minus an update of SGD."""
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    weights = weights_by_path(model)
    before = [keras.ops.convert_to_numpy(v) for v in weights.values()]
    model.train_on_batch(images, np.arange(len(images)))
    after = [keras.ops.convert_to_numpy(v) for v in weights.values()]
    updates = [old - new for old, new in zip(before, after, strict=True)]
    return dict(zip(weights, updates, strict=True))


@pytest.mark.parametrize("size", on_all([4, 12], [4]))
def test_outputs_and_gradients_are_those_of_a_resized_kernel(
    size, tmp_path, record_error
):
    keras.utils.set_random_seed(0)
    grid = (IMAGE // BASE,) * 2
    model = vit(input_shape=(None, None, 3), grid_size=grid, patch_size=BASE, classes=5)
    sample = np.random.default_rng(0).normal
    for variable in model.weights:  # also the head, which is zero
        variable.assign(sample(0, 0.3, variable.shape))
    path = tmp_path / "model.npz"
    keras_vit.converters.save(model, path, "vit_jax")
    with pytest.warns(UserWarning, match="pseudo-inverse"):
        resized = vit(
            input_shape=(IMAGE, IMAGE, 3),
            weights=path,
            patch_size=size,
            classes=5,
        )
    images = _images()
    larger = with_size(images, size)
    new_grid = (IMAGE // size,) * 2
    assert larger.shape == (4, *(n * BASE for n in new_grid), 3)
    found, expected = (
        keras.ops.convert_to_numpy(m(x, training=False))
        for m, x in ((model, larger), (resized, images))
    )
    assert np.ptp(expected) > 0.1
    error = np.abs(found - expected).max()
    record_error("patch sizes", f"random, {BASE} as {size}", error, 1e-5)

    # The gradient of `B w` by w is the transpose of B times that of `B w`.
    found, expected = _gradients(model, larger), _gradients(resized, images)
    units = np.eye(BASE**2).reshape(BASE, BASE, 1, BASE**2)
    matrix = resample_patch_kernel(units, (size, size))
    key = "patch_embedding/kernel"
    expected[key] = np.einsum("yxou,yxcf->ucf", matrix, expected[key])
    expected[key] = expected[key].reshape(found[key].shape)
    length = 1 + grid[0] * grid[1]
    matrix = resample_embedding(
        np.eye(length)[None], grid, new_grid, "bilinear_align_corners", 1
    )
    key = "position_embedding/embedding"
    expected[key] = np.einsum("olu,old->oud", matrix, expected[key])
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        if key.startswith(("patch_embedding", "position_embedding")):
            assert np.abs(gradient).max() > 1e-3
        error = np.abs(gradient - expected[key]).max()
        record_error("patch sizes", f"gradient of {key}", error, 1e-5)


def _options(**options):
    return {"image_size": IMAGE, "batch_size": 8, "seed": 3, **options}


@pytest.mark.backends("torch")
def test_a_batch_depends_on_its_number_only():
    data = keras_vit.data.load_dataset("digits")
    plain = data.train(**_options())
    batches = data.train(**_options(patch_sizes=SIZES))
    chosen = [SIZES.choose(3, number) for number in range(20)]
    assert set(chosen) == set(SIZES.sizes)
    assert chosen != [SIZES.choose(4, number) for number in range(20)]
    for number, size in enumerate(chosen[:8]):
        images, labels = batches[number]
        expected, others = plain[number]
        np.testing.assert_array_equal(labels, others)
        np.testing.assert_array_equal(images, with_size(expected, size))
        assert (size == BASE) == (images.shape == expected.shape)
    later = data.train(**_options(patch_sizes=SIZES, start=5))
    np.testing.assert_array_equal(later[2][0], batches[7][0])
    micro = data.train(**_options(patch_sizes=SIZES, micro_batches=2))
    both = np.concatenate([micro[6][0], micro[7][0]])
    np.testing.assert_array_equal(both, batches[3][0])


@pytest.mark.backends("tensorflow")
def test_batches_of_tf_data_have_the_same_sizes():
    images = np.random.default_rng(0).uniform(0, 255, (20, IMAGE, IMAGE, 3))
    data = keras_vit.data.from_arrays(images.astype("uint8"), np.arange(20) % 5)
    plain = iter(data.train(**_options(flip=False)))
    resized = data.train(**_options(flip=False, patch_sizes=SIZES))
    assert resized.element_spec[0].shape == (8, None, None, 3)
    micro = iter(
        data.train(**_options(flip=False, patch_sizes=SIZES, micro_batches=2, start=2))
    )
    for number, (found, labels) in enumerate(resized.take(5)):
        expected, others = next(plain)
        np.testing.assert_array_equal(labels, others)
        expected = with_size(expected.numpy(), SIZES.choose(3, number))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        if number >= 2:
            both = np.concatenate([next(micro)[0], next(micro)[0]])
            np.testing.assert_allclose(both, expected, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((4,), "two or more"),
        ((4, 4), "different"),
        ((4, 0), "positive"),
        ((4, 5), "Received: 5 of 4, 5, and images"),
    ],
)
def test_wrong_sizes_are_refused(sizes, words):
    data = keras_vit.data.load_dataset("digits")
    with pytest.raises(ValueError, match=words):
        data.train(**_options(patch_sizes=RandomPatchSizes(sizes, 4)))


def accuracies(patch_sizes, tmp_path, steps=300):
    """Returns the accuracies on digits by patch size of a small model."""
    keras.utils.set_random_seed(0)
    options = {"image_size": 12, "batch_size": 32}
    data = keras_vit.data.load_dataset("digits")
    model = vit(
        input_shape=(None, None, 1),
        grid_size=(4, 4),
        patch_size=3,
        hidden_size=32,
        num_layers=2,
        pooling="gap",
        classes=10,
    )
    model.compile(
        keras.optimizers.Adam(0.003),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = data.train(**options, seed=0, patch_sizes=patch_sizes)
    for number in range(steps):
        model.train_on_batch(*batches[number])
    path = tmp_path / "model.keras"
    keras_vit.converters.save(model, path, overwrite=True)
    images, labels, _ = data.test(image_size=12, batch_size=359)[0]
    found = {}
    for size in (2, 3, 4, 6):
        model = keras_vit.converters.load(
            path, patch_size=size, input_shape=(12, 12, 1)
        )
        logits = keras.ops.convert_to_numpy(model(images, training=False))
        found[size] = np.mean(logits.argmax(-1) == labels)
    return found


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The patch embedding of")
def test_a_model_for_several_sizes_is_more_accurate_at_others(tmp_path):
    plain = accuracies(None, tmp_path)
    flexible = accuracies(RandomPatchSizes((2, 3, 4, 6), 3), tmp_path)
    print(plain, flexible)
    for size in (4, 6):
        assert flexible[size] > plain[size] + 0.05
