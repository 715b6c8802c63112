"""Image classification data by name: digits, TFDS, or a folder."""

import dataclasses
import difflib
import pathlib
from collections.abc import Callable

TEST_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class Data:
    """A dataset that was found and checked, before any image is resized."""

    name: str
    class_names: tuple
    channels: int
    image_size: int | None  # None where images differ in size or are no square
    num_train: int
    num_test: int
    # (image_size, batch_size, seed, flip) -> train, test. Both give batches of
    # images in [-1, 1] and integer labels; train never ends and is shuffled
    # and augmented, test gives every image once, in order.
    batches: Callable = dataclasses.field(repr=False)

    def facts(self):
        """Returns what can be written down."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "batches"
        }


def find_data(name):
    """Finds a dataset by its name.

    Args:
        name: "digits"; a folder, with `train/CLASS/*` and `test/CLASS/*` or
            only `CLASS/*`; or a name in TFDS, which may be downloaded.

    Returns:
        A `Data`. What has no test set of its own is split 80 to 20, class by
        class. The split is the same in every run, so that weights trained in
        one have not seen the test images of another.

    Raises:
        ValueError: if there is no such dataset, or it cannot be used.
        ImportError: if a package is missing; the message says how to get it.
    """
    # Each source is imported when it is asked for: digits need no TensorFlow.
    if name == "digits":
        from keras_vit.training._digits import digits

        return digits()
    if pathlib.Path(name).expanduser().exists():
        from keras_vit.training._folders import folder

        return folder(name)
    from keras_vit.training._tfds import from_tfds

    return from_tfds(name)


def not_found(name, known=()):
    """The error for a name that is neither a folder nor in TFDS."""
    path = pathlib.Path(name).expanduser()
    beside = []
    if path.parent.is_dir():
        folders = [p for p in path.parent.iterdir() if p.is_dir()]
        beside = [str(path.parent / p.name) for p in folders]
    close = difflib.get_close_matches(name, ["digits", *known, *beside])
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(
        f"There is no folder {name!r}, and TFDS has no dataset of that "
        f"name.{hint} --dataset takes 'digits', a name in TFDS such as "
        "'cifar10', or a folder."
    )
