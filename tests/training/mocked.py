"""Data sets of TFDS with the metadata of prepared ones, and random images."""

import contextlib
import functools
from unittest import mock


@contextlib.contextmanager
def mocked(folder, sets, num_examples=3, class_names=None, builder_of=None):
    """Within this context, the named datasets can be read.

    Args:
        folder: Path to write the metadata to.
        sets: Dict of names in TFDS to their splits, `{split: examples}`.
        num_examples: Integer. Images that any reading gives.
        class_names: Dict of sets to names that come with their data.
        builder_of: Function of a set's name and the folder that returns its
            builder; None for those of TFDS.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.testing import mocking

    for name, splits in sets.items():
        builder = (builder_of or _builder)(name, folder)
        target = folder / builder.info.full_name
        target.mkdir(parents=True)
        template = tfds.core.ShardedFileTemplate(
            dataset_name=builder.name,
            data_dir=target,
            filetype_suffix="tfrecord",
        )
        builder.info.set_splits(
            tfds.core.splits.SplitDict(
                [
                    tfds.core.SplitInfo(
                        name=split,
                        shard_lengths=[count],
                        num_bytes=0,
                        filename_template=template.replace(split=split),
                    )
                    for split, count in splits.items()
                ]
            )
        )
        if names := (class_names or {}).get(name):
            builder.info.features["label"].names = names
        builder.info.write_to_directory(target)
    made = mocking.RandomFakeGenerator
    # Columns of one sequence, as of objects, must be of one length.
    same = functools.partialmethod(made.__init__, constant_dynamic_shape=True)
    with (
        mock.patch.object(made, "__init__", same),
        tfds.testing.mock_data(num_examples, data_dir=str(folder)),
    ):
        yield


def _builder(name, folder):
    import tensorflow_datasets as tfds

    return tfds.builder(name, data_dir=folder)
