"""A seeded sample of the damaged files of `python -m tests.fuzzing`."""

import random

import pytest

from tests.fuzzing import check, readers

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("torch")  # writes two of the seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    readers.save_seeds(folder)
    return folder


@pytest.fixture
def seed(request, seeds):
    """A reader, its undamaged files and the weights in them."""
    reader = readers.READERS[getattr(request, "param", "npz")]
    files = readers.seed_files(reader, seeds)
    return reader, files, check.read_weights(seeds / reader.path)


@pytest.mark.filterwarnings("ignore:.*not finite, which are kept")
@pytest.mark.parametrize("seed", readers.READERS, indirect=True)
def test_damaged_files_are_read_or_refused(seed, tmp_path):
    reader, files, expected = seed
    for number in range(40):
        found = readers.mutated(reader, files, random.Random(number))
        check.outcome(reader, found, expected, tmp_path, number % 10 == 0)


@pytest.mark.parametrize("seed", readers.READERS, indirect=True)
def test_truncated_files_are_refused(seed, tmp_path):
    reader, files, expected = seed
    name = sorted(reader.mutations)[-1]
    for part in range(100):
        data = files[name][: len(files[name]) * part // 100]
        found = {**files, name: data}
        assert check.outcome(reader, found, expected, tmp_path) == "refused"
