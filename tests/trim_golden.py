"""Copies golden cases to tests/golden, without unused files.

    python -m tests.trim_golden SOURCE CASE ...

Values are never changed. Of `io.npz` the float64 arrays and those of `DROPPED`
are left out; archives are compressed again, weights too. Without cases, those
that are in tests/golden are trimmed where they are.
"""

import pathlib
import shutil
import sys
import zipfile

from tests.golden_data import FOLDER

# Outputs that are followed, a layer or two later, by one that is kept.
DROPPED = {
    "vit_jax_hybrid_stem": ("root_gn",),
    "vit_jax_hybrid_3stage": ("root_gn",),
    "vit_jax_hybrid_4stage": ("root_gn",),
}


def main(source=None, *cases):
    cases = cases or sorted(p.name for p in FOLDER.iterdir() if p.is_dir())
    source = pathlib.Path(source) if source else FOLDER
    for case in cases:
        (FOLDER / case).mkdir(exist_ok=True)
        for path in sorted((source / case).iterdir()):
            target = FOLDER / case / path.name
            if path.name == "keys.txt":  # the weights contain it
                continue
            if path.suffix == ".npz":
                dropped = DROPPED.get(case, ()) if path.stem == "io" else ()
                recompress(path, target, dropped)
            elif path != target:
                shutil.copyfile(path, target)
                target.chmod(0o644)
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    print(f"{sum(path.stat().st_size for path in files):,} bytes")


def recompress(source, target, dropped):
    """Writes the arrays of an archive again, byte for byte."""
    with zipfile.ZipFile(source) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries = {
        name: data
        for name, data in entries.items()
        if not name.endswith("_f64.npy")
        and name.removesuffix(".npy") not in dropped
    }
    temporary = target.with_suffix(".new")
    # A fixed date: the same arrays give the same file.
    with zipfile.ZipFile(temporary, "w") as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_LZMA
            archive.writestr(info, data)
    temporary.replace(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
