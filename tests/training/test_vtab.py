import collections
import types

import numpy as np
import pytest

import keras_vit
from keras_vit.data import tfds as tfds_files
from keras_vit.data import vtab
from tests.training.mocked import mocked

pytestmark = pytest.mark.backends("tensorflow")

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

TASKS = keras_vit.data.VTAB_TASKS
# The published sizes: train, validation, test; and what VTAB makes of them.
SIZES = {
    "caltech101": {"train": 3_029, "test": 6_084},
    "cifar100": {"train": 50_000, "test": 10_000},
    "dtd": {"train": 1_880, "test": 1_880, "validation": 1_880},
    "oxford_flowers102": {"train": 1_020, "test": 6_149, "validation": 1_020},
    "oxford_iiit_pet": {"train": 3_680, "test": 3_669},
    "sun397/tfds": {"train": 76_127, "test": 21_750, "validation": 10_875},
    "svhn_cropped": {"train": 73_257, "test": 26_032, "extra": 531_131},
    "patch_camelyon": {"train": 262_144, "test": 32_768, "validation": 32_768},
    "eurosat/rgb": {"train": 27_000},
    "resisc45": {"train": 31_500},
    "diabetic_retinopathy_detection/btgraham-300": {
        "sample": 10,
        "train": 35_126,
        "test": 42_670,
        "validation": 10_906,
    },
    "clevr": {"train": 70_000, "test": 15_000, "validation": 15_000},
    "dmlab": {"train": 65_550, "test": 22_735, "validation": 22_628},
    "kitti:3.1.0": {"train": 6_347, "test": 711, "validation": 423},
    "dsprites": {"train": 737_280},
    "smallnorb": {"train": 24_300, "test": 24_300},
}
# First validation image, first test image, number of test images.
EXPECTED = {
    "caltech101": (2_726, 0, 6_084),
    "cifar100": (45_000, 0, 10_000),
    "dtd": (0, 0, 1_880),
    "flowers102": (0, 0, 6_149),
    "pets": (2_944, 0, 3_669),
    "sun397": (0, 0, 21_750),
    "svhn": (65_931, 0, 26_032),
    "camelyon": (0, 0, 32_768),
    "eurosat": (16_200, 21_600, 5_400),
    "resisc45": (18_900, 25_200, 6_300),
    "retinopathy": (0, 0, 42_670),
    "clevr-count": (63_000, 0, 15_000),
    "clevr-distance": (63_000, 0, 15_000),
    "dmlab": (0, 0, 22_735),
    "kitti-distance": (0, 0, 711),
    "dsprites-location": (589_824, 663_552, 73_728),
    "dsprites-orientation": (589_824, 663_552, 73_728),
    "smallnorb-azimuth": (0, 12_150, 12_150),
    "smallnorb-elevation": (0, 12_150, 12_150),
}


