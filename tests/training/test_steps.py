"""Lists of steps: those of the short way, one's own, layers, and other libraries'
datasets."""

import importlib.util
import pathlib
import re
from collections.abc import Callable

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import arrays as arrays_module
from keras_vit.data import steps
from tests.training.batches import take
from tests.training.pictures import noise, write_folder

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")
IMAGES = np.stack([noise(20, 14, seed=i) for i in range(24)])
LABELS = np.arange(24) % 3
SIZE = {"image_size": 12}
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data():
    return keras_vit.data.from_arrays(IMAGES, LABELS)


def darken(example, seed):
    factor = tf.random.stateless_uniform((), seed, 0.2, 1.0)
    return example | {"image": example["image"] * factor}


def test_arguments_stand_for_a_list_that_can_be_given(data):
    options = {**SIZE, "protocol": "vit_jax", "augment": "light1", "erase": 0.5}
    options |= {"mixup": 0.3, "mode": "torch"}
    each, of_batch = data.training_steps(**options)
    assert str(each) == (
        "[inception_crop((12, 12)), flip(), augment('light1'), normalize('torch'), "
        "erase(RandomErasing(probability=0.5, area=(0.02, 0.3333333333333333), "
        "aspect=(0.3, 3.3333333333333335), mode='pixel')), one_hot(3)]"
    )
    expected = take(data.train(batch_size=8, seed=2, **options), 2)
    given = data.train(batch_size=8, seed=2, steps=each, batch_steps=of_batch)
    for found, wanted in zip(take(given, 2), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match="leave out `image_size`, `mixup`"):
        data.train(batch_size=8, steps=each, **SIZE, mixup=0.1)
    with pytest.raises(TypeError, match="ratio"):
        steps.inception_crop(12, ratio=2)


def test_the_page_has_the_steps_of_the_protocols():
    page = (ROOT / "docs" / "data.md").read_text()
    rows = re.findall(r"^\| `([\w.-]+)` \| `(.+?)` \| `(.+?)` \|$", page, re.MULTILINE)
    protocols = keras_vit.data.PROTOCOLS.items()
    found = [(name, str(x.train(224)), str(x.test(224))) for name, x in protocols]
    assert rows == found
    listed = set(re.findall(r"`(\w+)\(", page.partition("## The published")[0]))
    public = {name for name in vars(steps) if isinstance(vars(steps)[name], Callable)}
    assert {x for x in public if x.islower()} - listed == set()


