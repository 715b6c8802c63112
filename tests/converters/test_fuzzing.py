"""A few of the broken files of `python -m tests.fuzzing`, which runs many."""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_vit.converters import open_checkpoint
from tests.fuzzing import _judge
from tests.fuzzing import _readers

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("torch")  # writes two of the seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    _readers.save_all(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.*not finite, which are kept")
@pytest.mark.parametrize("name", _readers.READERS)
def test_broken_files_are_refused_or_read_right(
    name, seeds, tmp_path, monkeypatch
):
    monkeypatch.setattr(_judge._checkpoint, "detect", _judge._detect)
    reader = _readers.READERS[name]
    files = _readers.seed_files(reader, seeds)
    expected = _judge.opened(seeds / reader.path)

    @settings(max_examples=40, derandomize=True, deadline=None, database=None)
    @given(st.randoms(use_true_random=False))
    def one(random):
        found = _readers.mutated(reader, files, random)
        _judge.outcome(reader, found, expected, tmp_path)

    one()


@pytest.mark.parametrize("name", _readers.READERS)
def test_what_is_cut_off_is_refused(name, seeds, tmp_path):
    """At every hundredth of the file."""
    reader = _readers.READERS[name]
    files = _readers.seed_files(reader, seeds)
    expected = _judge.opened(seeds / reader.path)
    changed = sorted(reader.changes)[-1]
    for part in range(100):
        data = files[changed]
        cut = {**files, changed: data[: len(data) * part // 100]}
        found = _judge.outcome(reader, cut, expected, tmp_path)
        assert found == "refused", f"{part} %: {found}"


def test_the_judge_fails_what_is_wrong(seeds, tmp_path, monkeypatch):
    reader = _readers.READERS["npz"]
    files = _readers.seed_files(reader, seeds)
    expected = _judge.opened(seeds / reader.path)
    assert _judge.outcome(reader, files, expected, tmp_path, True) == "same"
    for error in (KeyError("a.npz"), ValueError("no name"), MemoryError()):

        def broken(path, error=error):
            raise error

        monkeypatch.setattr(_judge, "open_checkpoint", broken)
        with pytest.raises(_judge.Failure):
            _judge.outcome(reader, files, expected, tmp_path)

    def writing(path):
        (tmp_path / "more").write_text("x")
        return open_checkpoint(path)

    monkeypatch.setattr(_judge, "open_checkpoint", writing)
    with pytest.raises(_judge.Failure, match="left files behind: .'more'"):
        _judge.outcome(reader, files, expected, tmp_path)
