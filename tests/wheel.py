"""Builds the sdist and the wheel, and runs the quick start from the wheel.

    python -m tests.wheel
    python -m tests.wheel --output dist     # keeps the distributions

1. `python -m build` makes the sdist, and the wheel from the sdist; `twine check
   --strict` reads their metadata.
2. Their files are those of the repository: all of the package, and no tests.
3. The wheel is installed with the extras `jax` and `recipes` in a new
   environment, where the quick start runs in an empty folder: build, train,
   save, load in a new process, convert; and then the command `keras-vit`, from
   a folder of images to predictions and exports.

It needs the package index (about 1 GB is downloaded).
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import venv
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
BACKEND = "jax"
TRAIN = """
    import numpy as np
    import keras
    import keras_vit

    model = keras_vit.ViTTi16(
        input_shape=(32, 32, 3), num_layers=2, classes=3
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    photos = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3))
    images = keras_vit.preprocess_input(photos.astype("uint8"))
    model.fit(images, np.arange(8) % 3, epochs=1, verbose=0)
    model.save("model.keras")
    np.savez("io.npz", images=images, logits=model.predict(images, verbose=0))
    keras_vit.converters.save(model, "model.safetensors", format="timm")
"""
PHOTOS = """
    import pathlib
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("bright", 128)):
        for i in range(12):
            pixels = rng.integers(low, low + 128, (32, 32, 3)).astype("uint8")
            folder = pathlib.Path("photos", "train" if i else "test", name)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{i}.png")
"""
COMMANDS = """
    train photos --steps 4
    predict runs/photos photos/test
    explain runs/photos photos/test/dark/0.png
    evaluate runs/photos
    report runs/photos photos/test/dark/0.png
    export runs/photos served
    convert runs/photos photos.safetensors --to timm
    new finetune
"""
LOAD = """
    import importlib.metadata
    import numpy as np
    import keras
    import keras_vit

    io = np.load("io.npz")
    for model in (
        keras.models.load_model("model.keras"),
        keras_vit.converters.load("model.keras"),
    ):
        logits = model.predict(io["images"], verbose=0)
        np.testing.assert_allclose(logits, io["logits"], atol=1e-5)
    assert importlib.metadata.version("keras-vit-models") == (
        keras_vit.__version__
    )
    print("installed in", keras_vit.__file__)
"""


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wheel")
    parser.add_argument("--output", type=pathlib.Path, help="folder to keep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keras_vit-wheel-") as temporary:
        folder = pathlib.Path(temporary)
        output = (arguments.output or folder / "dist").resolve()
        python = new_environment(folder / "tools", "build", "twine")
        run(python, "-m", "build", "--outdir", output, ROOT)
        (sdist,) = output.glob("*.tar.gz")
        (wheel,) = output.glob("*.whl")
        run(python, "-m", "twine", "check", "--strict", sdist, wheel)
        check_files(sdist, wheel)
        extras = f"{BACKEND},recipes"
        python = new_environment(folder / "user", f"{wheel}[{extras}]")
        empty = folder / "empty"
        empty.mkdir()
        for program in (TRAIN, LOAD, PHOTOS):
            run(python, "-c", textwrap.dedent(program), cwd=empty)
        options = ["model.keras", "copy.npz", "--to", "vit_jax"]
        run(python, "-m", "keras_vit_programs.convert", *options, cwd=empty)
        for line in COMMANDS.strip().splitlines():
            run(python.with_name("keras-vit"), *line.split(), cwd=empty)
        for name in ("runs/photos/confusion.png", "served/saved_model.pb"):
            if not (empty / name).is_file():
                raise SystemExit(f"{name} was not written")
        run(python.with_name("keras-vit"), "train", "--help", cwd=empty)
    print("The wheel works.")


def new_environment(folder, *requirements):
    """Returns the Python of a new environment with packages."""
    venv.create(folder, with_pip=True)
    name = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    run(folder / name, "-m", "pip", "install", "-q", *requirements)
    return folder / name


def run(*command, cwd=None):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    environment.pop("PYTHONPATH", None)  # nothing but what is installed
    subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, check=True
    )


def check_files(sdist, wheel):
    """Raises if a file is missing in a distribution or a test included."""
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "keras_vit").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive:
        found = {sdist: sources, wheel: archive.namelist()}
    for path, names in found.items():
        tests = [name for name in names if name.startswith("tests")]
        missing = files - set(names)
        if tests or missing:
            raise SystemExit(f"{path}: missing {missing}, not wanted {tests}")


if __name__ == "__main__":
    sys.exit(main())