def test_a_step_of_ones_own_has_random_numbers_of_its_place(data):
    known = [steps.resize(12), steps.flip(), darken, steps.normalize()]
    plain = [*known[:2], None, known[3]]
    without = take(data.train(batch_size=8, steps=plain), 3)[0]
    images = take(data.train(batch_size=8, steps=known), 3)[0]
    # The mirrored images are the same ones, each darkened by a factor of its own.
    factors = (images + 1).sum((2, 3, 4)) / (without + 1).sum((2, 3, 4))
    expected = (without + 1) * factors[..., None, None, None] - 1
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert len(np.unique(factors.round(4))) == 24
    resumed = take(data.train(batch_size=8, steps=known, start=2), 1)[0]
    np.testing.assert_array_equal(resumed[0], images[2])
    twice = take(data.train(batch_size=8, steps=[*known[:3], darken, known[3]]), 3)[0]
    second = (twice + 1).sum((2, 3, 4)) / (images + 1).sum((2, 3, 4))
    assert np.abs(second - factors).min() > 1e-4
    # In the place of RandAugment, by the short way.
    short = data.train(batch_size=8, **SIZE, protocol="whole", augment=darken)
    np.testing.assert_array_equal(take(short, 3)[0], images)


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.RandomBrightness(0.5),
        keras.layers.RandomRotation(0.2),
        keras.layers.RandomFlip("horizontal"),
        keras.layers.RandomErasing(1.0, value_range=(0, 255)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_keras_draw_the_numbers_of_the_seed(data, layer):
    known = [steps.resize(12), steps.layer(layer), steps.normalize()]
    images = take(data.train(batch_size=8, steps=known), 3)[0]
    plain = take(data.train(batch_size=8, steps=[known[0], None, known[2]]), 3)[0]
    changed = (np.abs(images - plain).max((2, 3, 4)) > 1e-3).mean()
    assert 0.2 < changed < 0.8 if "Flip" in str(layer) else changed > 0.5
    resumed = take(data.train(batch_size=8, steps=known, start=2), 1)[0]
    np.testing.assert_array_equal(resumed[0], images[2])


def test_any_function_of_an_image_is_a_layer(data):
    known = [steps.decode(), steps.layer(keras.layers.Resizing(6, 6))]
    (images, _, _) = take(data.test(batch_size=2, steps=known), 1)
    assert images[0].shape == (2, 6, 6, 3) and images.max() > 2
    known = [steps.resize(6), steps.layer(tf.image.adjust_gamma)]
    assert take(data.train(batch_size=2, steps=known), 1)[0].shape[2:] == (6, 6, 3)


def turned(example, seed):
    """Half a turn, of an image with its mask or boxes."""
    changed = {"image": example["image"][::-1, ::-1]}
    if "mask" in example:
        changed["mask"] = example["mask"][::-1, ::-1]
    if "boxes" in example:
        boxes = example["boxes"].copy()
        boxes[:, 1:3] = np.where(boxes[:, :1] == -1, -1, 1 - boxes[:, 1:3])
        changed["boxes"] = boxes
    return example | changed


@pytest.mark.parametrize("kind", ["mask", "boxes"])
def test_masks_and_boxes_have_steps_too(kind):
    load = {"mask": "load_segmentation", "boxes": "load_detection"}[kind]
    data = getattr(keras_vit.data, load)("digits")
    known, _ = data.training_steps(image_size=16, scale=1.5, flip=False)
    images, labels = data.train(batch_size=4, steps=known)[1]
    again = data.train(batch_size=4, start=1, steps=[*known, turned, turned])[0]
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_allclose(again[1], labels, atol=1e-6)
    once = data.train(batch_size=4, start=1, steps=[*known, turned])[0]
    np.testing.assert_array_equal(once[0], images[:, ::-1, ::-1])
    assert not np.array_equal(once[1], labels)
    with pytest.raises(ValueError, match=f"use `scale_crop`.* image with {kind}"):
        data.train(batch_size=4, steps=[steps.resize(16)])[0]


def noisy(example, rng):
    noise = rng.integers(0, 50, example["image"].shape)
    return example | {"image": example["image"] + noise.astype("float32")}


def test_steps_of_numpy_draw_the_numbers_of_their_place():
    data = keras_vit.data.load_segmentation("digits")
    crop = steps.scale_crop(16)

    def images(*known, start=0):
        batches = data.train(batch_size=4, steps=[crop, *known], start=start)
        return batches[0][0].astype("float32")

    plain, once, twice = images(), images(noisy), images(noisy, noisy)
    np.testing.assert_array_equal(images(None, noisy), plain + twice - once)
    assert not np.array_equal(once - plain, twice - once)
    # Those of an evaluation depend on the image alone, and not on its batch.
    known = [steps.scale_whole(16), noisy]
    large, small = (data.test(batch_size=n, steps=known) for n in (4, 2))
    np.testing.assert_array_equal(large[3][0][2:], small[7][0])


NO_STEPS = {
    "not `steps.flip`.*Received at place 1": [steps.resize(12), steps.flip],
    "`steps.layer\\(layer\\)` for a layer": [keras.layers.RandomFlip()],
    "at place 0: 'flip'": ["flip"],
    "dict with all of 'image', 'label'.*place 1, .*lambda.*Tensor": [
        steps.resize(12),
        lambda example, seed: tf.identity(seed),
    ],
    "place 0, .*: \\['image'\\]": [lambda example, seed: {"image": example["image"]}],
}


@pytest.mark.parametrize("message", NO_STEPS)
def test_what_is_no_step_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        data.train(batch_size=2, steps=NO_STEPS[message])


def test_pixels_that_no_step_decodes_or_scales_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match="a size, or `steps` a list"):
        data.train(batch_size=2)
    with pytest.raises(ValueError, match="`augment` must be.*steps.flip"):
        data.train(batch_size=2, **SIZE, augment=steps.flip)
    digits = keras_vit.data.load_dataset("digits")
    with pytest.raises(ValueError, match="leave it out for digits"):
        digits.train(batch_size=2, steps=[steps.normalize()])[0]
    folder = write_folder(tmp_path, {f"{i % 2}/{i}.png": IMAGES[i] for i in range(20)})
    files = keras_vit.data.load_dataset(folder)
    with pytest.raises(ValueError, match="begin with a step that decodes"):
        files.train(batch_size=2, steps=[])


