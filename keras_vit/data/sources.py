"""Finds a dataset by its name: digits, a folder or CSV file, or TFDS."""

import pathlib

from keras_vit.data.csv_files import from_csv
from keras_vit.data.dataset import ImageDataset
from keras_vit.data.digits import digits
from keras_vit.data.folders import image_folder
from keras_vit.data.splits import parse_holdout
from keras_vit.data.tfds import from_tfds


def load_dataset(
    name: str,
    holdout: float | str = 0.0,
    skip_bad_images: bool = False,
    test_split: str | None = None,
) -> ImageDataset:
    """Finds a dataset by its name.

    Args:
        name: "digits"; a folder, with `train/CLASS/*` and `test/CLASS/*` or
            only `CLASS/*`; a CSV file of paths and labels, as `from_csv` reads
            it; or a name in TFDS, which is downloaded if necessary. The files are
            images, or arrays `(height, width, channels)` in NumPy or TIFF files, all
            with the same number of channels, up to 16: uint8, uint16 (whose values are
            divided by 257), or floats from 0 to 255.
        holdout: Float in [0, 1). Fraction of the training images to hold out
            for `ImageDataset.validation`, always the same ones; or "paper" for the
            paper's fraction: 1% of ImageNet, 2% of CIFAR, 10% of other datasets.
        skip_bad_images: Boolean. For files, whether to decode every image now and to
            leave out those that cannot be read, with a warning that names them.
            Otherwise, such a file is an error. It is raised now if the header or the
            trailer shows the defect (another format, truncated, too large), or else
            when its batch is read, which ends a run after its last checkpoint.
        test_split: String. For a name in TFDS, the split to evaluate on. None
            takes "test", or "validation" ("val") if there is no such split or its
            images have no labels, as in ImageNet and iNaturalist.

    Returns:
        An `ImageDataset`. A dataset without a test set is split about 80 to 20, always
        in the same way, so that a model trained in one run has not seen the test images
        of another. For a folder, the split depends on a hash of each image's path
        (relative to the folder, so with the name of its class), so that adding,
        removing or renaming an image does not move any other image. There are two
        exceptions: every class keeps at least one training image, and the test set is
        never empty.

    Raises:
        ValueError: if there is no such dataset, or it cannot be used.
        ImportError: if a package is missing; the message says how to get it.
    """
    holdout = parse_holdout(name, holdout)
    path = pathlib.Path(name).expanduser()
    has_files = path.exists() and name != "digits"
    if test_split is not None and (name == "digits" or has_files):
        raise ValueError(
            f"`test_split` is for datasets in TFDS. Received: {test_split!r} with the "
            f"dataset {name!r}"
        )
    if skip_bad_images and not has_files:
        raise ValueError(
            "`skip_bad_images` is for a folder or CSV file of images. There is no "
            f"folder or file {name!r}: leave it out, or give one."
        )
    if name == "digits":
        return digits(holdout)
    if path.suffix.lower() == ".csv":
        return from_csv(path, holdout=holdout, skip_bad_images=skip_bad_images)
    if has_files:
        return image_folder(name, holdout, skip_bad_images)
    return from_tfds(name, holdout, test_split)