def test_nineteen_tasks_in_three_groups():
    groups = collections.Counter(task.group for task in TASKS.values())
    assert groups == dict(zip(vtab.VTAB_GROUPS, (7, 4, 8), strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_published_splits(name):
    task = TASKS[name]
    splits = {
        split: types.SimpleNamespace(num_examples=count)
        for split, count in SIZES[task.tfds].items()
    }
    ranges = vtab.split_ranges(task, splits)
    first_val, first_test, num_test = EXPECTED[name]
    assert ranges["train"] == ("train", range(800))
    assert ranges["val"][1] == range(first_val, first_val + 200)
    assert ranges["test"][1] == range(first_test, first_test + num_test)
    # No image is in two splits.
    for one, other in (("train", "val"), ("val", "test"), ("train", "test")):
        (a, left), (b, right) = ranges[one], ranges[other]
        assert a != b or not set(left) & set(right)
    if "validation" in splits and not name.startswith("clevr"):
        assert ranges["val"][0] == "validation"


def label_of(task, record):
    return task.label(tf, record) if task.label else record[task.features[0]]


def objects(**columns):
    return {"objects": {k: tf.constant(v) for k, v in columns.items()}}


def clevr(*distances):
    return objects(pixel_coords=[[0.0, 0.0, z] for z in distances])


def kitti(*pairs):
    location = np.zeros((len(pairs), 3), "float32")
    location[:, 2] = [distance for _, distance in pairs]
    kinds = np.array([kind for kind, _ in pairs], "int64")
    return objects(type=kinds, location=location)


# Examples of TFDS and the labels that VTAB defines.
COMPUTED = {
    "clevr-count": [(clevr(1, 2, 3), 0), (clevr(*range(10)), 7)],
    "clevr-distance": [
        (clevr(9.0, 7.9, 12.0), 0),
        (clevr(8.1, 9.6), 1),
        (clevr(8.6), 2),
        (clevr(9.1), 3),
        (clevr(9.6), 4),
        (clevr(10.5), 5),
    ],
    "kitti-distance": [
        (kitti((0, 25.0), (1, 9.0)), 1),  # the closer one
        (kitti((3, 5.0), (2, 30.0)), 2),  # a pedestrian is no vehicle
        (kitti((0, 7.0)), 0),
        (kitti((5, 5.0), (6, 6.0)), 3),  # nor are a cyclist and a tram
        (kitti(), 3),
    ],
    **{
        name: [
            ({feature: value}, int(value / (count / classes))) for value in range(count)
        ]
        for name, feature, count, classes in (
            ("dsprites-location", "label_x_position", 32, 16),
            ("dsprites-orientation", "label_orientation", 40, 16),
            ("smallnorb-azimuth", "label_azimuth", 18, 18),
            ("smallnorb-elevation", "label_elevation", 9, 9),
        )
    },
}


@pytest.mark.parametrize("name", COMPUTED)
def test_label_functions(name):
    for example, expected in COMPUTED[name]:
        assert int(label_of(TASKS[name], example)) == expected
    assert {label for _, label in COMPUTED[name]} <= set(range(TASKS[name].classes))


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in (*COMPUTED, "caltech101")
        else pytest.param(name, marks=pytest.mark.nightly)
        for name in TASKS
    ],
)
def test_labels_of_records_with_tfds_features(name, tmp_path):
    """The table of features fits the data sets of TFDS."""
    task = TASKS[name]
    kinds = tfds.builder(task.tfds, data_dir=tmp_path).info.features
    if name not in COMPUTED:
        assert task.features == ("label",)
        assert kinds["label"].num_classes == task.classes
    with mocked(tmp_path, {task.tfds: SIZES[task.tfds]}, num_examples=5):
        data = keras_vit.data.load_vtab(name)
        assert data.num_train == 1000 and data.num_test == EXPECTED[name][2]
        options = dict(image_size=16, batch_size=5, protocol="whole")
        images, labels, _ = next(iter(data.test(**options)))
        assert images.shape == (5, 16, 16, 3)
        builder = tfds.builder(task.tfds, data_dir=tmp_path)
        wanted = task.features
        if not isinstance(wanted, dict):
            wanted = dict.fromkeys(wanted, True)
        records = builder.as_dataset(
            split=task.test[0],
            decoders=tfds.decode.PartialDecoding(
                {"image": True, **wanted},
                decoders={"image": tfds.decode.SkipDecoding()},
            ),
        ).take(5)
        expected = [int(label_of(task, record)) for record in records]
        assert np.asarray(labels).tolist() == expected


def test_dsprites_images_are_rescaled_to_255():
    pixels = np.random.default_rng(0).integers(0, 2, (8, 8, 1)).astype("uint8")
    encoded = vtab._rescale_png(255, tf.io.encode_png(pixels))
    assert np.array_equal(tf.io.decode_png(encoded), 255 * pixels)


def test_validation_split_and_errors(tmp_path):
    with mocked(tmp_path, {"dtd": SIZES["dtd"]}):
        data = keras_vit.data.load_vtab("dtd", validate=True)
        assert (data.num_train, data.num_test) == (800, 200)
        assert data.class_counts().sum() == 3  # those that a mocked split has
        assert keras_vit.data.load_vtab("dtd").class_counts().sum() == 6
    with pytest.raises(ValueError, match="'caltech101'.*Received: name='dt'"):
        keras_vit.data.load_vtab("dt")


@pytest.mark.parametrize(
    "rows, expected",
    [
        (range(5), ["train5", "train6", "train7", "val0", "val1"]),
        (range(2, 4), ["train7", "val0"]),
        (range(4, 5), ["val1"]),
    ],
)
def test_images_of_two_splits_are_in_order(rows, expected):
    def read(split, indices):
        names = [f"{split}{index}" for index in indices]
        return tf.data.Dataset.from_tensor_slices((tf.constant(names, "string"),))

    ranges = {"train": [("train", range(5, 8)), ("val", range(2))]}
    found = tfds_files.evaluation_stream(read, ranges, "train", rows)
    numbers, names = zip(*found.as_numpy_iterator(), strict=True)
    assert [name.decode() for name in names] == expected
    assert numbers == tuple(range(len(rows)))


def test_manual_download_error_says_how(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError) as error:
        keras_vit.data.load_vtab("resisc45")
    assert "by hand, into" in str(error.value)
    assert str(tmp_path / "downloads" / "manual") in str(error.value)
    assert f"is read from {str(tmp_path)!r}, or the folder that" in str(error.value)
    assert "OneDrive" in str(error.value) and "\n" not in str(error.value)