class Indexable:
    """As a `torch.utils.data.Dataset`."""

    def __init__(self, kind):
        self.kind, self.reads = kind, 0

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, index):
        self.reads += 1
        image, label = IMAGES[index], int(LABELS[index])
        return {"image": image, "label": label} if self.kind is dict else (image, label)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        return IMAGES[rows], LABELS[rows]


SOURCES = {
    "tuples": lambda: Indexable(tuple),
    "dicts": lambda: Indexable(dict),
    "PyDataset": Batches,
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)),
    "batches of tf.data": lambda: tf.data.Dataset.from_tensor_slices(
        {"image": IMAGES, "label": LABELS}
    ).batch(7),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_datasets_of_other_libraries_have_the_batches_of_arrays(kind, data):
    other = keras_vit.data.from_indexable(SOURCES[kind]())
    options = {**SIZE, "batch_size": 8, "protocol": "vit_jax", "start": 3}
    for shard in ((0, 1), (1, 2)):
        found, expected = (
            take(each.train(**options, shard=shard), 2) for each in (other, data)
        )
        # The name of a part is in the hash that chooses the test images.
        assert other.num_train + other.num_test == 24
        for x, y in zip(found, expected, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype


def test_indexable_reads_what_a_batch_needs_and_refuses_other_forms():
    source = Indexable(tuple)
    data = keras_vit.data.from_indexable(source, labels=LABELS, holdout=0.2)
    assert source.reads == 1 and data.num_validation > 0
    found = keras_vit.data.from_indexable(source, source, ("a", "b", "c"))
    assert (found.num_train, found.num_test, found.class_names[2]) == (24, 24, "c")
    images, labels, _ = take(found.test(image_size=20, batch_size=24), 1)
    np.testing.assert_array_equal(labels[0], LABELS)
    with pytest.raises(ValueError, match="uint8 array of shape"):
        keras_vit.data.from_indexable([(IMAGES[0] / 255, 0), (IMAGES[1] / 255, 1)])
    with pytest.raises(ValueError, match="`labels` must be 24 integers"):
        keras_vit.data.from_indexable(source, labels=LABELS[:5])


def test_arrays_are_read_without_tensorflow(data, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        arrays_module.importlib.util,
        "find_spec",
        lambda name: None if name == "tensorflow" else find(name),
    )
    plain = keras_vit.data.from_arrays(IMAGES, LABELS)
    assert isinstance(plain.train(**SIZE, batch_size=8), keras.utils.PyDataset)
    for size in (12, (9, 30)):
        options = {"image_size": size, "batch_size": 3, "mode": "torch"}
        found, expected = (take(each.test(**options), 1) for each in (plain, data))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-4)
    options = {"image_size": 16, "batch_size": 8, "seed": 1}
    whole, labels = plain.train(**options)[2]
    resumed, _ = plain.train(**options, start=2)[0]
    np.testing.assert_array_equal(resumed, whole)
    shard, _ = plain.train(**options, start=2, shard=(1, 2))[0]
    np.testing.assert_array_equal(shard, whole[4:])
    assert whole.shape == (8, 16, 16, 3) and np.abs(whole).max() <= 1
    mixed, rows = plain.train(**options, mixup=0.5, cutmix=0.5)[0]
    np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-6)
    assert mixed.dtype == np.float32 and set(labels) <= {0, 1, 2}
    np.testing.assert_array_equal(plain.class_counts(), data.class_counts())
