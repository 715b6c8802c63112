"""The same readers, driven by what they have not yet run (atheris).

    python -m tests.fuzzing.guided npz SEEDS -runs=100000 -max_len=20000

SEEDS is a folder of `python -m tests.fuzzing --seeds`. The options are those of
libFuzzer; the first input that fails ends it, and is kept in a file.
"""

import pathlib
import sys
import tempfile

import atheris

from tools import convert

convert.enter_beside_the_door()
with atheris.instrument_imports(include=["keras_vit"]):
    from tests.fuzzing import _judge
    from tests.fuzzing import _readers


def main(name, seeds, *options):
    _judge.remember()
    reader = _readers.READERS[name]
    files = _readers.seed_files(reader, seeds)
    expected = _judge.opened(pathlib.Path(seeds) / reader.path)
    changed = next(iter(reader.changes))
    with tempfile.TemporaryDirectory() as folder:
        corpus, work = (pathlib.Path(folder) / name for name in ("in", "work"))
        corpus.mkdir()
        work.mkdir()
        (corpus / "seed").write_bytes(files[changed])

        def one(data):
            _judge.outcome(reader, {**files, changed: data}, expected, work)

        atheris.Setup([sys.argv[0], str(corpus), *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
