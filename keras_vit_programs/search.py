"""Finds images that match a text, or that are similar to another image.

  keras-vit search photos "a red car" --weights clip-vit-base-patch32
  keras-vit search photos --like photos/car.jpg --weights runs/photos
  keras-vit search photos --duplicates 0.98 --weights runs/photos

A text requires both towers of CLIP or SigLIP; for an image, and for pairs of
images that are nearly the same, any model is suitable. Folders are searched for
image files, and those that cannot be read are left out with a warning. The
output folder contains search.csv and search.png with the images of the highest
cosine similarity, or duplicates.csv and duplicates.png with the pairs. The
embeddings are kept in --cache, one file for each model, by the content of the
images: another search computes only those of new images.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit_programs import charts, classifiers, console, defaults, flags, run_folder


@dataclasses.dataclass(frozen=True)
class Config(flags.Trained):
    images: tuple[str, ...] = flags.flag(
        "image files and folders of image files", (), "PATH"
    )
    text: str | None = flags.flag("description of the images, such as 'a red car'")
    like: str | None = flags.flag(
        "an image to which the images are similar", metavar="PATH"
    )
    duplicates: float | None = flags.flag(
        "find pairs of images with at least this cosine similarity, up to 1",
        metavar="COSINE",
    )
    top: int = flags.flag("number of images, or of pairs in the picture", 12, minimum=1)
    cache: str = flags.flag("folder of embeddings", "runs/embeddings", "DIR")

    defaults = (
        flags.Rule("protocol", "as in training if that is known, else vit_jax"),
        defaults.constant("batch_size", 32),
        flags.Rule("output", "runs/search, with -2, -3, ... appended if it exists"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = (self.text, self.like, self.duplicates)
        if not self.images or wanted.count(None) != 2:
            raise ValueError(
                "Give --images, and one of --text, --like and --duplicates."
            )


def search(config: Config) -> None:
    """Writes the images that are nearest to a text, to an image or to each other."""
    with flags.user_errors():
        flags.require("matplotlib")
        config = flags.fill(config)
        trained = classifiers.load_trained(config, config.text is not None)
        whole = None
        if not config.model:
            read = keras_vit.converters.open_checkpoint
            whole = read(str(config.weights), decoder=True, text=True)
        tower, query, like = trained.model, None, None
        if whole is None or whole.family != "dual_encoder":
            tower, whole = keras_vit.evaluation.feature_model(tower), None
        if config.like:
            like = pathlib.Path(config.like).expanduser()
            keras_vit.data.load_files([like])  # raises an error if it is not an image
        elif config.text and whole:
            both = keras_vit.load(whole)
            query = keras.ops.convert_to_numpy(both.encode_texts([config.text]))[0]
        elif config.text:
            raise ValueError(
                f"{config.weights!r} has no text tower, which --text requires. Give "
                "--like instead, or the files of CLIP or SigLIP."
            )
        paths = [*config.images, *filter(None, [like])]
        data, files = keras_vit.data.load_files(
            paths, skip_bad_images=True, decode_all=config.skip_bad_images
        )
        folder, replace = config.output, config.overwrite
        output = run_folder.results_folder(folder, "runs/search", replace)
        reading = trained.reading(data, flags.filled(config.batch_size))
        settings = f"{keras_vit.config_of(trained.model)} {reading}"
        digest = hashlib.sha256(settings.encode())
        for weight in tower.weights:
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
        cache = pathlib.Path(config.cache).expanduser() / f"{digest.hexdigest()}.npz"
        known: dict[str, np.ndarray] = {}
        if cache.is_file():
            with np.load(cache) as stored:
                known = dict(zip(stored["keys"], stored["vectors"], strict=True))
        keys = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        new = {k: path for k, path in zip(keys, files, strict=True) if k not in known}
        print(f"images    {len(files)}, of which {len(new)} are new")
        if new:
            data = keras_vit.data.load_files(new.values())[0]
            batches = trained.adapt(data).test(**reading)
            tower = trained.for_batches(tower)
            found = keras_vit.evaluation.predict_dataset(tower, batches, len(new))[0]
            found /= np.linalg.norm(found, axis=-1, keepdims=True)
            known |= zip(new, found, strict=True)
            with run_folder.atomic_write(cache) as temporary:
                np.savez(temporary, keys=[*known], vectors=[*known.values()])
    vectors = np.stack([known[key] for key in keys])
    images = console.counted(len(files), "image")
    if config.duplicates is not None:
        rows = _pairs(vectors, files, config.duplicates)
        kind, columns = "duplicates", ("file", "duplicate", "cosine")
        title = f"{console.counted(len(rows), 'pair')} of {images}"
    else:
        cosines = vectors @ (vectors[files.index(like)] if like else query)
        best = [i for i in np.argsort(-cosines) if files[i] != like][: config.top]
        rows = [{"file": files[i], "cosine": f"{cosines[i]:.4f}"} for i in best]
        kind, columns = "search", ("file", "cosine")
        title = f"{len(best)} of {images}: {config.text or config.like}"
    run_folder.save_csv(rows, output / f"{kind}.csv", columns)
    # Here, so that --help does not wait for Keras.
    from keras_vit.data.folders import load_thumbnail

    shown = [
        (row[name], row["cosine"])
        for row in rows[: config.top]
        for name in columns[:-1]
    ]
    figure = charts.plot_found(
        [load_thumbnail(path) for path, _ in shown],
        [f"{cosine}  {_short(path, config.images)}" for path, cosine in shown],
        title,
        len(columns) - 1,
    )
    with run_folder.atomic_write(output / f"{kind}.png") as temporary:
        figure.savefig(temporary)
    for row in rows[: config.top]:
        names = (console.printable(row[name]) for name in columns[:-1])
        print(f"{row['cosine']:>7}  {'  '.join(names)}")
    print(f"\n  {title}\n  {output / kind}.csv\n  {output / kind}.png")


def _pairs(
    vectors: np.ndarray, files: Sequence[pathlib.Path], least: float
) -> list[dict[str, Any]]:
    """Returns the pairs of files whose cosine is at least `least`, nearest first."""
    found = []
    for i, vector in enumerate(vectors):
        cosines = vectors[i + 1 :] @ vector
        found += [(cosines[j], i, i + 1 + j) for j in np.flatnonzero(cosines >= least)]
    return [
        {"file": files[i], "duplicate": files[j], "cosine": f"{cosine:.4f}"}
        for cosine, i, j in sorted(found, reverse=True)
    ]


def _short(path: pathlib.Path, roots: Sequence[str]) -> str:
    """Returns the end, of at most 17 characters, of a path relative to the folder of
    `roots` in which it is; of several folders, with the name of the folder."""
    folders = [pathlib.Path(root).expanduser() for root in roots]
    found = next((root for root in folders if root in path.parents), path.parent)
    inside = path.relative_to(found)
    text = str(found.name / inside if len(folders) > 1 else inside)
    return text if len(text) <= 17 else f"…{text[-16:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    flags.run(search, Config, str(__doc__), argv)
    return 0
